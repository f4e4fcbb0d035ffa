"""The process in which a program runs: `python -m millpond.operate.run.child FILE REPORT ARGUMENTS…`.

1. The program runs as `python FILE ARGUMENTS…` would run it.
2. When it has come to its end, the process waits for the queries that still run.
3. Ctrl-C and SIGTERM, and the end of the process that began this one, end the queries first.
4. An error goes into REPORT, with its causes.
5. After an error the process ends, whatever threads the program has left.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from millpond.errors import MillpondError
from millpond.operate.run.ended import MOST_LETTERS, Failure
from millpond.settings import RunSettings
from millpond.spark.causes import causes_of, line_of
from millpond.spark.causes import failure_of as query_failure
from millpond.spark.supervised import orders, refuse_other_queries, watch_parent

_LOOK_SECONDS = 0.5


class _Asked(BaseException):
    """Somebody has asked this process to end."""


def main(program: str, report: str, arguments: list[str]) -> int:
    """Run the program; returns the exit code, as a shell gives it: 128 and more for a signal."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise _Asked

    signal.signal(signal.SIGTERM, end)
    watch_parent(_end_all)
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).resolve().parent)
    code = 0
    try:
        code = _run(program)
    except (_Asked, KeyboardInterrupt) as asked:
        code = 128 + (signal.SIGTERM if isinstance(asked, _Asked) else signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - it is written down
        code = 1
        with suppress(Exception):  # an error whose text can't be made, a folder that is gone
            traceback.print_exc()
            target = Path(report)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(msgspec.json.encode(failure_of(error)))  # 4
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _stop()  # 3
    return code


def _end_all() -> None:
    """End this process; if it doesn't end, with all that it has started."""
    deadline = time.monotonic() + RunSettings().end_seconds
    while time.monotonic() < deadline:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def _run(program: str) -> int:
    if orders().pond is not None:
        refuse_other_queries()
    code: Any = None
    try:
        runpy.run_path(program, run_name="__main__")  # 1
    except SystemExit as asked:
        code = asked.code
    if code is None or code == 0:
        _wait()  # 2
        return 0
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        return 1
    return code


def _wait() -> None:
    """Wait for the end of all queries.  Raises the error of the first one that fails, or has failed unseen."""
    if "pyspark" not in sys.modules:
        return
    from millpond.spark.job import unseen_jobs

    known: dict[str, Any] = {}
    while True:
        for job in unseen_jobs():
            if not job.query.isActive:
                job.wait_for_end()  # raises its error
        known |= {str(query.runId): query for query in _queries()}
        for run, query in list(known.items()):
            if not query.isActive:
                if (failure := query_failure(query)) is not None and not _is_job(query):
                    raise failure
                del known[run]
        if not known and not any(job.query.isActive for job in unseen_jobs()):
            return
        time.sleep(_LOOK_SECONDS)


def _is_job(query: Any) -> bool:
    """Whether `millpond.start` has started it: then the job tells its error."""
    from millpond.spark.job import is_known

    return is_known(query)


def _queries() -> Iterator[Any]:
    """The queries of the program's session that run."""
    session = _session()
    if session is not None:
        yield from session.streams.active


def _session() -> Any:
    """The session of the program; None if it has none any more."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return None if session is None or session._sc._jsc is None else session


def _stop() -> None:
    """End all queries and the session, as far as that is possible."""
    if "pyspark" not in sys.modules:
        return
    from millpond.spark.job import started_jobs

    for job in started_jobs():
        try:
            job.stop()
        except Exception as broken:  # noqa: BLE001 - the next one must be stopped all the same
            print(f"millpond: stopping {job.name} failed: {broken}", file=sys.stderr)
    try:
        for query in _queries():
            query.stop()
        session = _session()
        if session is not None:
            session.stop()
    except Exception as broken:  # noqa: BLE001 - the JVM may have ended
        print(f"millpond: stopping Spark failed: {broken}", file=sys.stderr)


def failure_of(error: BaseException) -> Failure:
    """What is written down of an error."""
    causes = causes_of(error)
    lines = [line for _, text in causes if (line := line_of(text))]
    trace = "".join(traceback.format_exception(error))[-MOST_LETTERS:]
    ours: BaseException | None = error
    while ours is not None and not isinstance(ours, MillpondError):
        ours = ours.__cause__
    return Failure(
        names=tuple(_text(name) for name, _ in causes),
        message=_text(lines[-1]) if lines else "",
        trace=_text(trace),
        hint=_text(ours.hint) if isinstance(ours, MillpondError) else "",
        job=getattr(error, "millpond_job", None),
    )


def _text(text: str) -> str:
    """In UTF-8; what can't be written so becomes escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    exit_code = main(sys.argv[1], sys.argv[2], sys.argv[3:])
    if exit_code:  # 5
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)
