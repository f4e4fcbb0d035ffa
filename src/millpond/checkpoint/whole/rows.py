"""The rows of a whole store as columns, and back to the same bytes.

A row is what one of the providers has: its key with the column family in front, its value without
checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millpond.checkpoint.encoding import avro_reader, avro_writer, bare_row, key_columns, key_writer, list_parts, rocksdb_value
from millpond.checkpoint.log import StateSettings
from millpond.checkpoint.rows.unsaferow import Stored, decoder, encoder
from millpond.checkpoint.schemas import FamilySchema
from millpond.checkpoint.whole.store import WholeStore
from millpond.errors import CheckpointError
from millpond.schema.types import Field

Columns = tuple[Stored, ...]
COUNTER = "$rowCounter_"
"""in front of a list's name, the family in which Spark counts the list's elements"""
_FAMILY_BYTES = 2
_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class FamilyCodec:
    """Rows of one column family, or of a store without families.

    Raises (every function):  CORRUPT_FILE and the like, without the file's name.
    """

    schema: FamilySchema
    is_list: bool
    read_key: Callable[[bytes], Columns]
    write_key: Callable[[Columns], bytes]
    read_row: Callable[[bytes], Columns]
    write_row: Callable[[Columns], bytes]
    delimiter: bytes

    def read_value(self, value: bytes) -> list[Columns]:
        """The elements of a list; of any other value, itself as the only one."""
        return [self.read_row(row) for row in self.rows_in(value)]

    def rows_in(self, value: bytes) -> list[bytes]:
        """The same as bytes."""
        return [part[_SIZE_BYTES:] for part in list_parts(value, self.delimiter)] if self.is_list else [value]

    def write_value(self, elements: list[Columns]) -> bytes:
        """The reverse of `read_value`."""
        return self.join([self.write_row(element) for element in elements])

    def join(self, rows: list[bytes]) -> bytes:
        """The reverse of `rows_in`."""
        if not self.is_list:
            return rows[0]
        return self.delimiter.join(len(row).to_bytes(_SIZE_BYTES, "little") + row for row in rows)


class StoreCodec:
    """Rows of a store.

    numbers:  column family -> its number in keys; empty without families
    Raises (every method):  UNSUPPORTED for a family that no schema file describes or whose kind is
             unknown.
    """

    def __init__(self, store: WholeStore, settings: StateSettings, numbers: Mapping[str, int]) -> None:
        self._store, self._settings = store, settings
        self._names = {number.to_bytes(_FAMILY_BYTES, "little"): name for name, number in numbers.items()}
        self._numbers = {name: number for number, name in self._names.items()}
        self._codecs: dict[str, FamilyCodec] = {}

    def over(self, store: WholeStore, numbers: Mapping[str, int]) -> StoreCodec:
        """The same for rows with other column families."""
        return StoreCodec(store, self._settings, numbers)

    def family_of(self, key: bytes) -> str:
        """The name of a row's family; that of the store if it has no families."""
        return self._names[key[:_FAMILY_BYTES]] if self._store.has_families else self._store.name

    def has(self, family: str) -> bool:
        """Whether the state's files number this family."""
        return family in self._numbers

    def of(self, family: str) -> FamilyCodec:
        """The codec of a family."""
        if family not in self._codecs:
            self._codecs[family] = self._codec(family)
        return self._codecs[family]

    def rows_of(self, fields: tuple[Field, ...]) -> tuple[Callable[[bytes], Columns], Callable[[Columns], bytes]]:
        """To read and to write a value with these columns, not in Avro."""
        read, write = decoder(fields), encoder(fields)
        if self._settings.provider == "hdfs":
            return read, write
        return lambda row: read(bare_row(row)), lambda columns: rocksdb_value(write(columns))

    def _codec(self, family: str) -> FamilyCodec:
        store, schema = self._store, self._store.families.get(family)
        is_list = store.has_families and store.is_list(family)
        if schema is None or is_list is None:
            raise _unsupported(f"No schema file describes the column family {family!r:.80} of store {store.id}.")
        is_avro = self._settings.encoding == "avro" and self._settings.provider == "rocksdb"
        if is_avro:  # rows are written by the newest schema
            read_row, write_row = avro_reader(schema.writers, schema.value), avro_writer(schema.value, schema.value_id)
        else:
            read_row, write_row = self.rows_of(schema.value)
        if self._settings.provider == "hdfs":
            return FamilyCodec(schema, False, decoder(schema.key), encoder(schema.key), read_row, write_row, b"")
        encoded, ordinals = schema.encoder, schema.ordinals
        if store.prefix:
            encoded, ordinals = "prefix", tuple(range(store.prefix))
        read = key_columns(schema.key, encoded, ordinals, avro=is_avro)
        write = key_writer(schema.key, encoded, ordinals, avro=schema.key_id if is_avro else None)
        front = self._numbers[family] if store.has_families else b""
        return FamilyCodec(
            schema,
            is_list,
            lambda key: read(key[len(front) :]),
            lambda columns: front + write(columns),
            read_row,
            write_row,
            self._settings.merge_delimiter,
        )


def _unsupported(message: str) -> CheckpointError:
    return CheckpointError("UNSUPPORTED", message, hint="Leave this state as it is, or have a query of Spark's change it.")
