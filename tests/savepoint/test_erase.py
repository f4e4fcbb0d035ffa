"""One key erased everywhere: nothing of it is left, and all else is as it was, to the bit."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import shutil
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.catalogue import create_job, find_job
from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.partition import hashed_columns
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rocksdb.snapshot import iter_snapshot
from millpond.checkpoint.rocksdb.sst import SstFile
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import partitions_of, unpack
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.ownership.lease import take_lease
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.restore import plan_restore, restore_files
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.types import Field, atomic
from millpond.storage import open_storage
from millpond.storage.below import files_below
from millpond.tables.diff.sides import Source
from millpond.tables.erase import ErasePlan, key_hash
from savepoint.killed import IN_BUCKET, run_killed
from savepoint.test_killed import points
from servers.s3 import BUCKET, moto_server, upload, use
from spark_files.checkpoint import KEY, VALUE, WrittenCheckpoint
from spark_files.golden import CELLS, GOLDEN
from suite.mounts import skip_without_mounts
from suite.sizes import a_few
from tables.test_parts import KEYS, PART, shares, written

Row = tuple[str, bytes, bytes]
# Without a key, or without any rows; Spark's own reader can't read them either.
KEYLESS = ("keyless", "limit")
ERASABLE = [cell for cell in CELLS if not any(word in cell for word in KEYLESS)]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for member in value:
            yield from leaves(member)
    else:
        yield value


def whole(place: Path | str, number: int) -> list[tuple[Row, set[Any]]]:
    """All rows of a state, also those that only Spark needs: store, key, value; and what is in the key."""
    storage, found = open_storage(place), []
    batch = read_batch(storage, Batch(number))
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            hdfs = batch.settings.provider == "hdfs"
            state = HdfsState(storage, batch, store) if hdfs else RocksDbState(storage, batch, store)
            names = {n.to_bytes(2, "little"): name for name, n in state.numbers.items()}
            for partition in partitions_of(batch, store.files):
                for key, value in state.iter_rows(partition):
                    family = store.families[names[key[:2]] if store.has_families else store.name]
                    if hdfs:
                        columns = decoder(family.key)(key)
                    else:
                        avro = batch.settings.encoding == "avro"
                        columns = store.key_reader(family, avro=avro)(key[2:] if store.has_families else key)
                    found.append(((f"{operator.operator}/{store.name}/{partition}", key, value), set(map(repr, leaves(columns)))))
    return found


def a_key(place: Path, some: random.Random) -> tuple[str, dict[str, Any], list[Any]] | None:
    """A table, a key of one of its rows, and the stored values of this key; texts and numbers only."""
    side = Source(find_job(place, None)).open(time.time_ns() // 1_000_000)
    tables = [table for table in side.tables.values() if table.key]
    some.shuffle(tables)
    for table in tables:
        rows = millpond.read_arrow(place, table.table, expired=True).to_pylist()
        if not rows:
            continue
        (operator,) = read_operator_files(side.storage, side.batch.batch, only=table.operator)
        store = next(s for s in read_whole_stores(side.storage, operator) if s.name == table.store)
        family = store.families[table.family or store.name]
        fields, _ = hashed_columns(operator.name, family, store.families)
        names = {f.name for f in fields if f.type.kind in ("string", "long", "integer")}
        row = some.choice(rows)
        columns = [c.name for c in table.key if (c.path[-1] if c.path else c.name) in names]
        key = {name: row[name] for name in columns if row[name] is not None}
        if key:
            return table.table, key, list(key.values())
    return None


def snapshot_counts(checkpoint: Path) -> dict[str, bool]:
    """Of each of RocksDB's snapshots, whether it has as many keys as its metadata says."""
    storage, found = open_storage(checkpoint), {}
    for path in sorted(checkpoint.glob("state/**/*.zip")):
        with zipfile.ZipFile(path) as members:
            said = json.loads(members.read("metadata").partition(b"\n")[2])
        keys = sum(1 for _ in iter_snapshot(storage, str(path.parent.relative_to(checkpoint)), path.stem))
        found[str(path.relative_to(checkpoint))] = said["numKeys"] + said.get("numInternalKeys", 0) == keys
    return found


