"""What a replica costs that is larger than the memory: bootstrap, get and follow, on this disk.

    python benchmarks/beyond_memory.py [--keys 20000000] [--memory-mib 1024 512 256] [--write]

Each side is a process of its own, over a checkpoint of its own with the same rows (see sizes.py).  The
first side has no bound.  The others run in control groups with less and less memory (cgroup v1, so it
needs root).  Their memory includes the system's cache of the files that they read and write.

One side after the other is built.  Then gets are timed by turns.  At last each side follows 20 batches
of 10,000 changed rows.  Ratios are to the side without a bound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import write_result
from sizes import Size

ROUNDS = 3
GROUPS = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def bounded(mib: int) -> Iterator[list[str]]:
    """A command that runs another with so much memory; 0: without a bound."""
    if not mib:
        yield []
        return
    group = GROUPS / f"millpond-{os.getpid()}-{mib}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(mib << 20))
    try:
        yield ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


def main() -> None:
    """Build all sides, then measure them by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--memory-mib", type=int, nargs="+", default=[1024, 512, 256])
    parser.add_argument("--folder", type=Path, help="where the checkpoints and replicas lie while it runs: 8 GB at 20 M keys")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/beyond_memory.json")
    options = parser.parse_args()
    bounds = [0, *options.memory_mib]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, contextlib.ExitStack() as groups:
        sides = []
        for bound in bounds:
            place = Path(folder) / str(bound)
            place.mkdir()
            sides.append(Size(place, options.keys, groups.enter_context(bounded(bound))))
        for _ in range(ROUNDS):
            for side in sides:
                side.ask()
        followed = [side.follow() for side in sides]
        for side in sides:
            side.end()
    found = {
        str(bound) if bound else "no bound": _of_side(side, facts)
        for bound, side, facts in zip(bounds, sides, followed, strict=True)
    }
    whole = found["no bound"]
    for facts in found.values():
        facts["to_no_bound"] = {
            name: round(facts[name] / whole[name], 2) for name in ("bootstrap_seconds", "get_p50_us", "apply_seconds")
        }
    result = {
        "what": "a replica of long -> two longs by the memory, in MiB, of the process and of the system's cache of its files",
        "keys": options.keys,
        "memory": found,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("beyond_memory", result, {str(bound): side.gets for bound, side in zip(bounds, sides, strict=True)})


def _of_side(side: Size, followed: dict[str, Any]) -> dict[str, Any]:
    return {
        "replica_mib": side.built["replica_mib"],
        "replica_bytes_per_row": round((side.built["replica_mib"] << 20) / side.keys, 1),
        "bootstrap_seconds": side.built["bootstrap_seconds"],
        "bootstrap_rows_per_second": round(side.keys / side.built["bootstrap_seconds"]),
        "get_p50_us": statistics.median(gets["p50_us"] for gets in side.gets),
        "get_p99_us": statistics.median(gets["p99_us"] for gets in side.gets),
        "rows_applied": followed["rows_applied"],
        "apply_seconds": round(followed["apply_seconds"], 2),
        "applied_rows_per_second": round(followed["rows_applied"] / followed["apply_seconds"]),
        "held_mib": side.built["bootstrap_peak_mib"]["RssAnon"],
    }


if __name__ == "__main__":
    main()
