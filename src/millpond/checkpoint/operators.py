"""Which stateful operators a job has, which stores each keeps, and what their rows look like.

Operator ids count from the sink towards the sources.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from millpond.checkpoint.codecs import corrupt, incomplete, naming
from millpond.errors import CheckpointError
from millpond.schema.types import Field, parse_fields
from millpond.storage import Storage

_METADATA_VERSIONS = ("v1", "v2")
# Names of stores become names of folders.
_STORE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."

# Spark's operator names -> the word in names of tables that nobody defined
SHORT_NAMES = {
    "stateStoreSave": "aggregate",
    "dedupe": "dedupe",
    "dedupeWithinWatermark": "dedupe",
    "globalLimit": "limit",
    "sessionWindowStateStoreSaveExec": "sessions",
    "symmetricHashJoin": "join",
    "applyInPandasWithState": "apply",
    "transformWithStateInPandasExec": "transform",
    "transformWithStateInPySparkExec": "transform",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSchema:
    """One store of an operator, and its rows.

    operator:       Spark's operator id
    operator_name:  Spark's name, e.g. stateStoreSave
    store:          Spark's store name
    index:          the store's place in the operator's list, which orders its ids in commits/N
    key, value:     the columns of its rows
    single:         whether only partition 0 has it (limit, aggregation without keys)
    """

    operator: int
    operator_name: str
    store: str
    index: int
    key: tuple[Field, ...]
    value: tuple[Field, ...]
    single: bool

    def folder(self, partition: int) -> str:
        """Where the files of one partition lie, below the checkpoint."""
        return store_folder(self.operator, partition, self.store)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadStore:
    """A store that can't be read, and why."""

    operator: int
    operator_name: str
    store: str
    error: CheckpointError


def store_folder(operator: int, partition: int, store: str) -> str:
    """The folder of one partition of a store; the store called `default` has no level of its own."""
    return f"state/{operator}/{partition}" + ("" if store == "default" else f"/{store}")


def read_stores(storage: Storage) -> tuple[list[StoreSchema], list[UnreadStore]]:
    """Every store of every operator, those that can be read and those that can't.

    Raises:  FILE_GONE, CORRUPT_FILE, UNKNOWN_FORMAT where not even an operator's metadata can be read.
    """
    known: list[StoreSchema] = []
    unread: list[UnreadStore] = []
    for operator in sorted(int(name) for name in storage.names("state") if name.isdecimal() and name.isascii()):
        for store in _operator_stores(storage, operator):
            if isinstance(store, StoreSchema):
                known.append(store)
            else:
                unread.append(store)
    return known, unread


def read_each_operator(storage: Storage) -> tuple[list[StoreSchema], list[UnreadStore]]:
    """As `read_stores`, but an operator whose metadata can't be read is one more unread store: it doesn't hide the others."""
    known: list[StoreSchema] = []
    unread: list[UnreadStore] = []
    for operator in sorted(int(name) for name in storage.names("state") if name.isdecimal() and name.isascii()):
        try:
            stores = _operator_stores(storage, operator)
        except CheckpointError as error:
            stores = [UnreadStore(operator=operator, operator_name="unknown", store="default", error=error)]
        known += [s for s in stores if isinstance(s, StoreSchema)]
        unread += [s for s in stores if isinstance(s, UnreadStore)]
    return known, unread


