"""Redistribute a savepoint: a new one, whose operator or broadcast state lies in another number of shards.

    copies    control state: every shard has the same rows; new shards get a copy
    shares    statistics: the shares of all shards become those of the first; the others begin with
              nothing to add
    list      rows that wait (`millpond.buffered`): divided evenly, in order of their times

The old shards' rows are in memory while their store is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millpond.catalogue import savepoints_folder
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.rows import COUNTER, Columns, FamilyCodec, StoreCodec
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError
from millpond.savepoint.change.new_savepoint import make_savepoint
from millpond.savepoint.manage.folder import check_free, open_savepoint
from millpond.savepoint.manifest import Savepoint, damaged
from millpond.savepoint.restore import read_tables
from millpond.savepoint.rewrite.form import AS_IT_WAS, StateForm, check_can_rewrite
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.threads import Progress
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.parts import COPIES, VariableParts
from millpond.schema.shards import SHARD, shard_values
from millpond.storage import Storage

_LAYOUT = "layout"
_WAITING, _FILL = "waiting", "fill"
_TIMERS = "$procTimers_"
_MERGE: Mapping[str, Callable[[Any, Any], Any]] = {"sum": lambda a, b: a + b, "min": min, "max": max}
_STORE = "default"
_ShardRow = tuple[Columns, bytes]
"""a key's columns, and the value as it is stored"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributePlan:
    """A savepoint that isn't redistributed yet.

    savepoint:    the one that it begins with
    name, note:   of the new savepoint
    root:         the folder of all savepoints
    shards:       how many there will be
    partitions:   of the state
    entries:      the definitions of the job's tables, with the new shards
    operators:    the operators whose state lies in shards: its number, and how its variables lie;
                  None for rows that wait
    """

    savepoint: Savepoint
    name: str
    note: str
    root: Storage
    shards: int
    partitions: int
    entries: tuple[Entry, ...]
    operators: Mapping[int, VariableParts | None]

    def describe(self) -> str:
        """What will be done, in a few lines."""
        manifest = self.savepoint.manifest
        names = sorted(entry.table for entry in self.entries if entry.operator in self.operators)
        return "\n".join(
            [
                f"savepoint   {manifest.name} of the job {manifest.job}, batch {manifest.batch}, which stays as it is",
                f"to          {self.root.uri}/{self.name}",
                f"tables      of {', '.join(names)}: in {self.shards} shards, and {self.partitions} partitions",
                f"start with  shards={self.shards}, partitions={self.partitions}",
            ]
        )

    def run(self, progress: Progress | None = None) -> Savepoint:
        """Make it.

        Raises:  COPIES_DIFFER if the shards' copies aren't equal; SAVEPOINT_EXISTS,
                 SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, NOT_WRITABLE, what the storages raise.
        """
        values = shard_values(self.shards, self.partitions)
        form = StateForm(partitions=self.partitions)
        batch = read_batch(self.savepoint.checkpoint, Batch(self.savepoint.manifest.batch))
        edits: list[RowEdit] = [
            _Waiting(operator, values) if parts is None else _Variables(operator, values, parts)
            for operator, parts in self.operators.items()
        ]
        return make_savepoint(
            self.savepoint,
            self.root,
            self.name,
            note=self.note,
            tables=self.entries,
            edits=edits,
            form=AS_IT_WAS if batch.settings.partitions == self.partitions else form,
            progress=progress,
        )


class _Shards(RowEdit):
    """Collects the rows of all shards; `last` gives those of the new ones."""

    store = _STORE

    def __init__(self, operator: int, values: tuple[int, ...]) -> None:
        self.operator, self.values = operator, values
        self.found: dict[str, dict[int, list[_ShardRow]]] = {}

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        for key, value in rows:
            family = codec.family_of(key)
            columns = codec.of(family).read_key(key)
            self.found.setdefault(family, {}).setdefault(_shard_of(columns), []).append((columns, value))
        yield from ()


