"""Which stateful operators a job has, which stores each keeps, and what their rows look like.

Operator ids count from the sink towards the sources.  Stores that only Spark needs are left out:
its counts and indexes (keyToNumValues, tsWithKey, $rowCounter_…, $ttl_…).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millpond.catalogue import KnownState
from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.infer_operator import JOIN_STORES, infer_operator
from millpond.checkpoint.log import CommittedBatch, read_conf
from millpond.checkpoint.position import Batch
from millpond.checkpoint.schemas import FamilySchema, parse_schema
from millpond.errors import CheckpointError, real_time_mode
from millpond.schema.definition.default_table import EXPIRES_AT, TIMESTAMP
from millpond.schema.store import PANDAS_TRANSFORM, StoreSchema, Variable, store_folder
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.schema.types import Field, atomic
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.names import numbers

# Names of stores become names of folders.
_STORE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_SCHEMA_PATH = re.compile(r"_stateSchema/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."
# Spark's name of aggregations in real-time mode.
_REAL_TIME_AGGREGATE = "StatefulStreamlineAggregate"
_JOIN = "symmetricHashJoin"
_LIMIT = "globalLimit"
_APPLY_FORMAT = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
_AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
_ENCODING_SETTING = "spark.sql.streaming.stateStore.encodingFormat"
_TRANSFORM = (PANDAS_TRANSFORM, "transformWithStateInPySparkExec")
_BOUNDS = FileBounds()
_INTERNAL = ("-keyToNumValues", "-tsWithKey")

_VARIABLES: dict[str, Variable] = {"ValueState": "value", "ListState": "list", "MapState": "map", "TimerState": "timer"}

# What dropDuplicates stores beside a key.  Old versions of Spark declare all columns of the input, and
# store this; no version compares the two.
_NOTHING = (Field("__dummy__", atomic("void")),)

# Spark's operator names -> the word in names of tables that nobody defined
SHORT_NAMES = {
    "stateStoreSave": "aggregate",
    "dedupe": "dedupe",
    "dedupeWithinWatermark": "dedupe",
    "globalLimit": "limit",
    "sessionWindowStateStoreSaveExec": "sessions",
    "symmetricHashJoin": "join",
    "applyInPandasWithState": "apply",
    PANDAS_TRANSFORM: "transform",
    "transformWithStateInPySparkExec": "transform",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadStore:
    """A store that can't be read, and why."""

    operator: int
    operator_name: str
    store: str
    error: CheckpointError


def read_stores(storage: Storage, batch: Batch) -> tuple[list[StoreSchema], list[UnreadStore]]:
    """Every store of every operator at `batch`: those that can be read, and those that can't.

    Raises:  FILE_GONE, CORRUPT_FILE, UNKNOWN_FORMAT if not even an operator's metadata can be read.
    """
    return _split(stores for operator in _operators(storage) for stores in _operator_stores(storage, operator, batch))


def read_each_operator(storage: Storage, batch: Batch) -> tuple[list[StoreSchema], list[UnreadStore]]:
    """As `read_stores`, but an operator whose metadata can't be read doesn't hide the others.

    It counts as one more unread store.
    """
    found: list[StoreSchema | UnreadStore] = []
    for operator in _operators(storage):
        try:
            found += _operator_stores(storage, operator, batch)
        except CheckpointError as error:
            found.append(UnreadStore(operator=operator, operator_name="unknown", store="default", error=error))
    return _split(found)


def _split(found: Iterable[StoreSchema | UnreadStore]) -> tuple[list[StoreSchema], list[UnreadStore]]:
    known: list[StoreSchema] = []
    unread: list[UnreadStore] = []
    for store in found:
        if isinstance(store, StoreSchema):
            known.append(store)
        else:
            unread.append(store)
    return known, unread


def _operators(storage: Storage) -> list[int]:
    return numbers(storage.names("state"))


