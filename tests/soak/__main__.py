"""`python -m soak --kills 1000 --seed 7`: run a soak, print its seed, and write the result."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from soak.checks import Counts
from soak.program import parse
from soak.storm import Soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; returns 0 if every answer was right."""
    given = parse(argparse.ArgumentParser(prog="soak", description=__doc__), arguments, kills=200, disk_bytes=256 << 20)
    soak = Soak(given.folder, given.home, seed=given.seed, can_fill=given.can_fill)
    try:
        soak.run(given.kills)
    except AssertionError as wrong:
        soak.wrong = soak.wrong or [str(wrong)]  # the log already has all wrong answers
    planned = [
        {batch: [found.offsets, found.watermark_ms, found.started_ms] for batch, found in run.planned.items()}
        for run in soak.oracle.runs
    ]
    (given.folder / "planned.json").write_text(json.dumps(planned))
    result = {
        **given.facts(),
        "kills": soak.storm.kills.total(),
        "killed": dict(soak.storm.kills),
        "paused": dict(soak.storm.pauses),
        "job_replaced": soak.storm.replaced,
        "without_follower": soak.storm.outages,
        "disk_can_be_filled": given.can_fill,
        "disk_filled": soak.storm.full,
        "batches": [len(run.planned) for run in soak.oracle.runs],
        **{name: getattr(soak.counts, name) for name in Counts.__slots__},
        "wrong": soak.wrong[:20],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.result is not None:
        given.result.write_text(text + "\n")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
