"""Operators whose metadata or schema files are lost: enough of both to find the files of their state.

Spark 4.3 writes metadata of version 1 and schemas of version 2 again from the query, if they are
missing, and compares nothing.  So a copy leaves damaged ones out.  What is made up here is never
written to a checkpoint: it only says which stores and partitions there are.

1. The stores are those of a join, if there are folders of these; else there is one.
2. Without a schema, a store that has files in partition 0 alone is single if all its keys are
   empty, as those of an aggregation without keys are.
3. Metadata of version 2 and schemas of version 3 can't be made up: Spark itself fails without them,
   but for the schemas of a join. An older metadata file will do, if it names all schema files.
"""

from __future__ import annotations

import json

from millpond.checkpoint.files.record_spans import locate_changelog, locate_records
from millpond.checkpoint.infer_operator import JOIN_STORES, infer_operator
from millpond.checkpoint.log import CommittedBatch, read_conf
from millpond.checkpoint.operators import has_metadata, metadata_path, read_operator_files
from millpond.checkpoint.rocksdb.snapshot import folder_and_name, iter_snapshot
from millpond.checkpoint.schemas import parse_schema
from millpond.checkpoint.state import StateReader, unpack
from millpond.errors import CheckpointError
from millpond.schema.store import StoreSchema, store_folder
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.names import numbers

_BOUNDS = FileBounds()
_JOIN = "symmetricHashJoin"
_NO_COLUMNS = json.dumps({"type": "struct", "fields": []}).encode()


def needs_schema_files(storage: Storage, operator: int) -> bool:
    """Whether an operator has schemas of version 3, without which Spark doesn't start."""
    return bool(storage.names(f"state/{operator}/_stateSchema"))


def writes_schema_files(storage: Storage, operator: int, batch: CommittedBatch) -> bool:
    """Whether Spark writes lost schemas of version 3 again, from the query: it does for joins."""
    try:
        return all(found.name == _JOIN for found in read_operator_files(storage, batch.batch, only=operator))
    except CheckpointError:
        return False


def make_up(view: Storage, operator: int, batch: CommittedBatch) -> list[str]:
    """Write what is missing of an operator's metadata and schema into a view; returns the paths of what was made up."""
    made = []
    path = f"state/{operator}/_metadata/metadata"
    schema = f"{store_folder(operator, 0, 'default')}/_metadata/schema"
    joined = set(JOIN_STORES) & set(view.names(f"state/{operator}/0"))
    # Spark 3.5 has no metadata, and Millpond infers it from the schema.
    is_lost = has_metadata(read_conf(view, batch.batch)) or (not joined and view.stamp(schema) is None)
    if view.stamp(path) is None and is_lost:  # 1
        stores = JOIN_STORES if joined else ("default",)
        name, prefix = (_JOIN, 0) if joined else _infer(view, operator)
        text = {
            "operatorInfo": {"operatorId": operator, "operatorName": name},
            "stateStoreInfo": [{"storeName": store, "numColsPrefixKey": prefix, "numPartitions": 1} for store in stores],
        }
        view.write(path, b"v1\n" + json.dumps(text).encode())
        made.append(path)
    if not joined and view.stamp(schema) is None and _has_no_keys(view, operator, batch):  # 2
        view.write(schema, _encode_schema(_NO_COLUMNS, _NO_COLUMNS))
        made.append(schema)
    return made


def older_metadata(storage: Storage, operator: int, batch: CommittedBatch) -> str | None:  # 3
    """An older metadata file that names all schema files of an operator; None if there is none."""
    folder = f"state/{operator}/_metadata/v2"
    damaged = metadata_path(storage, operator, batch.batch)
    there = {
        f"{store}/{name}"
        for store in storage.names(f"state/{operator}/_stateSchema")
        for name in storage.names(f"state/{operator}/_stateSchema/{store}")
    }
    for number in reversed(numbers(storage.names(folder))):
        path = f"{folder}/{number}"
        if number > batch.batch or path == damaged:
            continue
        try:
            data = parse_json(storage.read(path, _BOUNDS.schema_bytes).partition(b"\n")[2])
            named = {
                old.partition("/_stateSchema/")[2] for store in data["stateStoreInfo"] for old in store["stateSchemaFilePaths"]
            }
        except (CheckpointError, *DAMAGE):
            continue
        return path if named == there else None
    return None


def _infer(view: Storage, operator: int) -> tuple[str, int]:
    try:
        path = f"{store_folder(operator, 0, 'default')}/_metadata/schema"
        return infer_operator(parse_schema(view.read(path, _BOUNDS.schema_bytes))[0], apply_format=2)
    except CheckpointError:
        return "unknown", 0


def _has_no_keys(view: Storage, operator: int, batch: CommittedBatch) -> bool:
    if numbers(view.names(f"state/{operator}")) != [0]:
        return False
    store = StoreSchema(operator=operator, operator_name="unknown", store="default", index=0, key=(), value=(), single=True)
    reader = StateReader(view)
    try:
        base, changes = reader.files(batch, store, 0)
        keys: set[bytes] = set()
        for path in ([base] if base is not None else []) + changes:
            if path.endswith(".zip"):
                keys.update(key for key, _ in iter_snapshot(view, *folder_and_name(path)))
                continue
            data = unpack(view, path, batch.settings.codec)
            found = locate_changelog(data) if path.endswith(".changelog") else locate_records(data)
            keys.update(found.keys.tolist())
    except CheckpointError:
        return False
    # RocksDB's keys begin with the version of their encoding.
    return bool(keys) and keys <= {b"", b"\0"}


def _encode_schema(key: bytes, value: bytes) -> bytes:
    """A schema file of version 2: Java's texts, each with its length; a schema is a list of them."""
    parts = [(1).to_bytes(4, "big") + len(text).to_bytes(2, "big") + text for text in (key, value)]
    return (2).to_bytes(2, "big") + b"v2" + b"".join(parts)