def gone_state(storage: Storage, batch: CommittedBatch, known: KnownState | None = None) -> list[str]:
    """The folders of state that a batch must have and that aren't there: state/N, or `state` for all of it.

    Operators are numbered from 0 without a gap; in checkpoint format 2 the commit names those with
    state.  In format 1, a checkpoint without any state is that of a query without state, or has lost it.

    known:  None if that is decided elsewhere
    """
    there = set(_operators(storage))
    wanted = {*range(max(there, default=0)), *batch.state_ids, *(known.operators if known is not None else ())}
    if not there and not wanted and not batch.names_state and known is not None and not known.is_stateless:
        return ["state"]
    return [f"state/{operator}" for operator in sorted(wanted - there)]


def check_state(storage: Storage, batch: CommittedBatch, known: KnownState | None = None) -> None:
    """Raise FILE_GONE for the first folder of `gone_state`."""
    for path in gone_state(storage, batch, known):
        whole = " If the query keeps none, say so: --stateless." if path == "state" else ""
        raise CheckpointError(
            "FILE_GONE",
            f"{storage.uri}/{path} is gone, and batch {batch.batch} has state there.",
            hint=f"Restore the folder from a copy, or a savepoint; millpond repair shows what else is missing.{whole}",
            path=f"{storage.uri}/{path}",
        )


@dataclass(frozen=True, slots=True)
class _Metadata:
    """An operator's metadata file.

    stores:     (name, number of the key's leading columns, paths of schema files below the
                operator's folder)
    variables:  of transformWithState: name -> (kind, whether it has a TTL)
    """

    name: str
    stores: list[tuple[str, int, list[str]]]
    variables: dict[str, tuple[Variable, bool]]


def _operator_stores(storage: Storage, operator: int, batch: Batch) -> list[StoreSchema | UnreadStore]:
    metadata = _read_metadata(storage, operator, batch)
    found: list[StoreSchema | UnreadStore] = []
    for index, (store, prefix, paths) in enumerate(metadata.stores):
        try:
            if metadata.name == _REAL_TIME_AGGREGATE:
                raise real_time_mode(f"The state of operator {operator} ({metadata.name}) was written in real-time mode.")
            if metadata.name not in SHORT_NAMES:
                raise CheckpointError(
                    "UNSUPPORTED",
                    f"The state of operator {operator} ({metadata.name:.80}) can't be read.",
                    hint="Read the other operators of this job; COMPATIBILITY.md lists those that can be read.",
                    operator=operator,
                    operator_name=metadata.name,
                )
            if not store.endswith(_INTERNAL):
                found += _families(storage, operator, metadata, store, index, prefix, paths)
        except CheckpointError as error:
            found.append(UnreadStore(operator=operator, operator_name=metadata.name, store=store, error=error))
    return found


@dataclass(frozen=True, slots=True)
class OperatorFiles:
    """The files that describe an operator, whether or not its state can be read.

    metadata:  path of the metadata in force; None for a checkpoint of Spark 3.5 or older
    stores:    name of each store, in Spark's order -> paths of its schema files, oldest first
    prefixes:  name of each store -> how many leading columns Spark looks its keys up by
    lists:     the state variables of transformWithState that are lists
    others:    its other state variables
    """

    operator: int
    name: str
    metadata: str | None
    stores: dict[str, tuple[str, ...]]
    prefixes: dict[str, int]
    lists: frozenset[str]
    others: frozenset[str]


def read_operator_files(storage: Storage, batch: Batch, *, only: int | None = None) -> list[OperatorFiles]:
    """The files of each operator at a batch, or of one of them.

    Raises:  FILE_GONE, CORRUPT_FILE, UNKNOWN_FORMAT.
    """
    found = []
    for operator in _operators(storage) if only is None else [only]:
        metadata, path = _read_metadata(storage, operator, batch), metadata_path(storage, operator, batch)
        stores = {
            store: tuple(paths) or (f"{store_folder(operator, 0, store)}/_metadata/schema",) for store, _, paths in metadata.stores
        }
        is_there = storage.stamp(path) is not None
        lists = frozenset(name for name, (kind, _) in metadata.variables.items() if kind == "list")
        found.append(
            OperatorFiles(
                operator,
                metadata.name,
                path if is_there else None,
                stores,
                {store: prefix for store, prefix, _ in metadata.stores},
                lists,
                frozenset(metadata.variables) - lists,
            )
        )
    return found