@pytest.mark.parametrize("cell", a_few(ERASABLE, 5, long=40))
def test_one_key_goes_and_all_other_rows_stay_to_the_bit(golden: Callable, tmp_path: Path, cell: str) -> None:
    """In each batch of the checkpoint, in each savepoint, and in an export."""
    checkpoint, some = golden(cell).checkpoint, random.Random(cell)
    found = a_key(checkpoint, some)
    if found is None:
        pytest.skip("no row has a key of a text or a number")
    table, key, values = found
    batches = [int(batch) for batch in committed_batches(open_storage(checkpoint))]
    states: dict[tuple[str, int], list[tuple[Row, set[Any]]]] = {}
    for number in batches:
        try:
            states["job", number] = whole(checkpoint, number)
        except MillpondError:  # Spark has cleaned it up
            assert number != batches[-1]
    saved = []
    for number in {some.choice([number for _, number in states]), batches[-1]}:
        made = plan_savepoint(checkpoint, f"at-{number}", batch=number).run()
        states[made.manifest.name, number] = whole(made.checkpoint.local_path(), number)
        saved.append(made)
    export_savepoint(saved[-1], tmp_path / "one.tar")
    operator = Source(find_job(checkpoint, None)).open(0).tables[table].operator
    plan = millpond.plan_erase(checkpoint, table, key, exports=[tmp_path / "one.tar"])
    assert plan.records > 0, plan.describe()
    counts = snapshot_counts(checkpoint)
    receipt = plan.run().data
    assert [counted for name, counted in snapshot_counts(checkpoint).items() if counts[name]] == [True] * sum(counts.values())
    assert sum(place["records"] for place in receipt["places"]) == plan.records
    marks = {repr(value) for value in values}

    def expected(name: str, number: int) -> list[Row]:
        return sorted(row for row, inside in states[name, number] if not (row[0].startswith(f"{operator}/") and marks <= inside))

    removed = 0
    for name, number in states:
        place = checkpoint if name == "job" else open_savepoint(checkpoint, name).checkpoint.local_path()
        after = sorted(row for row, _ in whole(place, number))
        assert after == expected(name, number), (name, number)
        removed += len(states[name, number]) - len(after)
    assert removed > 0
    for savepoint in list_savepoints(checkpoint).found:
        assert verify_savepoint(savepoint).problems == ()
    read = import_savepoint(tmp_path / "elsewhere", tmp_path / "one.tar")
    assert verify_savepoint(read).problems == ()
    number = read.manifest.batch
    assert sorted(row for row, _ in whole(read.checkpoint.local_path(), number)) == expected(f"at-{number}", number)
    plan_restore(checkpoint, saved[-1].manifest.name, tmp_path / "restored").run()
    again = millpond.plan_erase(checkpoint, table, key, exports=[tmp_path / "one.tar"])
    assert again.records == 0
    assert "none" in again.describe()


NAME = "ann-of-the-marker"


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """A job of a pond with four batches, a savepoint of each but the first, and an archive; a key comes, goes and comes back."""
    job = WrittenCheckpoint(Path(create_job(tmp_path / "pond", "visits").checkpoint.removeprefix("file://")))
    values: list[int | None] = [1, None, 3, 4]
    with millpond.archive(tmp_path / "pond", tmp_path / "archive") as archiver:
        for batch, value in enumerate(values):
            job.plan([((NAME,), value), ((f"k{batch}",), batch), (("k",), batch)], snapshot=batch == 2)
            job.commit()
            archiver.wait_for_batch(batch, timeout_seconds=60)
            if batch:
                plan_savepoint(tmp_path / "pond", f"at-{batch}").run()
    export_savepoint(open_savepoint(tmp_path / "pond", "at-3"), tmp_path / "at-3.tar")
    return job


TABLE = "visits.aggregate_0"