class _Variables(_Shards):
    """Copies and shares."""

    def __init__(self, operator: int, values: tuple[int, ...], parts: VariableParts) -> None:
        super().__init__(operator, values)
        self.parts = parts

    def last(self, codec: StoreCodec) -> Iterator[Row]:
        for family, shards in self.found.items():
            of = codec.of(family)
            how = self.parts.variables.get(family)
            if family == _LAYOUT:
                yield from self._layout(of, shards)
            elif how == COPIES:
                yield from self._copies(of, self._only_copy(shards))
            elif isinstance(how, Mapping):
                yield from self._shares(of, how, shards)
            else:
                raise _unsupported(f"Nothing says how the state variable {family} lies in shards.")

    def _only_copy(self, shards: dict[int, list[_ShardRow]]) -> list[_ShardRow]:
        copies = {shard: sorted((repr(_with_shard(c, 0)), value) for c, value in rows) for shard, rows in shards.items()}
        first = min(copies)
        for shard in self.parts.values:
            if copies.get(shard) != copies[first]:
                raise CheckpointError(
                    "COPIES_DIFFER",
                    f"The shards {first} and {shard} have different copies of the control state.",
                    hint="Restore an earlier savepoint, in which they are equal.",
                )
        return shards[first]

    def _copies(self, of: FamilyCodec, rows: list[_ShardRow]) -> Iterator[Row]:
        for shard in self.values:
            for columns, value in rows:
                yield of.write_key(_with_shard(columns, shard)), value

    def _layout(self, of: FamilyCodec, shards: dict[int, list[_ShardRow]]) -> Iterator[Row]:
        place = [f.name for f in of.schema.value].index("shards")
        for columns, value in self._only_copy(shards):
            (row,) = of.read_value(value)
            new = of.write_value([(*row[:place], len(self.values), *row[place + 1 :])])
            yield from self._copies(of, [(columns, new)])

    def _shares(self, of: FamilyCodec, how: Mapping[str, str], shards: dict[int, list[_ShardRow]]) -> Iterator[Row]:
        functions = [how.get(f.name) for f in of.schema.value]
        whole: dict[str, tuple[Columns, Columns]] = {}
        for shard in sorted(shards):
            for columns, value in shards[shard]:
                (row,) = of.read_value(value)
                name = repr(_with_shard(columns, 0))
                merged = row if name not in whole else tuple(map(_merged, functions, whole[name][1], row))
                whole[name] = columns, merged
        for columns, row in whole.values():
            nothing = tuple(_zero(v) if function == "sum" else v for function, v in zip(functions, row, strict=True))
            for shard in self.values:
                value = of.write_value([row if shard == self.values[0] else nothing])
                yield of.write_key(_with_shard(columns, shard)), value


class _Waiting(_Shards):
    """Rows that wait: what `spark.buffered` keeps."""

    def last(self, codec: StoreCodec) -> Iterator[Row]:
        if not self.found:
            return
        waiting, fill = codec.of(_WAITING), codec.of(_FILL)
        due = {shard: fill.read_value(value)[0] for shard, [(_, value)] in self.found[_FILL].items()}
        lists = [(due[shard][1], shard, value) for shard, [(_, value)] in self.found.get(_WAITING, {}).items()]
        every = [(due_ms, element) for due_ms, _, value in sorted(lists) for element in waiting.read_value(value)]
        if len(every) != sum(rows for rows, _, _ in due.values()):
            raise damaged("The state", f"has {len(every)} rows that wait, and counts {sum(rows for rows, _, _ in due.values())}")
        begin = 0
        for i, shard in enumerate(self.values):
            end = len(every) * (i + 1) // len(self.values)
            yield from self._shard(codec, shard, every[begin:end], due.pop(shard, (0, 0, 0))[2])
            begin = end
        for shard, (_, _, releases) in due.items():  # should it come back, its releases go on
            yield fill.write_key((shard,)), fill.write_value([(0, 0, releases)])

    def _shard(self, codec: StoreCodec, shard: int, rows: list[tuple[int, Columns]], releases: int) -> Iterator[Row]:
        fill = codec.of(_FILL)
        due_ms = rows[0][0] if rows else 0
        if rows or releases:
            yield fill.write_key((shard,)), fill.write_value([(len(rows), due_ms, releases)])
        if not rows:
            return
        waiting = codec.of(_WAITING)
        yield waiting.write_key((shard,)), waiting.write_value([element for _, element in rows])
        if codec.has(COUNTER + _WAITING):
            counter = codec.of(COUNTER + _WAITING)
            yield counter.write_key((shard,)), counter.write_value([(len(rows),)])
        for family, shards in self.found.items():
            if family.startswith(_TIMERS):
                of, (columns, value) = codec.of(family), next(iter(shards.values()))[0]
                yield of.write_key(tuple((shard,) if isinstance(c, tuple) else due_ms for c in columns)), value