def is_single(operator_name: str, *keys: tuple[Field, ...]) -> bool:
    """Whether only partition 0 has a store: that of a limit, or of an aggregation without keys.

    keys:  the key columns of its column families, if they are known
    """
    return operator_name == _LIMIT or (bool(keys) and not any(keys))


def metadata_path(storage: Storage, operator: int, batch: Batch) -> str:
    """The metadata file of a batch: in v2/ that with the greatest number up to it, or `metadata`."""
    folder = f"state/{operator}/_metadata"
    in_force = [n for n in numbers(storage.names(f"{folder}/v2")) if n <= batch]
    return f"{folder}/v2/{max(in_force)}" if in_force else f"{folder}/metadata"


def _read_metadata(storage: Storage, operator: int, batch: Batch) -> _Metadata:
    path = metadata_path(storage, operator, batch)
    if storage.stamp(path) is None and not has_metadata(conf := read_conf(storage, batch)):
        formats = [1 if conf.get(setting, "1") == "1" else 2 for setting in (_APPLY_FORMAT, _AGGREGATION_FORMAT)]
        return _infer_metadata(storage, operator, *formats)
    version, _, text = storage.read(path, _BOUNDS.schema_bytes).partition(b"\n")
    if version != (b"v2" if "/v2/" in path else b"v1"):
        raise CheckpointError("UNKNOWN_FORMAT", f"{path} has version {version[:80]!r}.", hint=_HINT, path=path)
    try:
        found = _parse_metadata(parse_json(text), operator)
        if version == b"v2" and not all(paths for _, _, paths in found.stores):
            raise ValueError("a store has no schema file")
        return found
    except DAMAGE as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"{path} isn't readable: {broken!r:.200}.", hint="Restore the file from a copy.", path=path
        ) from broken


def has_metadata(conf: dict[str, str]) -> bool:
    """Whether the Spark that planned a batch writes operators' metadata.

    Spark 4.0 began to write both the metadata and this setting: without the setting, no file is
    missing.
    """
    return _ENCODING_SETTING in conf


def anchored(text: bytes, checkpoint: str) -> bytes:
    """An operator's metadata with the paths of its schema files in another checkpoint.

    checkpoint:  its place as Spark writes it
    Raises:      ValueError, LookupError, TypeError if it isn't an operator's metadata.
    """
    version, _, body = text.partition(b"\n")
    data = parse_json(body)
    operator = f"{checkpoint}/state/{int(data['operatorInfo']['operatorId'])}"
    for store in data["stateStoreInfo"]:
        if "stateSchemaFilePaths" in store:
            ends = [old[old.rindex("/_stateSchema/") :] for old in store["stateSchemaFilePaths"]]
            store["stateSchemaFilePaths"] = [operator + end for end in ends]
    return version + b"\n" + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def named_checkpoint(text: bytes) -> str | None:
    """The checkpoint below which an operator's metadata names its schema files, as Spark wrote it; None if it names none.

    Raises:  ValueError, LookupError, TypeError if it isn't an operator's metadata.
    """
    for store in parse_json(text.partition(b"\n")[2])["stateStoreInfo"]:
        for path in store.get("stateSchemaFilePaths") or []:
            found: str = path[: path.rindex("/state/")]
            return found
    return None


def watermark_delays(storage: Storage, batch: Batch) -> dict[int, set[int]]:
    """The watermarks' delays in milliseconds that the schemas of each operator name.

    Raises:  FILE_GONE, CORRUPT_FILE, UNKNOWN_FORMAT.
    """
    found: dict[int, set[int]] = {}
    for operator in read_operator_files(storage, batch):
        last = [paths[-1] for paths in operator.stores.values() if storage.stamp(paths[-1]) is not None]
        found[operator.operator] = {delay for path in last for family in _read_schema(storage, path) for delay in family.delays_ms}
    return found