def plan(tmp_path: Path, **more: Any) -> ErasePlan:
    return millpond.plan_erase(
        tmp_path / "pond", TABLE, {"k": NAME}, archives=[tmp_path / "archive"], exports=[tmp_path / "at-3.tar"], **more
    )


def everything(tmp_path: Path, job: WrittenCheckpoint) -> dict[str, dict[str, int]]:
    """Every place -> its rows; each savepoint is verified."""
    found = {"job": rows_at(job.path)}
    name = f"read-{uuid.uuid4().hex}"
    read = import_savepoint(tmp_path / name, tmp_path / "at-3.tar")
    savepoints = list_savepoints(tmp_path / "pond").found + list_savepoints(tmp_path / "archive").found
    for n, savepoint in enumerate([read, *savepoints]):
        assert verify_savepoint(savepoint).problems == (), savepoint.manifest.name
        target = tmp_path / f"restored-{uuid.uuid4().hex}"
        restore_files(savepoint, open_storage(target), savepoint.manifest.job_id)
        found[f"{n}-{savepoint.manifest.name}"] = rows_at(target)
        shutil.rmtree(target)
    shutil.rmtree(tmp_path / f"{name}.millpond")
    return found


def rows_at(place: Path) -> dict[str, int]:
    storage = open_storage(place)
    number = committed_batches(storage)[-1]
    read_key, read_value = decoder(KEY), decoder(VALUE)
    return {read_key(key)[0]: read_value(value)[0] for (_, key, value), _ in whole(place, number)}


def bytes_left(*folders: Path, name: str = NAME) -> list[str]:
    """Files that have the key's bytes, unpacked or not."""
    found = []
    for folder in folders:
        for path in [folder] if folder.is_file() else [p for p in folder.rglob("*") if p.is_file()]:
            data = path.read_bytes()
            folder = open_storage(path.parent)
            if path.suffix in (".delta", ".snapshot", ".changelog"):
                data += unpack(folder, path.name, "lz4")
            elif path.suffix == ".zip":
                with zipfile.ZipFile(path) as members:
                    data += b"".join(map(members.read, members.namelist()))
            elif path.suffix == ".sst":
                with SstFile(folder, path.name) as sst:
                    data += b"".join(part for found in sst.iter_entries() for part in (*found.keys, *found.values))
            if name.encode() in data or name in str(path):
                found.append(str(path))
    return found


