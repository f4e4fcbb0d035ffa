"""`millpond drill`: restore the newest savepoints beside, start them, and measure how long that takes."""

from __future__ import annotations

import signal
from pathlib import Path

import click
import msgspec

from millpond.cli import options
from millpond.cli.terminal import say, write_json, write_line
from millpond.errors import RequestError
from millpond.operate.run.drill import run_drill
from millpond.operate.run.drills import Drill
from millpond.operate.units import seconds_text
from millpond.settings import parse_length

FAILED = 1


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--job", help="Only this job, if the program starts no other.")
@click.option("--within", default="5m", show_default=True, help="The objective: how long a job may take to be back.")
@click.option("--at-most", help="How long to wait for commits. [default: twice the objective, at least 1m]")
@click.option("--scratch", metavar="DIR|URI", help="Where the copies are made, and deleted. [default: among temporary files]")
@options.json_option
@options.pond_argument
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def drill(
    ctx: click.Context,
    job: str | None,
    within: str,
    at_most: str | None,
    scratch: str | None,
    as_json: bool,
    place: str,
    program: Path,
    arguments: tuple[str, ...],
) -> None:
    """Restore the newest savepoint of each job, start the program over the copies, and time their first commits.

    The jobs themselves go on meanwhile; the copies have no sinks.  The exit code is 1 if a job isn't
    back within the objective.  Options stand before the pond; what follows the program is its own.

    \b
    Examples:
      millpond drill ./pond pipeline.py
      millpond drill --within 2m ./pond pipeline.py --input ./events
    """
    # The copies are deleted, and the program ends, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    found = run_drill(
        place,
        program,
        arguments,
        job=job,
        within_seconds=_seconds("within", within),
        wait_seconds=None if at_most is None else _seconds("at-most", at_most),
        scratch=scratch,
        say=say,
    )
    for each in found:
        if as_json:
            write_json(msgspec.to_builtins(each))
        else:
            write_line(_line(each))
    if not all(each.is_good for each in found):
        ctx.exit(FAILED)


def _seconds(name: str, text: str) -> float:
    seconds = parse_length(name, text)
    if seconds is None or seconds <= 0:
        raise RequestError("INVALID_REQUEST", f"{name} is {text!r:.80}.", hint="Write a time like 90s, 5m or 1h.")
    return seconds


def _line(found: Drill) -> str:
    since = f"{found.savepoint}, batch {found.savepoint_batch}, {seconds_text(found.savepoint_age_seconds)} old"
    if found.recovery_seconds is None:
        return f"{found.job}: not back. {found.problem} Savepoint {since}."
    back = f"back after {seconds_text(found.recovery_seconds)}, {seconds_text(found.restore_seconds)} of it to restore"
    objective = f"objective {seconds_text(found.within_seconds)}"
    word = "" if found.is_good else "TOO LATE: " if not found.problem else f"DAMAGED: {found.problem} "
    return f"{found.job}: {word}{back}, with batch {found.batch}; {objective}. Savepoint {since}."