def _infer_metadata(storage: Storage, operator: int, apply_format: int, aggregation_format: int) -> _Metadata:
    """The metadata of an operator for checkpoints of Spark 3.5 and older, which have no file for it."""
    if set(JOIN_STORES) & set(storage.names(f"state/{operator}/0")):
        return _Metadata(_JOIN, [(store, 0, []) for store in JOIN_STORES], {})
    schema = _read_schema(storage, f"{store_folder(operator, 0, 'default')}/_metadata/schema")
    name, prefix = infer_operator(schema[0], apply_format=apply_format, aggregation_format=aggregation_format)
    return _Metadata(name, [("default", prefix, [])], {})


def _parse_metadata(data: dict[str, Any], operator: int) -> _Metadata:
    name = data["operatorInfo"]["operatorName"]
    stores = []
    for store in data["stateStoreInfo"]:
        # Paths are absolute, of the place where the checkpoint was written: only their end counts.
        paths = [path[path.rindex("/_stateSchema/") + 1 :] for path in store.get("stateSchemaFilePaths") or []]
        if not _STORE_NAME.fullmatch(store["storeName"]) or not all(_SCHEMA_PATH.fullmatch(path) for path in paths):
            raise ValueError("a name isn't one")
        stores.append((store["storeName"], int(store["numColsPrefixKey"]), [f"state/{operator}/{path}" for path in paths]))
    properties = parse_json(data.get("operatorPropertiesJson") or "{}")
    variables = {
        v["stateName"]: (_VARIABLES[v["stateVariableType"]], v["ttlEnabled"] is True) for v in properties.get("stateVariables", ())
    }
    if not all(isinstance(text, str) for text in (name, *variables)):
        raise ValueError("a name isn't one")
    return _Metadata(name, stores, variables)


def _families(
    storage: Storage, operator: int, metadata: _Metadata, store: str, index: int, prefix: int, paths: list[str]
) -> list[StoreSchema]:
    files = paths or [f"{store_folder(operator, 0, store)}/_metadata/schema"]
    versions = [_read_schema(storage, path) for path in files]
    found = []
    for family in versions[-1]:
        variable, ttl = metadata.variables.get(family.name, ("", False))
        if family.name.endswith(_INTERNAL) or (metadata.name in _TRANSFORM and not variable):
            continue
        writers = {old.value_id: old.value for version in versions for old in version if old.name == family.name}
        encoder, ordinals = family.encoder, family.ordinals
        if not family.name and 0 < prefix <= len(family.key):
            encoder, ordinals = "prefix", tuple(range(prefix))
        found.append(
            StoreSchema(
                operator=operator,
                operator_name=metadata.name,
                store=store,
                family=family.name,
                index=index,
                key=_with_time(family, is_timer=variable == "timer"),
                value=_NOTHING if metadata.name == "dedupe" else family.value,
                single=is_single(metadata.name, family.key),
                variable=variable,
                ttl=ttl,
                many=variable == "list" or (metadata.name == _JOIN and family.name.endswith("-keyWithTsToValues")),
                encoder=encoder,
                ordinals=ordinals,
                watermarked=family.watermarked,
                writers=tuple(sorted(writers.items())) if family.name else (),
                schema_file=files[-1],
            )
        )
    return found


def _with_time(family: FamilySchema, *, is_timer: bool) -> tuple[Field, ...]:
    """The key's columns; a time that Spark stores as a number becomes a time (see `encoding`)."""
    if is_timer:
        return tuple(Field(EXPIRES_AT, TIMESTAMP) if f.name == "expiryTimestampMs" else f for f in family.key)
    if family.encoder == "time_last":
        return (*family.key[:-1], Field(family.key[-1].name, TIMESTAMP))
    return family.key


def _read_schema(storage: Storage, path: str) -> list[FamilySchema]:
    try:
        return parse_schema(storage.read(path, _BOUNDS.schema_bytes))
    except CheckpointError as error:
        raise naming(error, path) if error.condition != "FILE_GONE" else error from error
