"""`millpond run`: keep a program running whose jobs `millpond.start` starts."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from millpond.cli.terminal import say
from millpond.errors import SetupError
from millpond.operate.run.ended import Ended
from millpond.operate.run.runner import Runner, Status
from millpond.operate.units import seconds_text
from millpond.settings import RunSettings
from millpond.signals import stop_signals
from millpond.spark.supervised import Orders


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--standby", is_flag=True, help="Wait while the jobs run elsewhere, and take over when they are gone.")
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=RunSettings().most_idle_runs,
    show_default=True,
    metavar="N",
    help="End after so many runs in a row that committed no batch.",
)
def run(program: Path, arguments: tuple[str, ...], standby: bool, tries: int) -> None:
    """Keep a Python program running, and start it again when it fails.

    The program starts its jobs with millpond.start, and may end then: its process waits for them.
    Options stand before the program; what follows is the program's own.

    \b
    Examples:
      millpond run pipeline.py
      millpond run --standby pipeline.py --pond s3://bucket/pond
    """
    runner = Runner(program, arguments, orders=Orders(is_standby=standby), settings=RunSettings(most_idle_runs=tries), say=_tell)
    found: list[Status] = []
    # The signals set an event of the main thread, which the runner's waits don't see.
    with stop_signals() as ending:
        working = threading.Thread(target=lambda: found.append(runner.run()), name="millpond-run")
        working.start()
        while working.is_alive():
            if ending.wait(0.2):
                runner.stop()
                working.join()
    if not found:
        raise SetupError("INTERNAL_ERROR", "The runner has ended by an error.", hint="Report this.")
    last = found[0].last
    if last is not None and not last.is_good and not ending.is_set():
        raise SetupError(
            "JOB_FAILED", f"{program} isn't started again: {found[0].why_final}. {last.describe()}", hint=last.advice.hint
        )


def _tell(status: Status) -> None:
    if status.state == "running" and status.runs > 1:
        say(f"run {status.runs} begins")
    if status.state == "pausing" and status.last is not None:
        say(f"run {status.runs} failed: {_why(status.last)}")
        say(f"the next one begins in {seconds_text(status.pause_seconds)}")


def _why(last: Ended) -> str:
    return f"{last.describe()} {last.advice.hint}"
