"""The key that is erased, and which rows of an operator's stores it has.

Spark hashes the columns that rows were grouped or joined by, and these columns are in the keys of
all stores and column families of an operator: those of values, timers, expiry and counts.  A row is
one of the key if the named columns among them are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.checkpoint.log import CommittedBatch, StateSettings
from millpond.checkpoint.operators import OperatorFiles, read_operator_files
from millpond.checkpoint.partition import hashed_columns
from millpond.checkpoint.rows.unsaferow import Stored, decoder
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError
from millpond.schema.types import Field
from millpond.storage import Storage

_FAMILY_BYTES = 2
Columns = tuple[Stored, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedColumn:
    """One column that the erased rows have in common.

    name:   as readers know it
    place:  among the columns that rows were grouped by
    path:   places inside structs
    value:  in stored form
    """

    name: str
    place: int
    path: tuple[int, ...]
    value: Stored

    def is_in(self, columns: Columns) -> bool:
        """Whether a row has this value."""
        found = columns[self.place]
        for at in self.path:
            if found is None:
                break
            found = found[at]
        # NaN is one key, as for Spark.
        return bool(found == self.value) or (found != found and self.value != self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedKey:
    """The key of a table.

    table:     its name
    operator:  Spark's operator id
    operator_name: Spark's name of the operator
    fields:    the columns that its rows were grouped by
    columns:   those that are named
    """

    table: str
    operator: int
    operator_name: str
    fields: tuple[Field, ...]
    columns: tuple[ErasedColumn, ...]

    @property
    def needles(self) -> tuple[bytes, ...]:
        """Bytes that every key of these rows has, whatever its encoding."""
        found = (c.value.encode() if isinstance(c.value, str) else c.value for c in self.columns)
        return tuple(needle for needle in found if isinstance(needle, bytes) and needle)

    def is_in(self, columns: Columns) -> bool:
        """Whether a row is of this key."""
        return all(column.is_in(columns) for column in self.columns)


def grouping_fields(store: WholeStore) -> tuple[Field, ...]:
    """The columns that the rows of a store were grouped by."""
    name = next(iter(sorted(store.families)))
    return hashed_columns(store.operator.name, store.families[name], store.families)[0]


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Which rows of one store are of the key.

    numbers:  bytes in front of a key -> its column family
    """

    store: WholeStore
    settings: StateSettings
    key: ErasedKey

    def judge(self, numbers: Mapping[bytes, str]) -> Callable[[bytes], Columns | None]:
        """A function from a key as a provider has it to its grouping columns; None for a key of other rows.

        Raises (the function):  UNSUPPORTED for a column family that nothing describes; CORRUPT_FILE.
        """
        needles, is_in = self.key.needles, self.key.is_in
        readers: dict[bytes, Callable[[bytes], Columns]] = {}

        def columns(key: bytes) -> Columns | None:
            for needle in needles:
                if needle not in key:
                    return None
            front = key[:_FAMILY_BYTES] if self.store.has_families else b""
            if front not in readers:
                readers[front] = self._reader(front, numbers)
            found = readers[front](key[len(front) :])
            return found if is_in(found) else None

        return columns

    def _reader(self, front: bytes, numbers: Mapping[bytes, str]) -> Callable[[bytes], Columns]:
        name = numbers.get(front) if self.store.has_families else self.store.name
        family = None if name is None else self.store.families.get(name)
        if family is None:
            raise CheckpointError(
                "UNSUPPORTED",
                f"Store {self.store.id} has rows of the column family {name or front.hex()!r:.80}, which nothing describes.",
                hint="Nothing is erased: report this with the job's Spark version.",
            )
        _, take = hashed_columns(self.store.operator.name, family, self.store.families)
        if self.settings.provider == "hdfs":
            read = decoder(family.key)
        else:
            read = self.store.key_reader(family, avro=self.settings.encoding == "avro")
        return lambda key: take(read(key))


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """Which rows of an operator are of the key, at one place.

    settings:  how the files are written
    operator:  Spark's number of it there
    stores:    name -> its rows
    """

    settings: StateSettings
    operator: int
    stores: Mapping[str, StoreRows]


def find_rows(storage: Storage, batch: CommittedBatch, key: ErasedKey, place: str) -> OperatorRows:
    """The operator of the key in a checkpoint, where it may have another number.

    place:   for messages
    Raises:  UNSUPPORTED if no operator there, or more than one, can have the key; FILE_GONE,
             CORRUPT_FILE, UNKNOWN_FORMAT.
    """
    fitting = [operator for operator in read_operator_files(storage, batch.batch) if _fits(storage, operator, key)]
    same = [operator for operator in fitting if operator.operator == key.operator] or fitting
    if len(same) != 1:
        raise CheckpointError(
            "UNSUPPORTED",
            f"{place} has {'several operators' if same else 'no operator'} with the columns of {key.table}, so its rows "
            "can't be found there.",
            hint="Nothing is erased: delete that place, or move it away, and erase it by hand.",
        )
    (found,) = same
    stores = {store.name: StoreRows(store, batch.settings, key) for store in read_whole_stores(storage, found)}
    return OperatorRows(batch.settings, found.operator, stores)


def _fits(storage: Storage, operator: OperatorFiles, key: ErasedKey) -> bool:
    if operator.name != key.operator_name:
        return False
    stores = read_whole_stores(storage, operator)
    names = [[field.name for field in grouping_fields(store)] for store in stores[:1]]
    return names == [[field.name for field in key.fields]] and all(
        _types(fields) == _types(key.fields) for fields in _every_grouping(stores)
    )


def _every_grouping(stores: Iterable[WholeStore]) -> Iterable[tuple[Field, ...]]:
    for store in stores:
        for family in store.families.values():
            yield hashed_columns(store.operator.name, family, store.families)[0]


def _types(fields: Iterable[Field]) -> list[Any]:
    return [(field.type.kind, field.type.name) for field in fields]
