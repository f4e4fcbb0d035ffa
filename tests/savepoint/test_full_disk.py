"""A disk that is full, or becomes so at some moment of a command: a typed error, and every file is what it was.

With room, the same command then succeeds.  Erasures and diffs are beside their other tests.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.schema.definition.operator_name import parse_entry
from savepoint.killed import COMMANDS
from savepoint.test_killed import WAITING, checkpoint_of, job  # noqa: F401 - a fixture
from spark_files.golden import GOLDEN
from suite.mounts import skip_without_mounts
from suite.sizes import IS_LONG

PAGE = 4096
PAST = "a past"
TURNS = 8 if IS_LONG else 3
SMALL = 5 if IS_LONG else 2  # so many turns have room for 0, 1, 2 … pages: first writes fail one by one


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param("counts-rocksdb-changelog", marks=pytest.mark.long),
        pytest.param("counts-hdfs", marks=pytest.mark.long),
        *(pytest.param(cell, marks=[pytest.mark.long, pytest.mark.spark]) for cell in (WAITING, PAST)),
    ],
)
def test_on_a_full_disk_nothing_is_half_done(request: pytest.FixtureRequest, tmp_path: Path, cell: str) -> None:
    """The disk is a file system of 16 MiB, in a mount namespace of its own; temporary files lie there, too."""
    skip_without_mounts()
    disk = tmp_path / "disk"
    disk.mkdir()
    shell = 'mount -t tmpfs -o size=16m none "$1" && exec "$2" -m savepoint.test_full_disk "$1" "$3" "$4"'
    checkpoint = "" if cell == PAST else str(checkpoint_of(request, cell))
    definition = "" if cell in (WAITING, PAST) else (GOLDEN / cell / "definition.json").read_text()
    words = [str(disk), sys.executable, checkpoint, definition]
    own = {"PYTHONPATH": str(Path(__file__).parents[1]), "MILLPOND_HOME": str(disk / "home"), "TMPDIR": str(disk)}
    environment = {**os.environ, **own}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "sh", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {command: set(ends) for command, ends in json.loads(done.stdout.splitlines()[-1]).items()}
    allowed = {"done", "NOT_WRITABLE"}
    assert {command: ends - allowed for command, ends in found.items() if ends - allowed} == {}
    assert [command for command, ends in found.items() if "NOT_WRITABLE" not in ends] == []


def _past(disk: Path, _: str, __: str) -> dict[str, tuple[str, ...]]:
    return {"write-state": (str(disk / "past"), str(disk / "new"))}


def _waiting_rows(disk: Path, checkpoint: str, _: str) -> dict[str, tuple[str, ...]]:
    """The commands for a job whose rows wait in shards."""
    bare = str(disk / "bare")
    subprocess.run(["cp", "-r", checkpoint, bare], check=True)
    plan_savepoint(bare, "first").run()
    return {"redistribute": (bare, "first", "new")}


def _counts(disk: Path, checkpoint: str, definition: str) -> dict[str, tuple[str, ...]]:
    """The commands for a job that counts: label -> arguments."""
    pond = disk / "pond"
    folder = create_job(pond, "counts")
    subprocess.run(["cp", "-r", f"{checkpoint}/.", folder.checkpoint.removeprefix("file://")], check=True)
    folder.write_definition(parse_entry(json.loads(definition)))
    plan_savepoint(pond, "first").run()
    millpond.export_savepoint(millpond.open_savepoint(pond, "first"), disk / "first.tar")
    place = str(pond)
    broken, bare = str(disk / "broken"), str(disk / "bare")
    for copy in (broken, bare):
        subprocess.run(["cp", "-r", checkpoint, copy], check=True)
    max(Path(broken).glob("commits/[0-9]*"), key=lambda path: int(path.name)).write_bytes(b"")
    plan_savepoint(bare, "first").run()
    return {
        "create": (place, "new"),
        "edit": (place, "first", "new"),
        "restore": (place, "first", str(disk / "new")),
        "fork": (place, "first", "new"),
        "import": (place, str(disk / "first.tar"), "new"),
        "export": (place, "first", str(disk / "new.tar")),
        "repair": (broken, str(disk / "new")),
        "archive": (place, str(disk / "new")),
        "rescale beside": (bare, "3"),
        "rollback beside": (bare, "first", "none"),
        "rescale": (place, "3"),
        "rollback": (place, "first", "none"),
    }


def _main(disk: Path, checkpoint: str, definition: str) -> None:
    """Inside of the namespace: give each command a disk with ever another room; the last line says how each ended."""
    pond, some = disk / "pond", random.Random(checkpoint)
    plan = _counts if definition else _waiting_rows if checkpoint else _past
    commands = plan(disk, checkpoint, definition)
    found: dict[str, list[str]] = {}
    for label, words in commands.items():
        ends, command = found.setdefault(label, []), COMMANDS[label.split()[0]]
        for turn in range(TURNS):
            if label == "rescale":
                words = (str(pond), str(3 + turn % 2))
            run, before = command(*words), _files(disk)
            with _full(disk, PAGE * (turn if turn < SMALL else some.randrange(SMALL, 60))):
                try:
                    run()
                    ends.append("done")
                except MillpondError as error:
                    ends.append(error.condition)
                    after = _files(disk)
                    wrong = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
                    is_decided = label == "rollback" and (pond / "jobs/counts/take-over.json").exists()  # the next command ends it
                    if label != "archive" and not is_decided:  # which keeps whole batches, and says who writes
                        assert not wrong, (label, turn, wrong)
            if ends[-1] != "done":
                command(*words)()
            assert not list((pond / "jobs/counts").glob("take-over*"))
            for kept in (pond / "jobs/counts").glob("checkpoint.before-*"):
                shutil.rmtree(kept)
            if label not in ("rescale", "rollback"):
                for name in _files(disk).keys() - before.keys():
                    (disk / name).unlink()
                subprocess.run(["find", str(disk), "-name", "lease.json", "-path", "*/new*", "-delete"], check=True)
                subprocess.run(["find", str(disk), "-mindepth", "1", "-type", "d", "-empty", "-delete"], check=True)
    print(json.dumps(found))


def _files(disk: Path) -> dict[str, bytes]:
    """All files but those that say who works there."""
    return {
        str(path.relative_to(disk)): path.read_bytes()
        for path in disk.rglob("*")
        if path.is_file() and path.name not in ("lease.json", "rest") and "home" not in path.parts
    }


@contextmanager
def _full(disk: Path, room_bytes: int) -> Iterator[None]:
    """So much room is left."""
    rest = disk / "rest"
    with open(rest, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - room_bytes))
    try:
        yield
    finally:
        rest.unlink()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