def _shard_of(columns: Columns) -> int:
    """The shard of a key: of a map and a timer it is in a struct, which a time may precede."""
    inner = next((c for c in columns if isinstance(c, tuple)), columns)
    return int(inner[0])


def _with_shard(columns: Columns, shard: int) -> Columns:
    if isinstance(columns[0], tuple):
        return ((shard,), *columns[1:])
    return (shard, *columns[1:])


def _merged(function: str | None, before: Any, after: Any) -> Any:
    if function is None or before is None or after is None:
        return after if before is None else before
    return _MERGE[function](before, after)


def _zero(value: Any) -> Any:
    return None if value is None else type(value)(0)


def plan_redistribute(
    place: str | Path, savepoint: str, name: str, *, shards: int, partitions: int | None = None, note: str = ""
) -> RedistributePlan:
    """Plan a new savepoint, whose operator and broadcast state lies in another number of shards.

    place:       the pond that has the savepoint, or the checkpoint that it was made of
    savepoint:   the one to begin with, which stays as it is
    name:        of the new savepoint
    shards:      with which the job is started from it (`broadcast`, `serve_models`, `buffered`)
    partitions:  of the state from then on; None for as many as now
    Raises:      UNKNOWN_SAVEPOINT, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW;
                 SAVEPOINT_EXISTS, INVALID_NAME; INVALID_REQUEST if there isn't a partition for each
                 shard; UNSUPPORTED if no state of the job lies in shards.
    """
    found = open_savepoint(place, savepoint)
    root = savepoints_folder(place)
    check_free(root, name)
    batch = read_batch(found.checkpoint, Batch(found.manifest.batch))
    count = batch.settings.partitions if partitions is None else partitions
    values = shard_values(shards, count)
    entries = read_tables(found.manifest)
    operators: dict[int, VariableParts | None] = {
        entry.operator: entry.parts for entry in entries if isinstance(entry, NamedOperator) and entry.parts is not None
    }
    for operator in read_operator_files(found.checkpoint, batch.batch):
        if operator.lists == {_WAITING} and _is_buffer(*read_whole_stores(found.checkpoint, operator)):
            operators[operator.operator] = None
    if not operators:
        raise _unsupported(f"No state of the job {found.manifest.job} lies in shards.")
    if count != batch.settings.partitions:
        check_can_rewrite(found.checkpoint, found.manifest.batch, StateForm(partitions=count))
    return RedistributePlan(
        savepoint=found,
        name=name,
        note=note,
        root=root,
        shards=shards,
        partitions=count,
        entries=tuple(_in_shards(entry, values) for entry in entries),
        operators=operators,
    )


def _is_buffer(store: WholeStore) -> bool:
    if not {_WAITING, _FILL} <= store.families.keys():
        return False
    key, value = ([f.name for f in columns] for columns in (store.families[_WAITING].key, store.families[_FILL].value))
    return (key, value) == ([SHARD], ["rows", "due_ms", "releases"])


def _in_shards(entry: Entry, values: tuple[int, ...]) -> Entry:
    if not isinstance(entry, NamedOperator) or entry.parts is None:
        return entry
    return replace(entry, parts=replace(entry.parts, values=values))


def _unsupported(message: str) -> CheckpointError:
    return CheckpointError(
        "UNSUPPORTED",
        message,
        hint="Only `broadcast`, `serve_models` and `buffered` have shards; other state is divided by `millpond rescale`.",
    )
