"""A store with all its column families, also those that only Spark needs, as one copies or rewrites it.

`operators` describes the families that a table can be made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from millpond.checkpoint.encoding import key_columns
from millpond.checkpoint.operators import OperatorFiles, is_single
from millpond.checkpoint.partition import Columns, hashed_columns
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.schemas import FamilySchema, parse_schema
from millpond.schema.murmur import row_hasher
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType
from millpond.settings import FileBounds
from millpond.storage import Storage

_LISTS_OF_JOINS = ("-keyWithTsToValues", "-tsWithKey")
_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStore:
    """One store of an operator, in all its partitions.

    operator:  with its files
    name:      of the store
    families:  by name; one, named by the store, if it has no column families
    has_families:  whether keys begin with the number of a column family
    files:     the store for finding its files: it has no columns
    """

    operator: OperatorFiles
    name: str
    families: dict[str, FamilySchema]
    has_families: bool
    files: StoreSchema

    @property
    def id(self) -> str:
        """The store's id in its job."""
        return self.files.id

    @property
    def is_single(self) -> bool:
        """Whether only partition 0 has it."""
        return self.files.single

    @property
    def prefix(self) -> int:
        """How many leading columns Spark looks keys up by; 0 for plain keys."""
        prefix = self.operator.prefixes[self.name]
        return prefix if not self.has_families and 0 < prefix <= len(self.families[self.name].key) else 0

    def row_hasher(self) -> Callable[[bytes], int]:
        """A function from a key's row to Spark's hash, for stores without column families.

        Raises (the function):  UNSUPPORTED for a type that Spark doesn't hash; CORRUPT_FILE.
        """
        family = self.families[self.name]
        return self._hasher(family, decoder(family.key))

    def key_hasher(self, family: FamilySchema, *, avro: bool) -> Callable[[bytes], int]:
        """The same for a key in RocksDB, behind its column family."""
        return self._hasher(family, self.key_reader(family, avro=avro))

    def key_reader(self, family: FamilySchema, *, avro: bool) -> Callable[[bytes], Columns]:
        """A function from a key in RocksDB, behind its column family, to its columns."""
        encoded, ordinals = family.encoder, family.ordinals
        if self.prefix:
            encoded, ordinals = "prefix", tuple(range(self.prefix))
        return key_columns(family.key, encoded, ordinals, avro=avro)

    def plain_hash(self, *, is_row: bool, avro: bool) -> tuple[int, int, list[SparkType]] | None:
        """How to hash a key without decoding it, for stores without column families.

        Returns the bytes before the key's row, the number of its columns, and the types of the first ones, which
        are hashed; None if there is more to it.

        is_row:  whether a key is a row, as in the HDFS-backed provider
        """
        if self.has_families or self.operator.name.startswith("transformWithState"):
            return None
        family = self.families[self.name]
        if not is_row and (avro or self.prefix or family.encoder != "plain"):
            return None
        fields, _ = hashed_columns(self.operator.name, family, self.families)
        return 0 if is_row else 1, len(family.key), [field.type for field in fields]

    def is_list(self, family: str) -> bool | None:
        """Whether the values of a family are lists; None if nothing says so."""
        if not self.operator.name.startswith("transformWithState"):
            return family.endswith(_LISTS_OF_JOINS)
        if family in self.operator.lists:
            return True
        return False if family in self.operator.others or family.startswith("$") else None

    def _hasher(self, family: FamilySchema, read: Callable[[bytes], Columns]) -> Callable[[bytes], int]:
        fields, take = hashed_columns(self.operator.name, family, self.families)
        hash_row = row_hasher(fields)
        return lambda key: hash_row(take(read(key)))


def read_whole_stores(storage: Storage, operator: OperatorFiles) -> list[WholeStore]:
    """The stores of an operator, in Spark's order.  Raises FILE_GONE, CORRUPT_FILE, UNKNOWN_FORMAT."""
    found = []
    for index, name in enumerate(operator.stores):
        families = read_families(storage, operator, name)
        has_families = "" not in families
        if not has_families:
            families = {name: replace(families[""], name=name)}
        is_in_one = is_single(operator.name, *(family.key for family in families.values()))
        files = any_rows(operator, name, index, single=is_in_one)
        found.append(WholeStore(operator=operator, name=name, families=families, has_families=has_families, files=files))
    return found


def read_families(storage: Storage, operator: OperatorFiles, store: str) -> dict[str, FamilySchema]:
    """The newest schema of every family that a store ever had, by name; one without a name if it has no families."""
    schemas = [parse_schema(storage.read(path, _BOUNDS.schema_bytes)) for path in operator.stores[store]]
    writers: dict[str, dict[int, tuple[Field, ...]]] = {}
    for family in (family for families in schemas for family in families):
        writers.setdefault(family.name, {})[family.value_id] = family.value
    newest = {family.name: family for families in schemas for family in families}
    return {name: replace(family, writers=tuple(sorted(writers[name].items()))) for name, family in newest.items()}


def any_rows(operator: OperatorFiles, store: str, index: int, *, single: bool) -> StoreSchema:
    """A store without its columns, which don't matter for finding its files."""
    return StoreSchema(
        operator=operator.operator, operator_name=operator.name, store=store, index=index, key=(), value=(), single=single
    )