@pytest.mark.long
def test_nothing_of_a_key_is_left_anywhere(job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the checkpoint, savepoints, archive and export, nor in the replica with its journals, nor in the receipt."""
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    with millpond.open(tmp_path / "pond") as pond:
        assert pond[TABLE].get(k=NAME)["v"] == 4
    before = everything(tmp_path, job)
    assert bytes_left(tmp_path / "home")
    inodes = {path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}
    shown = plan(tmp_path)
    assert f"{NAME}" in shown.describe()
    assert "other machines" in shown.describe()
    receipt = shown.run()
    expected = {place: {k: v for k, v in rows.items() if k != NAME} for place, rows in before.items()}
    assert everything(tmp_path, job) == expected
    assert bytes_left(tmp_path) == []
    with millpond.open(tmp_path / "pond") as pond:
        assert not pond[TABLE].get(k=NAME)
        assert pond[TABLE].get(k="k")["v"] == 3
    assert receipt.data["key_sha256"] == key_hash(shown.key, receipt.data["salt"])
    assert json.loads(Path(receipt.uri.removeprefix("file://")).read_text()) == receipt.data
    changed = [file for place in receipt.data["places"] for file in place["files"]]
    assert all(file["new_sha256"] and file["new_sha256"] != file["sha256"] for file in changed)
    # Files without the key are still the same ones, with all their names.
    assert len(inodes & {path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}) > len(changed)
    assert plan(tmp_path).run().data["places"][0]["files"] == []


@pytest.mark.long
def test_a_killed_erasure_is_run_again(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Each place has all its rows or those without the key, whole, at every step."""
    shutil.copytree(tmp_path, fresh := tmp_path.with_name(f"{tmp_path.name}-fresh"), symlinks=True)
    before = everything(tmp_path, job)
    expected = {place: {k: v for k, v in rows.items() if k != NAME} for place, rows in before.items()}
    command = ("erase", TABLE, "k", NAME, str(tmp_path / "archive"), str(tmp_path / "at-3.tar"))
    steps = run_killed(0, tmp_path / "pond", *command)
    assert steps > 50
    for step in points(steps, 7):
        for path in tmp_path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        shutil.copytree(fresh, tmp_path, dirs_exist_ok=True)
        assert run_killed(step, tmp_path / "pond", *command) == -1, step
        for place, rows in everything(tmp_path, job).items():
            assert rows in (before[place], expected[place]), (step, place)
        plan(tmp_path, take_over=True).run()
        assert everything(tmp_path, job) == expected
        assert bytes_left(tmp_path) == []


@pytest.mark.long
def test_a_killed_erasure_in_rocksdb_is_run_again(tmp_path: Path) -> None:
    """Savepoints share SSTs with each other, and the checkpoint changes in one exchange of names."""
    place = tmp_path / "work/job"
    shutil.copytree(GOLDEN / "counts-rocksdb-changelog/checkpoint", place)
    batches = [int(batch) for batch in committed_batches(open_storage(place))][-3:]
    for number in batches[1:]:
        made = plan_savepoint(place, f"at-{number}", batch=number).run()
    export_savepoint(made, place.parent / "one.tar")
    found = a_key(place, random.Random(3))
    assert found is not None
    table, key, values = found
    ((column, value),) = key.items()
    marks = {repr(value) for value in values}

    def states() -> dict[str, list[Row]]:
        rows = {f"job {number}": whole(place, number) for number in batches}
        for savepoint in list_savepoints(place).found:
            assert verify_savepoint(savepoint).problems == ()
            rows[savepoint.manifest.name] = whole(savepoint.checkpoint.local_path(), savepoint.manifest.batch)
        return {name: sorted(row for row, inside in found if not (is_erased and marks <= inside)) for name, found in rows.items()}

    is_erased = False
    before = states()
    is_erased = True
    expected = states()
    is_erased = False
    assert all(len(expected[name]) < len(rows) for name, rows in before.items())
    shutil.copytree(place.parent, tmp_path / "fresh")
    command = ("erase", table, column, str(value), "", str(place.parent / "one.tar"))
    steps = run_killed(0, place, *command)
    ends = set()
    for step in points(steps, 11):
        shutil.rmtree(place.parent)
        shutil.copytree(tmp_path / "fresh", place.parent)
        assert run_killed(step, place, *command) == -1, step
        for name, rows in states().items():
            assert rows in (before[name], expected[name]), (step, name)
            ends.add(rows == before[name])
        millpond.plan_erase(place, table, key, exports=[place.parent / "one.tar"], take_over=True).run()
        assert states() == expected
    assert ends == {True, False}


_FULL = """
import json, sys
from pathlib import Path
import millpond
from millpond.errors import MillpondError

place, table, key, disk = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4])
plan = millpond.plan_erase(place, table, key)
with open(disk / "rest", "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(4096))
    except OSError:
        pass
try:
    plan.run()
    print("no error")
except MillpondError as error:
    print(error.condition)
(disk / "rest").unlink()
rows = lambda: sorted(map(repr, millpond.read_arrow(place, table).to_pylist()))
print(len(rows()))
print([savepoint.manifest.name for savepoint in millpond.list_savepoints(place).found])
print(millpond.plan_erase(place, table, key).run().data["places"][0]["records"], len(rows()))
"""


@pytest.mark.long
@pytest.mark.parametrize("cell", ["counts-hdfs", "counts-rocksdb-changelog"])
def test_on_a_full_disk_nothing_is_half_erased(tmp_path: Path, cell: str) -> None:
    """The disk is a file system of 8 MiB, in a mount namespace of its own."""
    skip_without_mounts()
    checkpoint = tmp_path / "work/job"
    shutil.copytree(GOLDEN / cell / "checkpoint", checkpoint)
    plan_savepoint(checkpoint, "first").run()
    found = a_key(checkpoint, random.Random(3))
    assert found is not None
    table, key, _ = found
    rows = len(millpond.read_arrow(checkpoint, table))
    disk, parent = tmp_path / "disk", checkpoint.parent
    disk.mkdir()
    shell = 'mount -t tmpfs -o size=8m none "$1" && cp -r "$2/." "$1" && shift 2 && exec "$@"'
    arguments = [sys.executable, "-c", _FULL, str(disk / checkpoint.name), table, json.dumps(key), str(disk)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "sh", str(disk), str(parent), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout.splitlines()
    assert said[:3] == ["NOT_WRITABLE", str(rows), "['first']"], done.stdout + done.stderr
    records, left = map(int, said[3].split())
    assert (records > 0, left) == (True, rows - 1)


def test_what_is_refused(job: WrittenCheckpoint, tmp_path: Path) -> None:
    def condition(**more: Any) -> str:
        asked = {"place": tmp_path / "pond", "table": TABLE, "key": {"k": NAME}, **more}
        with pytest.raises(MillpondError) as raised:
            millpond.plan_erase(**asked).run()
        return raised.value.condition

    before = everything(tmp_path, job)
    assert condition(table="nobody") == "UNKNOWN_TABLE"
    assert condition(key={}) == "INVALID_REQUEST"
    assert condition(key={"v": 1}) == "NOT_A_KEY_COLUMN"
    assert condition(key={"k": 1}) == "WRONG_TYPE"
    assert condition(archives=[tmp_path / "pond"]) == "INVALID_REQUEST"
    assert condition(exports=[tmp_path / "missing.tar"]) == "FILE_MISSING"
    lease = take_lease(open_storage(job.path.parent), "a test")
    assert condition() == "CHECKPOINT_IN_USE"
    lease.release()
    strange = job.path / "state/0/0/notes.txt"
    strange.write_text("x")
    assert condition() == "UNSUPPORTED"
    strange.unlink()
    folder = tmp_path / "pond/savepoints/half"
    folder.mkdir()
    (folder / "claim.json").write_text("{}")
    assert condition() == "SAVEPOINT_INCOMPLETE"
    shutil.rmtree(folder)
    assert everything(tmp_path, job) == before


def test_old_copies_and_what_killed_writers_left_are_erased_too(job: WrittenCheckpoint, tmp_path: Path) -> None:
    millpond.plan_rescale(tmp_path / "pond", 3).run()
    (kept,) = (path for path in job.path.parent.iterdir() if path.name.startswith("checkpoint.before-rescale"))
    assert rows_at(kept)[NAME] == 4
    left = job.path / "state/0/1/.9.delta.0f1e.tmp"
    left.write_bytes(NAME.encode())
    shown = plan(tmp_path)
    assert {place.kind for place in shown.places} == {"checkpoint", "old copy", "savepoint", "archive", "export"}
    shown.run()
    assert bytes_left(tmp_path) == []
    assert rows_at(kept) == rows_at(job.path) == {"k": 3, "k0": 0, "k1": 1, "k2": 2, "k3": 3}


def test_while_somebody_follows_nothing_is_erased(job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    before = everything(tmp_path, job)
    with millpond.open(tmp_path / "pond") as pond:
        assert pond[TABLE].get(k=NAME)["v"] == 4
        with pytest.raises(MillpondError, match="follows this job") as raised:
            plan(tmp_path).run()
    assert raised.value.condition == "CHECKPOINT_IN_USE"
    assert everything(tmp_path, job) == before


def test_a_part_of_a_key_and_null(tmp_path: Path) -> None:
    """The second column of three alone: all rows with this value, or with NULL; random rows, in random batches."""
    some = random.Random(5)
    key = (Field("page", atomic("string")), Field("user", atomic("string")), Field("n", atomic("double")))
    users, numbers = [None, "", "a", "ab", "b"], [0.0, 1.5, float("nan"), None]
    for column, value in (("user", "a"), ("user", None), ("user", ""), ("n", float("nan")), ("n", 0.0)):
        job = WrittenCheckpoint(tmp_path / f"{column}-{value}", key=key)
        rows: dict[Any, int] = {}
        for batch in range(5):
            changes = {(some.choice("xyz"), some.choice(users), some.choice(numbers)): batch * 100 + n for n in range(20)}
            job.plan(list(changes.items()), snapshot=batch == 3)
            job.commit()
            rows |= changes
        assert millpond.plan_erase(job.path, f"{job.path.name}.aggregate_0", {column: value}).run().data["places"][0]["records"]
        at = 1 if column == "user" else 2
        expected = sorted(repr((row, v)) for row, v in rows.items() if repr(row[at]) != repr(value))
        read_key, read_value = decoder(key), decoder(VALUE)
        found = sorted(repr((read_key(k), read_value(v)[0])) for (_, k, v), _ in whole(job.path, 4))
        assert found == expected
        assert 0 < len(expected) < len(rows)


def test_all_windows_and_all_parts_of_a_key(tmp_path: Path) -> None:
    """A salted table by window and text: by the text alone, and by a window's start alone."""
    some, (key, draw) = random.Random(6), KEYS["window, text"]
    start = dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)
    for n, (asked, is_erased) in enumerate(
        [({"k": "ab"}, lambda row: row[2] == "ab"), ({"window_start": start}, lambda row: row[1][0] == 5_000_000)]
    ):
        job = written(tmp_path / f"job-{n}", key, shares())
        rows: dict[Any, int] = {}
        for batch in range(3):
            changes = {(some.choice([-4, 0, 3]), *draw(some)): batch * 100 + n for n in range(60)}
            job.plan(list(changes.items()), snapshot=batch == 1)
            job.commit()
            rows |= changes
        (table,) = Source(find_job(job.path, None)).open(0).tables
        plan = millpond.plan_erase(job.path, table, asked)
        assert plan.run().data["places"][0]["records"] == plan.records > 0
        read_key, read_value = decoder((PART, *key)), decoder(VALUE)
        found = {read_key(k): read_value(v)[0] for (_, k, v), _ in whole(job.path, 2)}
        assert found == {row: value for row, value in rows.items() if not is_erased(row)}
        assert 0 < len(found) < len(rows)


@pytest.mark.long
def test_the_archive_goes_on_in_the_same_generation(job: WrittenCheckpoint, tmp_path: Path) -> None:
    plan(tmp_path).run()
    with millpond.archive(tmp_path / "pond", tmp_path / "archive") as archiver:
        for batch in (4, 5):
            job.plan([((f"k{batch}",), batch)], snapshot=False)
            job.commit()
            archiver.wait_for_batch(batch, timeout_seconds=60)
        assert (archiver.status().batches, archiver.status().lost) == (2, ())
    rows = everything(tmp_path, job)
    assert [name.partition("-batch-")[2] for name in rows if "-batch-" in name] == [f"{n}.generation-1" for n in range(6)]
    assert all(NAME not in found for place, found in rows.items())
    assert next(found for name, found in rows.items() if "batch-5" in name) == rows["job"]
    assert bytes_left(tmp_path / "archive") == []


class Remote:
    """A place's rows in a bucket: the checkpoint, its savepoints, and an archive."""

    def __init__(self, place: str, archive: str, work: Path) -> None:
        self.place, self.archive, self._work = place, archive, work

    def rows(self) -> dict[str, list[Row]]:
        """Each batch of each place; every savepoint is verified."""
        storage = open_storage(self.place)
        found = {f"job {n}": whole(self.place, n) for n in committed_batches(storage)[-3:]}
        for root in (self.place, self.archive):
            for savepoint in list_savepoints(root).found:
                assert verify_savepoint(savepoint).problems == (), savepoint.manifest.name
                target = self._work / uuid.uuid4().hex
                restore_files(savepoint, open_storage(target), savepoint.manifest.job_id)
                found[f"{root} {savepoint.manifest.name}"] = whole(target, savepoint.manifest.batch)
                shutil.rmtree(target)
        return {name: sorted(row for row, _ in rows) for name, rows in found.items()}

    def names(self) -> list[str]:
        """All files, without receipts and what says who writes."""
        files = files_below(open_storage(self.place.rpartition("/")[0]))
        return sorted(path for path in files if "/erasures/" not in path and "/writers/" not in path)


def _alike(names: list[str]) -> list[str]:
    """The same without the time in the name of an archived batch."""
    return sorted(re.sub(r"(/batches/\d+)-\d+", r"\1", name) for name in names)


@pytest.mark.parametrize("cell", a_few(["counts-rocksdb-changelog", "counts-hdfs"], 0))
def test_a_job_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    """Its checkpoint, savepoints and archive lose the key; a killed command is run again."""
    use(monkeypatch, moto_server())
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(IN_BUCKET, "1")
    root = f"s3://{BUCKET}/{tmp_path.name}/{cell}"
    remote = Remote(f"{root}/job", f"{root}/archive", tmp_path)

    def fill() -> None:
        open_storage(root).delete_all()
        upload(GOLDEN / cell / "checkpoint", remote.place)
        for number in committed_batches(open_storage(remote.place))[-2:]:
            plan_savepoint(remote.place, f"at-{number}", batch=int(number)).run()
        with millpond.archive(remote.place, remote.archive) as archiver:
            archiver.wait_for_batch(int(committed_batches(open_storage(remote.place))[-1]), timeout_seconds=60)

    fill()
    found = a_key(GOLDEN / cell / "checkpoint", random.Random(3))
    assert found is not None
    _, key, values = found
    marks = {repr(value) for value in values}
    gone = {row for row, inside in whole(remote.place, committed_batches(open_storage(remote.place))[-1]) if marks <= inside}
    ((column, value),) = key.items()
    before = remote.rows()
    assert len(before) >= 6
    assert gone

    def plan(*, take_over: bool = False) -> ErasePlan:
        return millpond.plan_erase(remote.place, table, key, archives=[remote.archive], take_over=take_over)

    table = "job.aggregate_0"
    shown = plan()
    assert shown.records > 0
    assert "older versions of objects" in shown.describe()
    command = ("erase", table, column, str(value), remote.archive, "")
    steps = run_killed(0, remote.place, *command)
    expected = remote.rows()
    assert expected.keys() == before.keys()
    keys = {row[1] for row in gone}
    assert expected == {name: [row for row in rows if row[1] not in keys] for name, rows in before.items()}
    names = remote.names()
    assert plan().records == 0
    left = set()
    for step in random.Random(cell).sample(range(2, steps + 1), 4):
        fill()
        assert run_killed(step, remote.place, *command) == -1, step
        left.add(any(name.endswith("erasing.json") for name in remote.names()))
        plan(take_over=True).run()
        assert remote.rows() == expected, step
        assert _alike(remote.names()) == _alike(names)
        assert list((tmp_path / "home/erasing").iterdir()) == []
    assert True in left, "no kill came while files were written over"


def test_the_command_shows_and_then_erases(job: WrittenCheckpoint, tmp_path: Path) -> None:
    pond, run = str(tmp_path / "pond"), CliRunner()
    words = ["erase", pond, "visits", "--table", TABLE, f"k={NAME}", "--archive", str(tmp_path / "archive")]
    shown = run.invoke(main, words)
    assert shown.exit_code == 0, shown.output
    assert "Nothing is done yet" in shown.output
    assert rows_at(job.path)[NAME] == 4
    done = run.invoke(main, [*words, "--yes"])
    assert done.exit_code == 0, done.output
    assert "erased" in done.output
    assert NAME not in rows_at(job.path)
