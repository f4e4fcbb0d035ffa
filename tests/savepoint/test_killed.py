"""`kill -9` at any step of a command that makes a checkpoint or a savepoint, or that deletes from an archive.

Afterwards the old or the new is whole, nothing half done is taken for whole, and the same command
succeeds, after what the error's hint names.  Creating, rescaling and rolling back are beside their
other tests.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from live_jobs.buffer import write_waiting_rows
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.savepoint.archive.archiver import Archiver
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.definition.operator_name import parse_entry
from millpond.storage import open_storage
from millpond.tables.repair import plan_repair
from savepoint.changed import open_window, plan_edited, plan_evolved, plan_redistributed
from savepoint.killed import run_killed
from savepoint.test_golden_cells import rows_of
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import IS_LONG

pytestmark = pytest.mark.long

WAITING = "rows that wait"
PLANS: dict[str, Callable[..., Any]] = {"evolve": plan_evolved, "edit": plan_edited, "redistribute": plan_redistributed}


def points(steps: int, seed: int) -> list[int]:
    """At which steps to kill: a few, of which half are near the end."""
    draw, few, last = random.Random(seed), 7 if IS_LONG else 3, steps - 11
    return sorted({*draw.sample(range(1, last), few), *draw.sample(range(last, steps), few)})


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(call: Callable[[], object]) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        call()
    return caught.value


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """A job in a checkpoint of its own, with three batches."""
    job = WrittenCheckpoint(tmp_path / "job")
    for batch in range(3):
        job.plan([((f"k{n}",), n + batch) for n in range(batch, 20)], snapshot=False)
        job.commit()
    return job


def checkpoint_of(request: pytest.FixtureRequest, cell: str | None) -> Path:
    """The checkpoint of a golden cell; that of `job`; or one that Spark writes now, with rows that wait in shards."""
    if cell == WAITING:
        return write_waiting_rows(request.getfixturevalue("spark"), request.getfixturevalue("tmp_path"))
    return Path(request.getfixturevalue("job").path if cell is None else request.getfixturevalue("golden")(cell).checkpoint)


@pytest.mark.parametrize(
    ("command", "cell"),
    [
        ("evolve", None),
        ("edit", "counts-rocksdb-changelog"),
        *(pytest.param("edit", cell) for cell in (None, "counts-rocksdb-format2")),
        pytest.param("redistribute", WAITING, marks=[pytest.mark.long, pytest.mark.spark]),
    ],
)
def test_a_new_savepoint_is_whole_or_incomplete(request: pytest.FixtureRequest, command: str, cell: str | None) -> None:
    place = checkpoint_of(request, cell)
    first = plan_savepoint(place, "first").run()
    before, batch = files_of(Path(first.storage.local_path() or "")), first.manifest.batch
    folder = place.with_name(f"{place.name}.millpond") / "savepoints"

    def rows(name: str) -> dict[str, Any]:
        return rows_of(folder / name / "checkpoint", batch)

    steps = run_killed(0, place, command, "first", "undisturbed")
    expected = rows("undisturbed")
    assert expected != rows("first")
    ends = set()
    for point in points(steps, 3):
        run_killed(point, place, command, "first", "new")
        assert files_of(folder / "first") == before
        there = list_savepoints(place)
        assert not there.broken
        if there.incomplete:
            ends.add("incomplete")
            assert there.incomplete == ["new"]
            assert refusal(lambda: open_savepoint(place, "new")).condition == "SAVEPOINT_INCOMPLETE"
            refused = refusal(lambda: PLANS[command](place, "first", "new"))
            assert refused.condition == "SAVEPOINT_INCOMPLETE"
            assert "millpond savepoint delete … new" in str(refused.hint)
            plan_delete_savepoint(place, "new").run()
        elif "new" in [found.manifest.name for found in there.found]:
            ends.add("whole")
            assert refusal(lambda: PLANS[command](place, "first", "new")).condition == "SAVEPOINT_EXISTS"
            assert verify_savepoint(open_savepoint(place, "new")).problems == ()
            assert rows("new") == expected
            plan_delete_savepoint(place, "new").run()
        else:
            ends.add("nothing")
        made = PLANS[command](place, "first", "new").run()
        assert verify_savepoint(made).problems == ()
        assert rows("new") == expected
        plan_delete_savepoint(place, "new").run()
        assert sorted(os.listdir(folder)) == ["first", "undisturbed"]
    assert "incomplete" in ends


def test_an_exported_file_is_the_old_or_the_new(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """What lies beside it has a temporary name, is not read, and goes with the next export to this file."""
    first, out = plan_savepoint(job.path, "first").run(), tmp_path / "out"
    job.plan([(("more",), 1)], snapshot=True)
    job.commit()
    plan_savepoint(job.path, "second").run()
    before = files_of(tmp_path / "job.millpond")
    file = out / "one.tar"

    def old() -> bytes:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        millpond.export_savepoint(first, file)
        return file.read_bytes()

    older = old()
    steps = run_killed(0, job.path, "export", "second", str(file))
    newer, ends = file.read_bytes(), set()
    assert newer != older
    for point in points(steps, 9):
        old()
        assert run_killed(point, job.path, "export", "second", str(file)) < 0
        there = files_of(out)
        found = there.pop("one.tar")
        assert found in (older, newer)
        ends.add("new" if found == newer else "old")
        assert all(name.startswith(".one.tar.") and name.endswith(".tmp") for name in there)
        assert files_of(tmp_path / "job.millpond") == before
        run_killed(0, job.path, "export", "second", str(file))
        assert files_of(out) == {"one.tar": newer}
    assert "old" in ends


def test_an_export_leaves_a_living_one_alone(job: WrittenCheckpoint, tmp_path: Path) -> None:
    first = plan_savepoint(job.path, "first").run()
    living, dead, other = (tmp_path / name for name in (".one.tar.1.tmp", ".one.tar.2.tmp", ".two.tar.3.tmp"))
    for file in (living, dead, other):
        file.write_bytes(b"half of it")
    with open(living, "rb") as writes:
        fcntl.flock(writes, fcntl.LOCK_EX)
        millpond.export_savepoint(first, tmp_path / "one.tar")
    assert [file.exists() for file in (living, dead, other)] == [True, False, True]


def test_an_imported_savepoint_is_whole_or_incomplete(job: WrittenCheckpoint, tmp_path: Path) -> None:
    first, file, place = plan_savepoint(job.path, "first").run(), tmp_path / "one.tar", tmp_path / "place"
    millpond.export_savepoint(first, file)
    content, ends = file.read_bytes(), set()
    place.mkdir()

    def again() -> Savepoint:
        return millpond.import_savepoint(place, file, name="new")

    def folder() -> Path:
        return Path(open_savepoint(place, "new").storage.local_path() or "")

    again()  # the place's own folders are there from now on
    plan_delete_savepoint(place, "new").run()
    steps = run_killed(0, place, "import", str(file), "new")
    expected = files_of(folder() / "checkpoint")
    assert expected == files_of(Path(first.storage.local_path() or "") / "checkpoint")
    for point in points(steps, 13):
        plan_delete_savepoint(place, "new").run()
        assert run_killed(point, place, "import", str(file), "new") < 0
        assert file.read_bytes() == content
        there = list_savepoints(place)
        assert not there.broken
        if there.incomplete:
            ends.add("incomplete")
            assert not there.found
            assert refusal(lambda: open_savepoint(place, "new")).condition == "SAVEPOINT_INCOMPLETE"
            refused = refusal(again)
            assert refused.condition == "SAVEPOINT_INCOMPLETE"
            assert "millpond savepoint delete … new" in str(refused.hint)
            plan_delete_savepoint(place, "new").run()
        if there.found:
            ends.add("whole")
            assert refusal(again).condition == "SAVEPOINT_EXISTS"
        else:
            again()
        assert verify_savepoint(open_savepoint(place, "new")).problems == ()
        assert files_of(folder() / "checkpoint") == expected
        assert rows_of(folder() / "checkpoint", first.manifest.batch) == rows_of(job.path, first.manifest.batch)
    assert "incomplete" in ends


@pytest.mark.parametrize(
    ("command", "cell"),
    [
        ("repair", "counts-hdfs"),
        ("restore", "counts-rocksdb-changelog"),
        pytest.param("repair", "counts-rocksdb-changelog"),
        pytest.param("restore", "counts-hdfs"),
    ],
)
def test_a_new_checkpoint_is_whole_or_refused(golden: Callable, tmp_path: Path, command: str, cell: str) -> None:
    """Spark doesn't start from a folder without `metadata`."""
    found = golden(cell)
    checkpoint, target = found.checkpoint, tmp_path / "target"
    create_beside(checkpoint).write_definition(parse_entry(found.read("definition")))
    batch = plan_savepoint(checkpoint, "first").run().manifest.batch
    expected = rows_of(checkpoint, batch)
    if command == "repair":
        (checkpoint / f"commits/{batch}").write_bytes(b"")  # the batch before it is the newest that is whole
        batch -= 1
        expected = rows_of(checkpoint, batch)

    def plan() -> Any:
        return plan_repair(checkpoint, to=target) if command == "repair" else plan_restore(checkpoint, "first", target)

    arguments = [*(["first"] if command == "restore" else []), str(target)]
    steps = run_killed(0, checkpoint, command, *arguments)
    table = millpond.read_arrow(target, "counts").to_pylist()
    undisturbed = sorted(files_of(target))
    before, ends = files_of(checkpoint), set()
    for point in points(steps, 5):
        remove(target)
        run_killed(point, checkpoint, command, *arguments)
        assert files_of(checkpoint) == before
        is_whole = (target / "metadata").exists()
        if is_whole:
            ends.add("whole")
        elif target.exists() and any(target.iterdir()):
            ends.add("incomplete")
            error = refusal(lambda: plan().run())
            assert error.condition == "TARGET_NOT_EMPTY"
            assert "was killed" in error.message
            assert "remove that folder" in str(error.hint)
            shutil.rmtree(target)
        if not is_whole:
            plan().run()
        assert diagnose(open_storage(target)).is_sound
        assert rows_of(target, batch) == expected
        assert sorted(files_of(target).keys() - {".restoring"}) == undisturbed
        assert millpond.read_arrow(target, "counts").to_pylist() == table
    assert "incomplete" in ends


