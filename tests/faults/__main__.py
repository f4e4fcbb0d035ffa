"""`python -m faults --kills 60 --seed 7`: kill jobs of all kinds, so many times in total, and write the result."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults.kinds import KINDS
from faults.storm import Storm
from millpond.errors import MillpondError


def main() -> int:
    """Kill the jobs; returns 0 if none differs from an undisturbed run."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--result", type=Path, help="a JSON file for what it came to")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from results import machine

    began, load, found = time.monotonic(), os.getloadavg()[0], {}
    for place, kind in enumerate(given.kinds):
        kills = (given.kills + place) // len(given.kinds)
        folder = Path(tempfile.mkdtemp(prefix=f"millpond-{kind}-"))
        print(f"{kind}: {kills} kills with seed {given.seed}, in {folder}", flush=True)
        storm = Storm(KINDS[kind](folder, random.Random(f"{given.seed}/{kind}")))
        since = time.monotonic()
        try:
            storm.run(kills)
        except (AssertionError, MillpondError) as wrong:
            storm.differences.append(str(wrong))
        found[kind] = {"seconds": round(time.monotonic() - since), **storm.facts()}
        print(json.dumps(found[kind]), flush=True)
        if not storm.differences:
            shutil.rmtree(folder)
        result = {
            "command": f"python -m faults --kills {given.kills} --seed {given.seed} --kinds {' '.join(given.kinds)}",
            "machine": machine(),
            "load_average": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
            "seed": given.seed,
            "seconds": round(time.monotonic() - began),
            "kills": sum(facts["kills"] for facts in found.values()),
            "differences": sum(len(facts["differences"]) for facts in found.values()),
            "kinds": found,
        }
        if given.result is not None:  # with all kinds finished so far
            given.result.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(facts["differences"] for facts in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
