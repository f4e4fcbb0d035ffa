"""What real Spark wrote, committed batch by batch with clean-up beneath: each archived batch has its rows, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.savepoint.archive.archiver import Archiver
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from savepoint.test_golden_cells import rows_of
from spark_files.golden import CELLS
from suite.sizes import a_few


def replay(checkpoint: Path, target: Path) -> tuple[list[int], Callable[[int], None]]:
    """The batches whose state can be read; and a function that commits one more of them in another folder.

    Each commit brings the files that Spark had written by then, and Spark's clean-up takes the old ones.
    """
    shutil.copytree(checkpoint, target, copy_function=shutil.copy)
    every = sorted(int(path.name) for path in (checkpoint / "commits").iterdir())
    shutil.rmtree(target / "commits")
    batches = []
    for number in every:
        try:
            rows_of(checkpoint, number)
            batches.append(number)
        except MillpondError:  # Spark has cleaned it up
            batches.clear()

    def commit(number: int) -> None:
        (target / "commits").mkdir(exist_ok=True)
        shutil.copy(checkpoint / f"commits/{number}", target / f"commits/.{number}.tmp")
        (target / f"commits/.{number}.tmp").rename(target / f"commits/{number}")

    return batches, commit


def clean(target: Path, committed: int) -> None:
    """Delete all state and logs that only earlier batches than this one need, as a clean-up that keeps the fewest."""
    for folder in ("offsets", "commits"):
        for path in (target / folder).iterdir():
            if int(path.name) < committed:
                path.unlink()
    for path in (target / "state").rglob("*"):
        version = path.name.partition(".")[0].partition("_")[0]
        if path.suffix in (".delta", ".changelog") and version.isdecimal() and int(version) <= committed:
            path.unlink()


@pytest.mark.parametrize("cell", a_few(CELLS, 3))
def test_every_batch_is_exact(golden: Callable, tmp_path: Path, cell: str) -> None:
    checkpoint, followed = golden(cell).checkpoint, tmp_path / "followed"
    batches, commit = replay(checkpoint, followed)
    archiver = Archiver(followed, tmp_path / "archive")
    archived = []
    for number in batches:
        commit(number)
        assert archiver.step(), number
        archived.append(number)
        if len(batches) > 2 and not any((followed / "state").rglob("*_*.changelog")):
            clean(followed, number)
        if number % 3 == 2:  # it is restarted
            archiver.stop()
            archiver = Archiver(followed, tmp_path / "archive")
        assert not archiver.step()
    archiver.stop()
    archive = find_archive(tmp_path / "archive")
    assert [(found.generation, found.batch) for found in archive.batches()] == [(1, number) for number in archived]
    for found in archive.batches():
        savepoint = archive.savepoint(found)
        assert verify_savepoint(savepoint).problems == ()
        target = tmp_path / "restored" / str(found.batch)
        plan_restore(tmp_path / "archive", f"batch-{found.batch}", target).run()
        assert rows_of(target, found.batch) == rows_of(checkpoint, found.batch)
        assert [path.name for path in (target / "commits").iterdir()] == [str(found.batch)]


def test_a_batch_copies_only_what_changed(golden: Callable, tmp_path: Path) -> None:
    """Of twelve batches each file is copied once."""
    checkpoint, followed = golden("counts-hdfs").checkpoint, tmp_path / "followed"
    batches, commit = replay(checkpoint, followed)
    archiver = Archiver(followed, tmp_path / "archive")
    for number in batches:
        commit(number)
        archiver.step()
    archiver.stop()
    files = [path for path in (tmp_path / "archive/generations/1/files").rglob("*") if path.is_file()]
    names = ["/".join(path.relative_to(tmp_path / "archive/generations/1/files").parts[1:]) for path in files]
    assert len(names) == len(set(names))
    deltas = [name for name in names if name.endswith(".delta")]
    assert len(deltas) == len(list((checkpoint / "state").rglob("*.delta")))
    assert archiver.status().size_bytes > sum(path.stat().st_size for path in files)
