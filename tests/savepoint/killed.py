"""Runs a command until its n-th step with files, and is killed there.

A server, `python -m savepoint.killed`, has imported Millpond once; each command runs in a fork of it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

NO_EXCHANGE = "MILLPOND_TEST_NO_EXCHANGE"
"""set for a file system where two names can't be exchanged"""
IN_BUCKET = "MILLPOND_TEST_IN_BUCKET"
"""set to count what changes an object store, of which Python's audit events don't tell"""
_OURS = ("AWS_", "MILLPOND_")
_STEPS = frozenset({"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.scandir", "ctypes.dlsym"})


def run_killed(step: int, place: Path | str, *command: str) -> int:
    """Run it in a process of its own; returns how many steps it took, or -1 if it was killed.

    command:  the name of one of `COMMANDS`, and its arguments
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    own = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
    asked = {"step": step, "place": str(place), "command": command, "no_exchange": NO_EXCHANGE in os.environ, "environment": own}
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    ended, text = json.loads(server.stdout.readline())
    if ended == -signal.SIGKILL:
        return -1
    assert ended == 0, text
    return int(text)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """It ends with this process, whose end of the pipe is then closed."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "savepoint.killed"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)


def _serve() -> None:
    import millpond
    import millpond.tables.edit  # noqa: F401 - else each fork would import them

    for line in sys.stdin:
        asked = json.loads(line)
        begin, end = os.pipe()
        if (child := os.fork()) == 0:
            os.close(begin)
            _run_and_exit(asked, end)
        os.close(end)
        with open(begin) as file:
            text = file.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), text]), flush=True)


def _run_and_exit(asked: dict[str, Any], end: int) -> None:
    """The fork: it never returns."""
    code, text = 1, ""
    for name in [name for name in os.environ if name.startswith(_OURS)]:
        del os.environ[name]  # of the test that was the first to need the server
    os.environ.update(asked["environment"])
    try:
        text, code = str(_run(asked["step"], asked["place"], *asked["command"], no_exchange=asked["no_exchange"])), 0
    except BaseException:  # noqa: BLE001 - the test shows it
        text = traceback.format_exc()
    finally:
        os.write(end, text.encode())
        os._exit(code)


def _run(step: int, place: str, command: str, *arguments: str, no_exchange: bool) -> int:
    """Plan, and then run to that step."""
    from millpond.ownership import take_over

    if no_exchange:
        take_over.try_exchange = lambda _one, _other: False  # type: ignore[assignment]
    run = COMMANDS[command](place, *arguments)
    events = _STEPS
    if IN_BUCKET in os.environ:
        events = frozenset({_tell_of_requests()})
    steps = 0

    def count(event: str, _: Any) -> None:
        nonlocal steps
        if event in events:
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    run()
    return steps


def _tell_of_requests() -> str:
    """Raise an audit event before each request that changes an object store; returns its name."""
    from millpond.storage.object_store import ObjectStorage

    event, ask = "millpond.request", ObjectStorage._ask

    def audited(storage: ObjectStorage, kind: str, path: str, request: Callable[[], Any]) -> Any:
        if kind in ("put", "copy", "delete"):
            sys.audit(event)
        return ask(storage, kind, path, request)

    ObjectStorage._ask = audited  # type: ignore[method-assign]
    return event


def _create(place: str, name: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_savepoint(place, name).run


def _delete(place: str, name: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_delete_savepoint(place, name).run


def _prune(place: str, last: str) -> Callable[[], Any]:
    from millpond.savepoint.manage.prune import Keep, prune_by

    return prune_by(place, Keep(last=int(last))).run


def _fork(pond: str, savepoint: str, job: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_fork(pond, savepoint, job).run


def _diff(place: str, left: str, right: str) -> Callable[[], Any]:
    import millpond

    return functools.partial(millpond.read_diff, place, left, right)


def _rescale(pond: str, partitions: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_rescale(pond, int(partitions)).run


def _rollback(pond: str, savepoint: str, no_file_sink: str = "") -> Callable[[], Any]:
    import millpond

    return millpond.plan_rollback(pond, savepoint=savepoint, no_file_sink=no_file_sink == "none").run


def _evolve(place: str, savepoint: str, name: str) -> Callable[[], Any]:
    from savepoint.changed import plan_evolved

    return plan_evolved(place, savepoint, name).run


def _edit(place: str, savepoint: str, name: str) -> Callable[[], Any]:
    from savepoint.changed import plan_edited

    return plan_edited(place, savepoint, name).run


def _redistribute(place: str, savepoint: str, name: str) -> Callable[[], Any]:
    from savepoint.changed import plan_redistributed

    return plan_redistributed(place, savepoint, name).run


def _restore(place: str, savepoint: str, target: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_restore(place, savepoint, target).run


def _repair(checkpoint: str, target: str) -> Callable[[], Any]:
    from millpond.tables.repair import plan_repair

    return plan_repair(checkpoint, to=target).run


def _erase(place: str, table: str, column: str, value: str, archive: str, export: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_erase(
        place, table, {column: value}, archives=[archive] if archive else [], exports=[export] if export else []
    ).run


def _expire(archive: str, keep_seconds: str, now_ms: str) -> Callable[[], Any]:
    from savepoint.changed import open_window

    return functools.partial(open_window(archive, float(keep_seconds)).expire, int(now_ms))


def _write_state(folder: str, target: str) -> Callable[[], Any]:
    from live_jobs.past_queries import plan_small_past

    return plan_small_past(folder, target).run


def _export(place: str, savepoint: str, file: str) -> Callable[[], Any]:
    import millpond

    return functools.partial(millpond.export_savepoint, millpond.open_savepoint(place, savepoint), file)


def _import(place: str, file: str, name: str) -> Callable[[], Any]:
    import millpond

    return functools.partial(millpond.import_savepoint, place, file, name=name)


def _archive(place: str, archive: str) -> Callable[[], Any]:
    from millpond.savepoint.archive.archiver import Archiver

    return functools.partial(Archiver(place, archive).run, once=True)


def _cutover(pond: str, name: str, to: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_cut_over(pond, name, to=int(to)).run


def _retire(pond: str, name: str, version: str) -> Callable[[], Any]:
    import millpond

    return millpond.plan_retire(pond, name, int(version)).run


COMMANDS: dict[str, Callable[..., Callable[[], Any]]] = {
    "archive": _archive,
    "create": _create,
    "delete": _delete,
    "prune": _prune,
    "fork": _fork,
    "diff": _diff,
    "rescale": _rescale,
    "rollback": _rollback,
    "evolve": _evolve,
    "edit": _edit,
    "redistribute": _redistribute,
    "restore": _restore,
    "repair": _repair,
    "erase": _erase,
    "expire": _expire,
    "export": _export,
    "import": _import,
    "cutover": _cutover,
    "retire": _retire,
    "write-state": _write_state,
}
"""name -> what plans it, and returns what runs it"""


if __name__ == "__main__":
    _serve()
