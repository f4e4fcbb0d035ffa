"""`python -m chaos --kills 1000 --seed 7`: run the chaos, print its seed, and write the result, now and then and in the end."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from chaos.storm import Chaos
from soak.checks import Counts
from soak.program import Given, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chaos; returns 0 if every answer was right and all has healed."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--rest", type=float, default=1.5, help="seconds between two faults, in the mean")
    given = parse(parser, arguments, kills=100, disk_bytes=512 << 20)
    rest = given.options.rest
    chaos = Chaos(given.folder, given.home, seed=given.seed, can_fill=given.can_fill, kills=given.kills, rest_seconds=rest)
    has_ended = False
    try:
        chaos.run(lambda: _write(given, chaos, has_ended=False))
        has_ended = True
    except AssertionError as wrong:
        chaos.wrong = chaos.wrong or [str(wrong)]  # the log already has all wrong answers
    chaos.dump(given.folder)
    print(_write(given, chaos, has_ended=has_ended))
    return 1 if chaos.wrong else 0


def _write(given: Given, chaos: Chaos, *, has_ended: bool) -> str:
    found: dict[str, Any] = {
        **given.facts(),
        "command": f"python -m chaos --kills {given.kills} --seed {given.seed} --rest {given.options.rest:g}",
        "has_ended": has_ended,
        "kills": chaos.storm.kills.total(),
        "killed": dict(chaos.storm.kills),
        "paused": dict(chaos.storm.pauses),
        "disk_can_be_filled": given.can_fill,
        "disk_filled": chaos.storm.full,
        "faults": dict(chaos.faults),
        "no_clock_jumps_because": chaos.town.clocks.missing or None,
        "network": chaos.town.network.done,
        "state": chaos.town.state,
        "batches": len(chaos.run_of_job.planned),
        **{name: getattr(chaos.counts, name) for name in Counts.__slots__},
        "records_sent": chaos.sent,
        "could_not_go_on": dict(chaos.exits),
        "healed_seconds": chaos.healed,
        "wrong": chaos.wrong[:20],
    }
    text = json.dumps(found, indent=1)
    if given.result is not None:
        given.result.write_text(text + "\n")
    return text


if __name__ == "__main__":
    sys.exit(main())