def remove(target: Path) -> None:
    """A new checkpoint, and what lies beside it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(f"{target}.millpond", ignore_errors=True)


def test_an_archive_from_which_batches_go_has_all_others(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Two generations; of the older one all goes, of the newer one a part.  What is killed is finished by the next run."""
    archiver, expected = Archiver(job.path, tmp_path / "archive"), {}
    for batch in range(3, 12):
        job.plan([(f"k{batch}", batch), ("k5", None if batch == 8 else batch)], snapshot=batch % 3 == 0)
        job.commit()
        if batch in (6, 7):  # nobody copies them, and then the first one is gone
            continue
        if batch == 8:
            job.clean(keep=2)
        while archiver.step():
            pass
    for found in archiver.archive.batches()[-3:]:
        expected[found.name] = rows_of(job.path, found.batch)
    archive = find_archive(tmp_path / "archive")
    assert archive is not None
    every = archive.batches()
    assert {found.generation for found in every} == {1, 2}
    keep, now = "10", str(every[-3].committed_ms + 10_000)

    def again() -> Path:
        """A copy that nobody has touched."""
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return Path(shutil.copytree(tmp_path / "archive", tmp_path / "copy"))

    steps = run_killed(0, again(), "expire", keep, now)
    stays = sorted(files_of(tmp_path / "copy"))
    ends = set()
    for point in points(steps, 7):
        place = again()
        assert run_killed(point, place, "expire", keep, now) < 0
        left = find_archive(place)
        assert left is not None
        assert left.batches()[-3:] == every[-3:]
        ends.add(len(left.batches()))
        for found in left.batches():
            savepoint = left.savepoint(found)
            assert verify_savepoint(savepoint).problems == ()
            if found in every[-3:]:
                plan_restore(place, found.name, tmp_path / "restored").run()
                assert rows_of(tmp_path / "restored", found.batch) == expected[found.name]
                remove(tmp_path / "restored")
        open_window(place, float(keep)).expire(int(now))
        assert sorted(name for name in files_of(place) if not name.endswith(".tmp")) == stays
    assert len(ends) > 1
