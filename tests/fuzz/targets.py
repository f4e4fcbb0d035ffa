"""Readers for each kind of file: private copies of the golden checkpoints, and for each kind a function that decodes a damaged one.

A read returns something comparable, or raises.  If a checksum covers the file, one flipped bit gives the answer of the undamaged
file, or an error.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

import millpond
from millpond.catalogue import JobFolder, create_beside, open_jobs
from millpond.checkpoint.bulk.newest import read_newest
from millpond.checkpoint.bulk.partition import iter_newest, read_chunks
from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import CommittedBatch, committed_batches, job_id, read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.columns import Spans, read_columns
from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.checkpoint.source_files import find_file
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import MillpondError
from millpond.native.memory import Memory
from millpond.replica.apply import plan_tables
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.definition.operator_name import NamedOperator
from millpond.schema.definition.table import TableDefinition, parse_definition
from millpond.schema.store import StoreSchema
from millpond.schema.types import SparkType, atomic
from millpond.schema.values import decode_json
from millpond.storage import Storage
from millpond.tables.cold.report import inspect_job
from millpond.tables.finish.columns import ColumnFinish, RowKeys
from millpond.tables.finish.definition import compile_definition
from millpond.tables.forms.arrow import arrow_type, column_array
from millpond.tables.forms.arrow_errors import Failures
from millpond.tables.scan.binding import check_schemas


def _golden() -> Path:
    """The golden checkpoints.  Their module is found from here, since this is a program's."""
    sys.path.append(str(Path(__file__).parents[1]))
    from golden.packing import unpacked

    return unpacked()


GOLDEN = _golden()

# A definition is tried on so many rows: enough to reach every type, few enough for thousands of files.
ROWS = 20
# Cells without a definition, one for each encoding of rows.
OPERATORS = tuple(
    f"spark-4.3/{name}"
    for name in (
        "sessions-rocksdb-changelog",
        "join-inner-hdfs",
        "join-inner-format4-rocksdb-changelog",
        "transform-state-rocksdb-changelog",
        "transform-append-avro-rocksdb-snapshots",
        "transform-event-timers-rocksdb-changelog",
    )
)
# Errors of these names are mistakes of Millpond's own, which it caught itself.
OURS = frozenset({"FOLLOWER_FAILED", "INTERNAL_ERROR"})


@dataclass(frozen=True)
class Cell:
    """A private copy of one golden job."""

    path: Path
    folder: JobFolder

    @cached_property
    def storage(self) -> Storage:
        return self.folder.open_checkpoint()

    @cached_property
    def stores(self) -> list[StoreSchema]:
        return read_stores(self.storage, Batch(self.last))[0]

    @cached_property
    def batches(self) -> dict[int, CommittedBatch]:
        return {int(b): read_batch(self.storage, b) for b in committed_batches(self.storage)}

    @property
    def last(self) -> int:
        return max(self.batches)

    @property
    def codec(self) -> str:
        return self.batches[self.last].settings.codec

    @cached_property
    def rows(self) -> dict[tuple[int, str, str], list[tuple[Any, Any]]]:
        """Some decoded rows of every store that has one row a key."""
        found = {}
        for store in self.stores:
            keys, values = decoder(store.key), decoder(store.value)
            records = StateReader(self.storage).iter_state(self.batches[self.last], store, 0)
            rows = [(keys(k), values(v)) for kind, k, v in islice(records, 0 if store.many else ROWS) if kind == PUT]
            found[store.operator, store.store, store.family] = rows
        return found


@dataclass(frozen=True)
class Target:
    """One kind of file.

    read:     decodes the present files of the cell; the path is below the cell's folder
    packed:   whether the content is compressed by the cell's codec
    checked:  whether checksums cover all of it, so that a flipped bit can't change the answer
    compiled: whether reading it uses the compiled library
    binary:   whether errors name a byte
    names:    whether an error must name this very file (damage of a log may make another file unreadable)
    json:     whether its lines are JSON, whose values are changed one by one
    """

    kind: str
    pattern: re.Pattern[str]
    read: Callable[[Cell, str], Any]
    weight: int
    packed: bool = False
    checked: bool = False
    compiled: bool = False
    binary: bool = False
    names: bool = True
    json: bool = False


def _state_of(cell: Cell, batch: CommittedBatch, store: StoreSchema, partition: int, *, changes: bool = False) -> Any:
    whole = None if changes or store.many else _whole(cell, batch, store, partition)
    keys, values = decoder(store.key), decoder(store.value)
    reader = StateReader(cell.storage)
    found = list((reader.iter_changes if changes else reader.iter_state)(batch, store, partition))
    for kind, key, value in found:
        keys(key)
        if kind != DELETE:
            for row in iter_elements(value) if store.many else (value,):
                values(row)
    if whole is not None:
        rows: dict[bytes, bytes] = {}
        for kind, key, value in found:
            if kind == PUT:
                rows[key] = value
            elif kind == DELETE:
                rows.pop(key, None)
            else:
                rows[key] = rows.get(key, b"") + value
        assert whole == rows, "read at once, the state is another one"
    return found


