"""Three jobs, each over the changes of those before; each is killed, and all end equal to a recomputation."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import MillpondError
from suite.sizes import IS_EVERY
from suite.waiting import TimedOut, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]
# It takes minutes: only `MILLPOND_EVERY=1` runs it.
__test__ = IS_EVERY
TABLES = {"pages": "pages", "sites": "sites", "sizes": "sizes_result", "joined": "joined_result"}
TESTS = Path(__file__).parents[2]
KILLS = 4
SEED = os.environ.get("MILLPOND_SEED", "20261127")


def start(level: str, folder: Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MILLPOND_HOME": str(folder / "home")}
    program = [sys.executable, str(Path(__file__).with_name("levels.py")), level, str(folder)]
    with (folder / f"{level}.log").open("ab") as log:
        return subprocess.Popen(program, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)


def committed(folder: Path, level: str) -> int:
    """How many batches a level has committed."""
    return len(list((folder / "pond" / "jobs" / level / "checkpoint" / "commits").glob("[0-9]*")))


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def recompute(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables, from the events alone."""
    hits: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for event in events:
        hits[event["site"], event["page"]] += 1
        total[event["site"], event["page"]] += event["v"]
    pages = [{"site": s, "page": p, "hits": n, "total": total[s, p]} for (s, p), n in hits.items() if total[s, p] % 3]
    by_site: dict[str, list[int]] = defaultdict(list)
    for row in pages:
        by_site[row["site"]].append(row["hits"])
    sites = [{"site": site, "pages": len(each), "hits": sum(each)} for site, each in by_site.items()]
    by_size: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in sites:
        by_size[row["pages"]].append(row)
    sizes = []
    for size, rows in by_size.items():
        best = sorted(rows, key=lambda row: (-row["hits"], row["site"]))[:2]
        top = [{"site": row["site"], "hits": row["hits"]} for row in best]
        sizes.append({"pages": size, "sites": len(rows), "most": max(row["hits"] for row in rows), "best": top})
    joined = []
    for page in pages:
        (site,) = (row for row in sites if row["site"] == page["site"])
        own = {name: page[name] for name in ("site", "page", "hits", "total")}
        joined.append({**own, "pages": site["pages"], "hits_of_site": site["hits"]})
    return {"pages": pages, "sites": sites, "sizes": sizes, "joined": joined}


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def found(folder: Path, levels: Sequence[str]) -> dict[str, list[str]]:
    rows = {}
    for level in levels:
        try:
            rows[level] = in_order(millpond.read_arrow(folder / "pond", TABLES[level]).to_pylist())
        except MillpondError as error:
            rows[level] = [error.condition]
    return rows


@pytest.mark.parametrize("levels", [("pages", "sites", "sizes"), ("pages", "sites", "joined")])
def test_three_levels_are_exact_after_kills_of_each(tmp_path, levels):
    print(f"seed {SEED}")
    random_ = random.Random(SEED)
    (tmp_path / "in").mkdir()
    events: list[dict[str, Any]] = []
    processes = {level: start(level, tmp_path) for level in levels}

    def ended() -> dict[str, str]:
        return {level: (tmp_path / f"{level}.log").read_text()[-3000:] for level, p in processes.items() if p.poll() is not None}

    try:
        victims = [*levels, *(random_.choice(levels) for _ in range(KILLS - len(levels)))]
        number = 0
        for victim in victims:
            before = committed(tmp_path, victim)

            def has_done_something(victim: str = victim, before: int = before) -> bool:
                """Otherwise it gets more input."""
                nonlocal number
                if committed(tmp_path, victim) > before:
                    return True
                rows = [
                    {"site": f"s{random_.randrange(8)}", "page": f"/{random_.randrange(5)}", "v": random_.randrange(-2, 9)}
                    for _ in range(random_.randrange(1, 9))
                ]
                write_event_file(tmp_path / "in", number, rows)
                events.extend(rows)
                number += 1
                time.sleep(random_.uniform(0, 0.8))
                return False

            wait_until(has_done_something, f"a batch of {victim}", seconds=240, unless=ended)
            time.sleep(random_.uniform(0, 1))
            kill(processes[victim])
            processes[victim] = start(victim, tmp_path)
        expected = {level: in_order(rows) for level, rows in recompute(events).items() if level in levels}
        with contextlib.suppress(TimedOut):  # the difference says more
            wait_until(lambda: found(tmp_path, levels) == expected, "all rows", seconds=600, unless=ended)
        assert found(tmp_path, levels) == expected
    finally:
        for process in processes.values():
            kill(process)
