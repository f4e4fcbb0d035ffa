"""An archive under any order of commits, clean-ups, kills, restarts, replaced jobs, second archivers and time."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import MillpondError
from millpond.savepoint.archive.archiver import Archiver
from millpond.savepoint.archive.layout import Archive, find_archive
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import LocalStorage
from spark_files.checkpoint import KEY, VALUE, WrittenCheckpoint
from suite.sizes import IS_LONG

_KEY, _VALUE = decoder(KEY), decoder(VALUE)


class Killed(BaseException):
    """The archiver's program ends here."""


class Mortal(LocalStorage):
    """A folder whose writer is killed before or after its nth change."""

    left: int | None = None

    def _live(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Killed

    def write(self, path: str, data: bytes) -> None:
        self._live()
        super().write(path, data)
        self._live()

    def create(self, path: str, data: bytes) -> bool:
        self._live()
        made = super().create(path, data)
        self._live()
        return made

    def take(self, source: Any, source_path: str, path: str, *, share: bool) -> bool:
        self._live()
        return super().take(source, source_path, path, share=share)

    def delete(self, path: str) -> None:
        self._live()
        super().delete(path)

    def delete_all(self, path: str = "") -> None:
        self._live()
        super().delete_all(path)


def content(savepoint: Savepoint) -> dict[str, int]:
    """The rows of a savepoint."""
    storage = savepoint.checkpoint
    batch, reader = read_batch(storage, Batch(savepoint.manifest.batch)), StateReader(storage)
    found: dict[str, int] = {}
    (store,), _ = read_stores(storage, batch.batch)
    for partition in partitions_of(batch, store):
        for kind, key, value in reader.iter_state(batch, store, partition):
            name = _KEY(key)[0]
            if kind == 0x01:
                found[name] = _VALUE(value)[0]
            else:
                found.pop(name, None)
    return found


class Run:
    """A job and its archivers; `states` is what each committed batch must have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0
        self.states: dict[tuple[str, int, int], dict[str, int]] = {}
        self.order: list[tuple[str, int, int]] = []
        self.replace()
        self.archiver: Archiver | None = None
        self.others: list[Archiver] = []
        self.keep_for: str | None = None

    def replace(self) -> None:
        if (self.folder / "ck").exists():
            shutil.rmtree(self.folder / "ck")
        self.runs += 1
        self.job = WrittenCheckpoint(self.folder / "ck", f"job-{self.runs}")
        self.job.clock = time.time_ns() // 1_000_000

    def commit(self, changes: list[tuple[str, int | None]], snapshot: bool, failed: bool) -> None:
        if failed:  # the first try wrote other content under the same names
            before = [dict(rows) for rows in self.job.state]
            self.job.plan([("failed", 1)], snapshot=False)
            self.job.state = before
        self.job.plan(changes, snapshot=snapshot)
        mark = (f"job-{self.runs}", self.job.next_batch, self.job.clock)
        self.states[mark] = self.job.content()
        self.order.append(mark)
        self.job.commit()

    def step(self, kill_after: int | None) -> None:
        if self.archiver is None:
            try:
                self.archiver = Archiver(self.folder / "ck", self.folder / "archive", keep_for=self.keep_for)
            except MillpondError as error:
                assert error.condition == "NO_CHECKPOINT"
                return
            # All changes go through one storage, which counts them.
            storage = Mortal(self.folder / "archive")
            self.archiver.archive.storage = storage
            self.archiver._expire_at = 0
        storage = self.archiver.archive.storage
        assert isinstance(storage, Mortal)
        storage.left = kill_after
        try:
            while self.archiver.step():
                pass
            if self.keep_for is not None:
                self.archiver._window.expire(time.time_ns() // 1_000_000)
        except Killed:
            self.archiver = None
        except MillpondError as error:
            assert error.condition in ("NO_COMMITTED_BATCH", "NO_CHECKPOINT", "FILE_GONE", "ARCHIVE_TAKEN"), error
            if error.condition == "ARCHIVE_TAKEN":
                self.archiver = None
        else:
            storage.left = None
            if kill_after is None and self.order and self.order[-1][0] == f"job-{self.runs}":
                newest = self.archiver.archive.newest()
                assert newest is not None
                savepoint = self.archiver.archive.savepoint(newest)
                assert self.mark(savepoint) == self.order[-1], "it doesn't have the newest batch"

    @staticmethod
    def mark(savepoint: Savepoint) -> tuple[str, int, int]:
        manifest = savepoint.manifest
        return manifest.job_id, manifest.batch, manifest.batch_started_ms

    def swap(self) -> None:
        """Another archiver takes the archive; later the first one goes on."""
        if self.archiver is not None:
            self.others.append(self.archiver)
        self.archiver = self.others.pop(0) if len(self.others) > 1 else None

    def check(self) -> None:
        archive = find_archive(self.folder / "archive")
        if archive is None:
            return
        for batch in archive.batches():
            savepoint = archive.savepoint(batch)
            assert content(savepoint) == self.states[self.mark(savepoint)], batch
            for file in savepoint.manifest.files:
                assert savepoint.checkpoint.stamp(file.path) is not None, file.path

    def check_gaps(self, archive: Archive) -> None:
        """Every batch since the first archived one of a generation is there, or named as lost."""
        lost = {generation.number: generation.lost for generation in archive.generations()}
        by_generation: dict[int, list[int]] = {}
        for batch in archive.batches():
            by_generation.setdefault(batch.generation, []).append(batch.batch)
        for number, batches in by_generation.items():
            assert batches == list(range(batches[0], batches[-1] + 1)), "a generation has a gap"
            if (gap := lost[number]) is not None:
                assert gap[1] == batches[0] - 1
                assert gap[0] <= gap[1]


keys = st.text("abc", min_size=1, max_size=4)
changes = st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(0, 99))), max_size=6)
ops = st.one_of(
    st.tuples(st.just("commit"), changes, st.booleans(), st.booleans()),
    st.tuples(st.just("commit"), changes, st.booleans(), st.booleans()),
    st.tuples(st.just("step"), st.one_of(st.none(), st.integers(1, 40))),
    st.tuples(st.just("step"), st.none()),
    st.tuples(st.just("clean"), st.integers(1, 4)),
    st.tuples(st.just("replace")),
    st.tuples(st.just("swap")),
    st.tuples(st.just("end")),
    st.tuples(st.just("keep"), st.sampled_from(["1s", "1d"])),
)


@settings(max_examples=200 if IS_LONG else 25)
@given(st.lists(ops, min_size=5, max_size=40))
def test_every_archived_batch_is_exact(order: list[Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="archive-") as folder:
        run = Run(Path(folder))
        run.commit([("a", 1)], snapshot=True, failed=False)
        for what, *details in order:
            if what == "commit":
                run.commit(*details)
            elif what == "step":
                run.step(*details)
                run.check()
            elif what == "clean":
                if run.job.next_batch:
                    run.job.clean(*details)
            elif what == "keep":
                run.keep_for, run.archiver = details[0], None
            elif what == "end":
                run.archiver = None
            else:
                getattr(run, what)()
        run.archiver = None
        run.commit([("z", 1)], snapshot=True, failed=False)
        run.step(None)
        run.check()
        archive = find_archive(run.folder / "archive")
        assert archive is not None
        run.check_gaps(archive)
        newest = archive.newest()
        assert newest is not None
        assert verify_savepoint(archive.savepoint(newest)).problems == ()


@pytest.mark.parametrize("changed", ["plan", "commit"])
def test_a_batch_that_is_run_again_is_archived_as_it_committed(tmp_path: Path, changed: str) -> None:
    """Format 1 gives the files of the first try and of the second the same names."""
    job = WrittenCheckpoint(tmp_path / "ck")
    job.plan([("a", 1)], snapshot=False)
    job.commit()
    archiver = Archiver(tmp_path / "ck", tmp_path / "archive")
    assert archiver.step()
    job.plan([("a", 2), ("b", 2)], snapshot=False)
    assert not archiver.step(), "it isn't committed"
    if changed == "plan":
        job.state = [{}, {}]
        job.plan([("a", 3)], snapshot=False)
    job.commit()
    assert archiver.step()
    newest = archiver.archive.newest()
    assert newest is not None
    assert content(archiver.archive.savepoint(newest)) == ({"a": 3} if changed == "plan" else {"a": 2, "b": 2})
