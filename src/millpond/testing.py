"""Tests that a backend of replicas must pass, for pytest: subclass `BackendContract`.

from millpond.testing import BackendContract
from my_package import open_backend

class TestMyBackend(BackendContract):
    def open(self, path):
        return open_backend(path, self.settings)
"""

from __future__ import annotations

import gc
import random
import shutil
import threading
from pathlib import Path

from millpond.backends import Backend, ReplicaError, ReplicaRecord, ReplicaSettings, Snapshot, StoresRecord, WriteBatch
from millpond.replica.backends.table_names import table_names
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic

_EDGES = [b"", b"\x00", b"\x00\x00", b"\x00\x01", b"\x00\xff", b"\x01", b"a", b"a\x00", b"a\x00\x00b", b"ab", b"\xff", b"\xff\xff"]
_EDGES += [b"\xff" * 500]
_ROUNDS, _MOST = 150, 12


class BackendContract:
    """The promises of `millpond.backends.Backend`."""

    settings = ReplicaSettings(map_size_bytes=1 << 28)

    def open(self, path: Path) -> Backend:
        """Open the folder, which exists; the backend of an earlier call may be open no more."""
        raise NotImplementedError

    def made(self, path: Path) -> Backend:
        """A new backend with tables, and without a batch."""
        backend = self.open(path)
        backend.create(TABLES)
        backend.set_stores(stores())
        return backend

    # ------------------------------------------------------------ records

    def test_nothing_is_there_before_the_first_batch(self, tmp_path: Path) -> None:
        """`stores` is None until they are set, and a snapshot's record raises REPLICA_BUILDING until there is one."""
        backend = self.open(tmp_path)
        assert backend.stores() is None
        backend.create(TABLES)
        backend.set_stores(stores())
        assert backend.stores() == stores()
        with backend.snapshot() as snapshot:
            assert _condition(snapshot) == "REPLICA_BUILDING"
            assert snapshot.get(TABLES[0], b"a") is None
            assert list(snapshot.iterate(TABLES[0], b"")) == []

    def test_it_has_a_name_a_folder_and_a_size(self, tmp_path: Path) -> None:
        """The name is the same for all who open the folder."""
        backend = self.made(tmp_path)
        with backend.write() as write:
            write.put(TABLES[0], [(b"%06d" % n, b"x" * 100) for n in range(20_000)])
            write.set_record(record(0))
        assert (backend.name, backend.folder) == (tmp_path.name, tmp_path)
        assert backend.size_bytes() > 100_000
        assert backend.check_readers() >= 0

    def test_rows_and_record_of_a_batch_appear_together(self, tmp_path: Path) -> None:
        """A snapshot has the rows of its record, and keeps them, whatever is written later."""
        backend = self.made(tmp_path)
        snapshots: list[Snapshot] = []
        for batch in range(5):
            with backend.write() as write:
                write.put(TABLES[0], [(b"k", b"%d" % batch), (b"n%d" % batch, b"")])
                write.delete(TABLES[0], [b"n%d" % (batch - 2)])
                write.set_record(record(batch))
            snapshots.append(backend.snapshot())
        for batch, snapshot in enumerate(snapshots):
            assert snapshot.record() == record(batch)
            assert snapshot.get(TABLES[0], b"k") == b"%d" % batch
            names = [b"n%d" % n for n in range(max(0, batch - 1), batch + 1)]
            assert [key for key, _ in snapshot.iterate(TABLES[0], b"l")] == names
            assert [key for key, _ in snapshot.iterate_back(TABLES[0], None)] == [*reversed(names), b"k"]
            assert snapshot.count(TABLES[0]) == len(names) + 1
        for snapshot in snapshots:
            snapshot.__exit__()

    def test_after_an_error_nothing_of_a_batch_is_there(self, tmp_path: Path) -> None:
        """A write is all or nothing."""
        backend = self.made(tmp_path)
        with backend.write() as write:
            write.put(TABLES[0], [(b"a", b"1"), (b"b", b"1")])
            write.set_record(record(0))
        try:
            with backend.write() as write:
                write.put(TABLES[0], [(b"a", b"2"), (b"c", b"2")])
                write.delete(TABLES[0], [b"b"])
                write.set_record(record(1))
                raise LookupError
        except LookupError:
            pass
        with backend.snapshot() as snapshot:
            assert snapshot.record() == record(0)
            assert list(snapshot.iterate(TABLES[0], b"")) == [(b"a", b"1"), (b"b", b"1")]

    def test_what_was_written_is_there_when_it_is_opened_again(self, tmp_path: Path) -> None:
        """Stores, record, rows and counts outlive the object."""
        backend = self.made(tmp_path)
        with backend.write() as write:
            write.append(TABLES[2], [(b"%d" % n, b"v") for n in range(5)])
            write.set_record(record(7))
        del backend, write
        gc.collect()
        again = self.open(tmp_path)
        assert again.stores() == stores()
        with again.snapshot() as snapshot:
            assert (snapshot.record(), snapshot.count(TABLES[2])) == (record(7), 5)
            assert [value for _, value in snapshot.iterate(TABLES[2], b"1")] == [b"v"] * 4

    def test_its_folder_may_be_removed_while_it_is_open(self, tmp_path: Path) -> None:
        """As soon as a newer build serves: open snapshots are read to their end, and the object ends without an error."""
        folder = tmp_path / "removed"
        folder.mkdir()
        backend = self.made(folder)
        with backend.write() as write:
            write.put(TABLES[0], [(b"%06d" % n, b"x" * 50) for n in range(5_000)])
            write.set_record(record(0))
        with backend.snapshot() as snapshot:
            shutil.rmtree(folder)
            assert sum(1 for _ in snapshot.iterate(TABLES[0], b"")) == 5_000
        del backend, write, snapshot
        gc.collect()

    def test_a_snapshot_may_end_wherever_python_collects_garbage(self, tmp_path: Path) -> None:
        """Nobody waits for ever if that happens while another one is opened, or a batch is written."""
        backend = self.made(tmp_path)
        with backend.write() as write:
            write.set_record(record(0))

        def leave_some() -> None:
            before = gc.get_threshold()
            gc.set_threshold(1)
            try:
                for batch in range(1, 100):
                    left: list[object] = [backend.snapshot()]
                    left.append(left)
                    del left
                    with backend.snapshot() as snapshot:
                        snapshot.record()
                    with backend.write() as write:
                        write.put(TABLES[0], [(b"k", b"v")])
                        write.set_record(record(batch))
            finally:
                gc.set_threshold(*before)

        thread = threading.Thread(target=leave_some, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    # ------------------------------------------------------------ rows

    def test_random_batches_read_as_sorted_dicts(self, tmp_path: Path) -> None:
        """Puts, appends and deletes, read inside the batch, and by snapshots that stay open for some batches."""
        draw, backend = random.Random(7), self.made(tmp_path)  # noqa: S311 - no secret
        now: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}
        opened: list[tuple[Snapshot, dict[str, dict[bytes, bytes]], int]] = []
        for batch in range(_ROUNDS):
            with backend.write() as write:
                for _ in range(draw.randrange(1, 5)):
                    self._change(draw, write, now)
                write.set_record(record(batch))
            opened.append((backend.snapshot(), {table: dict(rows) for table, rows in now.items()}, batch))
            for snapshot, rows, of in draw.sample(opened, min(2, len(opened))):
                assert snapshot.record().batch == of
                self._compare(draw, snapshot, rows)
            if len(opened) > _MOST:
                opened.pop(draw.randrange(len(opened)))[0].__exit__()
        for snapshot, rows, _ in opened:
            self._compare(draw, snapshot, rows)
            snapshot.__exit__()

    def test_readers_in_other_threads_see_whole_batches(self, tmp_path: Path) -> None:
        """While one thread writes, others read."""
        backend, raised, ended = self.made(tmp_path), list[BaseException](), threading.Event()
        keys = [b"k%d" % n for n in range(20)]
        with backend.write() as write:
            write.put(TABLES[0], [(key, b"0") for key in keys])
            write.set_record(record(0))

        def read() -> None:
            try:
                while not ended.is_set():
                    with backend.snapshot() as snapshot:
                        value = b"%d" % snapshot.record().batch
                        assert all(snapshot.get(TABLES[0], key) == value for key in keys)
                        assert {row for _, row in snapshot.iterate(TABLES[0], b"")} == {value}
            except BaseException as error:  # noqa: BLE001 - raised below
                raised.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for batch in range(1, 60):
            with backend.write() as write:
                write.put(TABLES[0], [(key, b"%d" % batch) for key in keys])
                write.set_record(record(batch))
        ended.set()
        for thread in threads:
            thread.join()
        assert raised == []

    def _change(self, draw: random.Random, write: WriteBatch, now: dict[str, dict[bytes, bytes]]) -> None:
        table = draw.choice(TABLES)
        rows, keys = now[table], [self._key(draw) for _ in range(draw.randrange(1, 8))]
        kind = draw.choice(["put", "put", "delete", "append"])
        if kind == "put":
            items = [(key, draw.randbytes(draw.choice([0, 1, 9, 3000]))) for key in keys]
            write.put(table, iter(items))
            rows.update(items)
        elif kind == "delete":
            keys += draw.sample(sorted(rows), min(2, len(rows)))
            write.delete(table, iter(keys))
            for key in keys:
                rows.pop(key, None)
        else:
            highest = max(rows, default=b"")
            items = [(highest + b"%03d" % n, b"appended") for n in range(1, 4)] if len(highest) < 480 else []
            write.append(table, iter(items))
            rows.update(items)
        for key in keys:
            assert write.get(table, key) == rows.get(key)
        start = self._key(draw)
        found = list(write.iterate(table, start))
        assert found == sorted(item for item in rows.items() if item[0] >= start)

    def _compare(self, draw: random.Random, snapshot: Snapshot, content: dict[str, dict[bytes, bytes]]) -> None:
        for table, rows in content.items():
            start = self._key(draw)
            assert snapshot.count(table) == len(rows)
            assert list(snapshot.iterate(table, b"")) == sorted(rows.items())
            assert list(snapshot.iterate(table, start)) == sorted(item for item in rows.items() if item[0] >= start)
            assert list(snapshot.iterate_back(table, None)) == sorted(rows.items(), reverse=True)
            below = sorted((item for item in rows.items() if item[0] < start), reverse=True)
            assert list(snapshot.iterate_back(table, start)) == below
            for key in (start, *draw.sample(sorted(rows), min(3, len(rows)))):
                assert snapshot.get(table, key) == rows.get(key)

    def _key(self, draw: random.Random) -> bytes:
        """A key of 1 to 511 bytes, often one of few."""
        if draw.random() < 0.7:
            return draw.choice(_EDGES[1:]) + draw.choice([b"", b"", b"x"])
        return draw.randbytes(draw.randrange(1, 40))


def _condition(snapshot: Snapshot) -> str:
    """The condition of the error in place of a record."""
    try:
        snapshot.record()
    except ReplicaError as error:
        return error.condition
    return "none"


def record(batch: int) -> ReplicaRecord:
    """A replica's record after a batch."""
    return ReplicaRecord(
        batch=batch,
        offsets={"0": {"views": {"0": batch * 10}}},
        watermark_ms=None,
        planned_watermark_ms=0,
        started_ms=1_700_000_000_000 + batch,
        fingerprint=f"batch {batch}",
        commit_identity="i",
        commit_modified_ns=1,
        commit_size_bytes=2,
        partitions=2,
        provider="hdfs",
    )


def stores() -> StoresRecord:
    """The stores of a replica that has one."""
    field = Field("k", atomic("string"))
    schema = StoreSchema(
        operator=0, operator_name="stateStoreSave", store="default", index=0, single=False, key=(field,), value=(field,)
    )
    return StoresRecord(format=4, job_id="job", lineage="lineage", checkpoint="file:///checkpoint", stores=[schema], unread=[])


TABLES = table_names(stores())
