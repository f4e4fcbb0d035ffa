"""`millpond demo`: the main job on a log or on generated visits, with reads of its state while it runs.

Jobs and reader share this process only so that one command is enough.  The reader follows the
checkpoints in the pond as any other process would, and `millpond get` from a second terminal does
the same.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

import millpond
from millpond.cli.demo_view import Screen, look, show_end
from millpond.cli.terminal import say
from millpond.errors import RequestError, importing_pyspark
from millpond.settings import home

if TYPE_CHECKING:
    from millpond.signals import SignalEvent
    from millpond.spark.job import Job
    from millpond.tables.pond import Pond

_LOOK_SECONDS = 0.5
# Enough for a dozen batches of generated visits, which take less than a minute.
_ONCE_ROWS = 36_000
_RATE = 1000.0
# A batch per second shows growth, and doesn't ask an idle source a hundred times a second.
_TRIGGER = "1 second"
_CATCH_UP_SECONDS = 120.0


@click.command()
@click.option("--log", "log", metavar="FILE", help="An access log: TSV, NCSA common or combined, plain or gzip; a folder or glob.")
@click.option("--pond", "pond_dir", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Keep the pond here.")
@click.option("--once", is_flag=True, help="Read all input, then end.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End so many seconds after the queries have started.")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), help="Replay the log at this multiple of real time.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Generated visits per second.  [default: 1000]")
@click.option("--rows", type=click.IntRange(min=1), help="Generate this many visits.  [default: no end; with --once 36000]")
def demo(
    log: str | None,
    pond_dir: Path | None,
    once: bool,
    seconds: float | None,
    speed: float | None,
    rate: float | None,
    rows: int | None,
) -> None:
    """Run the page-view job on a log, or on generated visits, and ask its state while it runs.

    Five streaming queries count hits of pages by time, visitors, hosts and unreadable lines.  Without
    --once or --seconds it runs until Ctrl-C; a log that grows is followed.  With --pond a second call
    continues where the first one ended, and other commands read the same pond meanwhile.

    \b
    Examples:
      millpond demo
      millpond demo --log access.log.gz --once
      millpond demo --log access.log --speed 60 --pond ./pond
      millpond total ./pond page_views page=/index.html
    """
    _refuse(once and seconds is not None, "--once and --seconds exclude each other", "Give one of them.")
    _refuse(once and speed is not None, "--once reads as fast as possible, --speed doesn't", "Give one of them.")
    _refuse(log is None and speed is not None, "--speed replays a log, but none is given", "Name it with --log.")
    _refuse(log is not None and (rate or rows) is not None, "--rate and --rows are for generated visits", "Leave out --log.")
    with importing_pyspark():
        from millpond.demo.run import Input, check_jobs, running_main_job
        from millpond.signals import stop_signals
    if log is not None:
        from millpond.spark.accesslog.files import find_logs

        find_logs(log)
        source = Input(log=log, speed=speed)
    else:
        source = Input(rows=rows or (_ONCE_ROWS if once else None), rows_per_second=rate or (None if once else _RATE))
    with _folders(pond_dir) as (pond_path, replica_dir, spark_log), stop_signals() as early:
        say("Starting Spark …")
        trigger = "available-now" if once else _TRIGGER
        with running_main_job(source, pond=pond_path, trigger=trigger, spark_log=spark_log) as jobs, stop_signals() as ending:
            if early.is_set():
                return
            deadline = None if seconds is None else time.monotonic() + seconds  # Spark's start doesn't count
            with millpond.open(pond_path, replica_dir=replica_dir, wait_seconds=0) as pond:
                title = f"{log or 'generated visits'} -> {pond_path}"
                say(f"{title} (Ctrl-C ends)")
                _watch(pond, jobs, ending, deadline=deadline, title=title, check=lambda: check_jobs(jobs, spark_log=spark_log))


def _watch(
    pond: Pond, jobs: list[Job], ending: SignalEvent, *, deadline: float | None, title: str, check: Callable[[], bool]
) -> None:
    """Read the tables until the jobs end, the time is over, or somebody stops; then show the last answers."""
    with Screen(title) as screen:
        while check() and not ending.is_set() and (deadline is None or time.monotonic() < deadline):
            screen.show(look(pond))
            ending.wait(_LOOK_SECONDS)
    ended = not any(job.query.isActive for job in jobs)
    if ending.is_set():
        say("Stopping …")
    else:
        pond.catch_up(_CATCH_UP_SECONDS)
    show_end(look(pond))
    if ended:
        say("All input has been read.")


@contextmanager
def _folders(pond_dir: Path | None) -> Iterator[tuple[Path, Path, Path]]:
    """Pond, replica folder and Spark's log; temporary ones are removed, but not the log of a failed run."""
    scratch = Path(tempfile.mkdtemp(prefix="millpond-demo-"))
    try:
        yield pond_dir or scratch / "pond", home() if pond_dir else scratch / "replica", scratch / "spark.log"
    except BaseException:
        for entry in scratch.iterdir():
            if entry.name != "spark.log":
                shutil.rmtree(entry, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def _refuse(wrong: bool, message: str, hint: str) -> None:
    if wrong:
        raise RequestError("INVALID_REQUEST", f"{message}.", hint=hint)