def _whole(cell: Cell, batch: CommittedBatch, store: StoreSchema, partition: int) -> dict[bytes, bytes] | None:
    """The rows of a partition as `millpond.read_arrow` finds them, both ways; None if it can't."""
    rows: dict[bytes, bytes] = {}
    at_once = read_newest(StateReader(cell.storage), batch, store, partition, Memory())
    try:
        parts = list(iter_newest(read_chunks(StateReader(cell.storage), batch, store, partition)))
    except MillpondError:
        assert at_once is None, "what is refused file by file was read in one pass"
        return None
    for part in parts:
        rows |= zip(part.keys.tolist(), part.values.tolist(), strict=True)
    if at_once is not None:
        found = [pair for part in at_once for pair in zip(part.keys.tolist(), part.values.tolist(), strict=True)]
        assert len(found) == len(rows), "read in one pass, a key is there twice, or not at all"
        assert dict(found) == rows, "read in one pass, the state is another one"
    try:
        for part in parts:
            for fields, spans in ((store.key, part.keys), (store.value, part.values)):
                for column in read_columns(fields, spans).values():
                    if has_arrow_form(column.type):
                        column_array(pyarrow, column, failures=Failures(), name="c")
    except MillpondError:
        return None
    return rows


def has_arrow_form(type_: SparkType) -> bool:
    """Whether Arrow has a type for it."""
    try:
        arrow_type(pyarrow, type_)
    except MillpondError:
        return False
    return True


def _everything(cell: Cell, _path: str) -> Any:
    batch = read_batch(cell.storage, committed_batches(cell.storage)[-1])
    stores, unread = read_stores(cell.storage, batch.batch)
    plan_tables(stores)
    for broken in unread:
        if broken.error.condition in ("CORRUPT_FILE", "INCOMPLETE_FILE"):
            raise broken.error
    return [_state_of(cell, batch, store, 0) for store in stores if len(partitions_of(batch, store))]


def _read_log(cell: Cell, path: str) -> Any:
    batch = read_batch(cell.storage, int(path.rsplit("/", 1)[-1]))  # type: ignore[arg-type]
    return [batch, *(_state_of(cell, batch, store, 0, changes=True) for store in cell.stores)]


STATE_FILE = re.compile(r"(state/\d+/(\d+)(?:/[^/]+-[^/]+)?)/(.+)")


def _read_state_file(cell: Cell, path: str) -> Any:
    file = STATE_FILE.search(path)
    assert file is not None
    folder, partition, name = file[1], int(file[2]), file[3]
    changes, found = name.endswith((".delta", ".changelog")), []
    # An SST is read as part of the state of each batch that has a snapshot.
    names = [name] if "/" not in name else sorted(p.name for p in Path(path).parents[1].glob("*.zip"))
    for version in sorted({int(re.split(r"[._]", name)[0]) for name in names}):
        batch = cell.batches[version - 1]
        found += [_state_of(cell, batch, store, partition, changes=changes) for store in stores_of(cell, folder, partition)]
    return found


def stores_of(cell: Cell, folder: str, partition: int) -> list[StoreSchema]:
    """The stores whose rows lie in a folder; none for counts that a join keeps for itself."""
    return [s for s in cell.stores if s.folder(partition) == folder]


def _read_definition(cell: Cell, _path: str) -> Any:
    out = []
    for definition in cell.folder.definitions().values():
        parsed = parse_definition(definition.to_json())
        finish, rows = compile_definition(parsed), cell.rows.get(definition.store_id, [])
        out.append([finish(key, value) for key, value in rows])
        _finish_as_columns(cell, parsed, rows)
    return out


def _finish_as_columns(cell: Cell, definition: TableDefinition, rows: list[tuple[Any, Any]]) -> None:
    """The same rows as arrays, if the definition fits the store's schemas."""
    store = next((s for s in cell.stores if (s.operator, s.store, s.family) == definition.store_id), None)
    if store is None or store.many or definition.parts is not None:
        return
    check_schemas(definition, store.key, store.value)
    keys, values = (
        located([encoder(fields)(row) for row in side])
        for fields, side in ((store.key, [k for k, _ in rows]), (store.value, [v for _, v in rows]))
    )
    if all(has_arrow_form(c.expression.type) for c in definition.values) and all(has_arrow_form(c.type) for c in definition.key):
        ColumnFinish(definition).arrays(pyarrow, RowKeys(definition.key_fields, keys), values, None, Failures())


def located(rows: list[bytes]) -> Spans:
    """Rows, one after the other."""
    sizes = np.array([len(row) for row in rows], np.int64)
    return Spans(b"".join(rows), np.cumsum(sizes) - sizes, sizes)


def _read_hot_keys(cell: Cell, _path: str) -> Any:
    return cell.folder.hot_keys()


def _read_source_log(cell: Cell, path: str) -> Any:
    return find_file(cell.storage, path.split("/")[-2], lambda found: len(found) == 0, upto=10**9)