def _operator_stores(storage: Storage, operator: int) -> list[StoreSchema | UnreadStore]:
    folder = f"state/{operator}/_metadata"
    if storage.stamp(f"{folder}/metadata") is None and storage.names(f"{folder}/v2"):
        error = CheckpointError(
            "UNSUPPORTED",
            f"Operator {operator} keeps its state in column families (metadata version 2), which can't be read yet.",
            hint="Read aggregations and deduplications; support for this operator is planned.",
            operator=operator,
        )
        return [UnreadStore(operator=operator, operator_name="unknown", store="default", error=error)]
    path = f"{folder}/metadata"
    version, _, text = storage.read(path).decode("utf-8", "replace").partition("\n")
    if version not in _METADATA_VERSIONS:
        raise CheckpointError("UNKNOWN_FORMAT", f"{path} has version {version!r}.", hint=_HINT, path=path)
    try:
        data = json.loads(text)
        name = data["operatorInfo"]["operatorName"]
        stores = [(s["storeName"], int(s["numColsPrefixKey"])) for s in data["stateStoreInfo"]]
        if not isinstance(name, str) or not all(isinstance(s, str) and _STORE_NAME.fullmatch(s) for s, _ in stores):
            raise ValueError("a name isn't one")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"{path} isn't readable: {broken!r}.", hint="Restore the file from a copy.", path=path
        ) from broken
    return [_store(storage, operator, name, store, i, prefix) for i, (store, prefix) in enumerate(stores)]


def _store(storage: Storage, operator: int, name: str, store: str, index: int, prefix: int) -> StoreSchema | UnreadStore:
    try:
        if prefix or name not in ("stateStoreSave", "dedupe", "dedupeWithinWatermark", "globalLimit"):
            raise CheckpointError(
                "UNSUPPORTED",
                f"The state of operator {operator} ({name}) can't be read yet.",
                hint="Read aggregations and deduplications; support for this operator is planned.",
                operator=operator,
                operator_name=name,
            )
        path = f"{store_folder(operator, 0, store)}/_metadata/schema"
        try:
            key, value = parse_schema(storage.read(path))
        except CheckpointError as error:
            raise naming(error, path) if error.condition != "FILE_GONE" else error from error
    except CheckpointError as error:
        return UnreadStore(operator=operator, operator_name=name, store=store, error=error)
    single = name == "globalLimit" or not key
    return StoreSchema(operator=operator, operator_name=name, store=store, index=index, key=key, value=value, single=single)


def parse_schema(data: bytes) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Turn a state schema file into the columns of key and value.

    Shape:   UTF "v2"; then key and value schema, each as int32 count and that many UTF pieces of JSON to concatenate
             (UTF: int16 length, bytes; big-endian).  Version 1 has each schema as one piece.
    Raises:  INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT (version 3: stores with column families).
    Source:  SchemaHelper, Spark 4.3; golden checkpoints.
    """
    version, position = _utf(data, 0)
    if version == "v2":
        key, position = _pieces(data, position)
        value, position = _pieces(data, position)
    elif version == "v1":
        key, position = _utf(data, position)
        value, position = _utf(data, position)
    else:
        raise CheckpointError("UNKNOWN_FORMAT", f"The schema has version {version!r}.", hint=_HINT, version=version)
    try:
        return parse_fields(json.loads(key)), parse_fields(json.loads(value))
    except (ValueError, KeyError, TypeError, RecursionError) as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"The schema isn't readable: {broken!r}.", hint="Restore the file from a copy."
        ) from broken


def _utf(data: bytes, position: int) -> tuple[str, int]:
    size = int.from_bytes(data[position : position + 2], "big")
    end = position + 2 + size
    if position + 2 > len(data) or end > len(data):
        raise incomplete("a text", position)
    # Java writes modified UTF-8: NUL as C0 80, characters outside the BMP as two surrogates of three bytes each.
    raw = data[position + 2 : end].replace(b"\xc0\x80", b"\x00")
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as broken:
        raise corrupt("a text isn't UTF-8", position + 2 + broken.start) from broken
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), end


def _pieces(data: bytes, position: int) -> tuple[str, int]:
    if position + 4 > len(data):
        raise incomplete("a count", position)
    count = int.from_bytes(data[position : position + 4], "big", signed=True)
    position += 4
    if not 0 <= count <= len(data):
        raise incomplete("its pieces", position)
    parts = []
    for _ in range(count):
        part, position = _utf(data, position)
        parts.append(part)
    return "".join(parts), position