def _read_checksums(cell: Cell, path: str) -> Any:
    return verify_file(
        cell.storage, str(Path(path).relative_to(cell.folder.checkpoint.removeprefix("file://"))).removesuffix(".crc")
    )


def _read_job(cell: Cell, _path: str) -> Any:
    return [(folder.job, folder.open_checkpoint().stamp("metadata") is None) for folder in open_jobs(cell.path)]


def _open(cell: Cell, _path: str) -> Any:
    for folder in open_jobs(cell.path):
        inspect_job(folder)
    found: dict[str, Any] = {}
    with millpond.open(cell.path, replica_dir="memory://", wait_seconds=1) as pond:
        pond.statistics()
        for name in pond:
            try:
                found[name] = [dict(row) for row in pond[name].scan(limit=ROWS)]
            except MillpondError as error:
                if error.condition in OURS:
                    raise
                found[name] = error.condition
    return found


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(f"(?:.*/)?{text}")


TARGETS = (
    Target("metadata", _pattern("checkpoint/metadata"), lambda cell, _: job_id(cell.storage), 3, json=True),
    Target("offsets", _pattern(r"offsets/\d+"), _read_log, 7, names=False, json=True),
    Target("commits", _pattern(r"commits/\d+"), _read_log, 7, names=False, json=True),
    Target("operator metadata", _pattern(r"_metadata/(metadata|v2/\d+)"), _everything, 4, names=False, json=True),
    Target("schema", _pattern(r"(_metadata/schema|_stateSchema/[^/]+/[^/]+)"), _everything, 5, binary=True),
    Target("delta", _pattern(r"\d+\.delta"), _read_state_file, 14, packed=True, compiled=True, binary=True),
    Target("snapshot", _pattern(r"\d+\.snapshot"), _read_state_file, 8, packed=True, compiled=True, binary=True),
    Target("changelog", _pattern(r"\d+[^/]*\.changelog"), _read_state_file, 14, packed=True, compiled=True, binary=True),
    Target("zip", _pattern(r"\d+[^/]*\.zip"), _read_state_file, 2, checked=True, compiled=True, binary=True),
    Target("sst", _pattern(r"SSTs/[^/]*\.sst"), _read_state_file, 2, checked=True, compiled=True, binary=True),
    Target("definition", _pattern(r"tables/[^/]*\.json"), _read_definition, 10, names=False, json=True),
    Target("job.json", _pattern(r"job\.json"), _read_job, 2, names=False, json=True),
    Target("hot keys", _pattern(r"hot_keys\.json"), _read_hot_keys, 1, json=True),
    Target("source log", _pattern(r"sources/\d+/\d+(\.compact)?"), _read_source_log, 1, json=True),
    Target("checksum", _pattern(r"state/.*\.crc"), _read_checksums, 1, names=False, json=True),
    Target("heartbeat", _pattern(r"heartbeat\.json"), lambda cell, _: cell.folder.job_state(), 2, names=False, json=True),
    Target("open", _pattern(r".*"), _open, 1, names=False),
)


def copy_cells(target: Path) -> list[Cell]:
    """Copy every golden job.  Checkpoints outside of a pond get a job folder beside them, as `define` writes it."""
    cells = []
    for source in sorted(p.parent for p in GOLDEN.glob("*/definition.json")) + [GOLDEN / name for name in OPERATORS]:
        path = target / source.name / "checkpoint"
        shutil.copytree(source / "checkpoint", path)
        folder = create_beside(path)
        if (source / "definition.json").exists():
            folder.write_definition(parse_definition(decode_json((source / "definition.json").read_text())))
        folder.write_heartbeat("running")
        folder.write_hot_keys([HotKey(1, {"k": "a"}, 0.5, 0), HotKey(2, None, 0.25, 3)], {"k": atomic("string")})
        cells.append(cell := Cell(path, folder))
        if not folder.entries():
            store = cell.stores[0]
            folder.write_definition(NamedOperator(table="named", operator=store.operator, operator_name=store.operator_name))
    pond = target / "types"
    shutil.copytree(GOLDEN / "types", pond)
    cells += [Cell(pond, folder) for folder in open_jobs(pond)]
    return cells


def files_of(cell: Cell, target: Target) -> list[Path]:
    """The cell's files of a kind."""
    roots = {Path(cell.folder.storage.uri.removeprefix("file://")), Path(cell.folder.checkpoint.removeprefix("file://"))}
    files = sorted({p for root in roots for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")})
    files = [p for p in files if target.pattern.fullmatch(str(p))]
    if target.read is not _read_state_file:
        return files
    places = {p: STATE_FILE.search(str(p)) for p in files}
    return [p for p, place in places.items() if place is not None and stores_of(cell, place[1], int(place[2]))]


def sample_rows(cells: list[Cell]) -> list[tuple[Any, bytes]]:
    """(fields, row bytes) of every key and value schema of the golden jobs."""
    found: list[tuple[Any, bytes]] = []
    for cell in cells:
        for store in cell.stores:
            for key, value in cell.rows[store.operator, store.store, store.family]:
                found += [(store.key, encoder(store.key)(key)), (store.value, encoder(store.value)(value))]
    return found
