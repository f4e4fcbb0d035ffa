"""State schema files: the columns of a store's rows.

    version 1 and 2   one key schema, one value schema
    version 3         column families, each with its key schema, its value schema with an id, and its key encoding

UTF: int16 length and bytes; pieces: int32 count and that many UTF to concatenate.  All numbers are
big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millpond.checkpoint.files.codecs import corrupt, incomplete
from millpond.errors import CheckpointError
from millpond.schema.store import KeyEncoder
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.schema.types import Field, parse_fields

_ENCODERS: dict[str, KeyEncoder] = {
    "NoPrefixKeyStateEncoderSpec": "plain",
    "PrefixKeyScanStateEncoderSpec": "prefix",
    "RangeKeyScanStateEncoderSpec": "range",
    "TimestampAsPrefixKeyStateEncoderSpec": "time_first",
    "TimestampAsPostfixKeyStateEncoderSpec": "time_last",
}
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."
_MAX_FAMILIES = 10_000
_DELAY = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySchema:
    """The schema of a store's rows, or of one of its column families.

    name:      of the column family; empty if the store has none
    value_id:  of the value schema, which Avro rows name
    encoder:   how keys are laid out in RocksDB
    ordinals:  the leading columns: for `prefix` the first ones, for `range` the ordered ones
    watermarked:  the key's columns that are compared with the watermark: a time, or a window
    delays_ms:    the delays of the watermarks of its columns
    key_id:       of the key schema, which keys in Avro name
    writers:      (id, columns) of each value schema that the family ever had; empty for one file alone
    timed:        the value's columns that have a watermark: a time, or a window
    """

    name: str
    key: tuple[Field, ...]
    value: tuple[Field, ...]
    value_id: int = 0
    encoder: KeyEncoder = "plain"
    ordinals: tuple[int, ...] = ()
    watermarked: tuple[int, ...] = ()
    delays_ms: frozenset[int] = frozenset()
    key_id: int = 0
    writers: tuple[tuple[int, tuple[Field, ...]], ...] = ()
    timed: tuple[int, ...] = ()


def parse_schema(data: bytes) -> list[FamilySchema]:
    """Turn a state schema file into its families; one without a name for version 1 and 2.

    Raises:  INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT.
    Source:  SchemaHelper, StateStoreColFamilySchema, Spark 4.3; golden checkpoints.
    """
    version, position = _utf(data, 0)
    if version == "v1":
        key, position = _utf(data, position)
        value, position = _utf(data, position)
        return [_family("", key, value)]
    if version == "v2":
        key, position = _pieces(data, position)
        value, position = _pieces(data, position)
        return [_family("", key, value)]
    if version != "v3":
        raise CheckpointError("UNKNOWN_FORMAT", f"The schema has version {version!r}.", hint=_HINT, version=version)
    count, position = _number(data, position, 4)
    if not 0 <= count <= _MAX_FAMILIES:
        raise corrupt(f"the schema claims {count} column families", position - 4)
    families = []
    for _ in range(count):
        name, position = _utf(data, position)
        key_id, position = _number(data, position, 2)
        key, position = _pieces(data, position)
        value_id, position = _number(data, position, 2)
        value, position = _pieces(data, position)
        encoder, position = _pieces(data, position)
        _, position = _pieces(data, position)  # the user's key of a map, which is in the key schema as well
        families.append(replace(_family(name, key, value, value_id, encoder), key_id=key_id))
    return families


def _family(name: str, key: str, value: str, value_id: int = 0, encoder: str = "") -> FamilySchema:
    try:
        key_json, value_json = parse_json(key), parse_json(value)
        key_fields, value_fields = parse_fields(key_json), parse_fields(value_json)
        watermarked, timed = (
            tuple(i for i, f in enumerate(columns["fields"]) if _DELAY in (f.get("metadata") or {}))
            for columns in (key_json, value_json)
        )
        delays = [(f.get("metadata") or {}).get(_DELAY) for f in (*key_json["fields"], *value_json["fields"])]
        kind, ordinals = _encoder(parse_json(encoder) if encoder else {}, len(key_fields))
    except DAMAGE as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"The schema isn't readable: {broken!r:.200}.", hint="Restore the file from a copy."
        ) from broken
    return FamilySchema(
        name=name,
        key=key_fields,
        value=value_fields,
        value_id=value_id,
        encoder=kind,
        ordinals=ordinals,
        watermarked=watermarked,
        delays_ms=frozenset(delay for delay in delays if type(delay) is int),
        timed=timed,
    )


def _encoder(spec: dict[str, Any], columns: int) -> tuple[KeyEncoder, tuple[int, ...]]:
    named = spec.get("keyStateEncoderType", "NoPrefixKeyStateEncoderSpec")
    kind = _ENCODERS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise CheckpointError("UNKNOWN_FORMAT", f"Keys are encoded by {named!r:.80}, which isn't known here.", hint=_HINT)
    if kind == "prefix":
        count = int(spec["numColsPrefixKey"])
        ordinals = tuple(range(count)) if 0 < count <= columns else ()
    elif kind == "range":
        ordinals = tuple(int(i) for i in spec["orderingOrdinals"])
    else:
        return kind, ()
    if not ordinals or len(set(ordinals)) != len(ordinals) or not all(0 <= i < columns for i in ordinals):
        raise ValueError("the key's encoder names columns that it doesn't have")
    return kind, ordinals


def _number(data: bytes, position: int, size: int) -> tuple[int, int]:
    if position + size > len(data):
        raise incomplete("a number", position)
    return int.from_bytes(data[position : position + size], "big", signed=True), position + size


def _utf(data: bytes, position: int) -> tuple[str, int]:
    size = int.from_bytes(data[position : position + 2], "big")
    end = position + 2 + size
    if position + 2 > len(data) or end > len(data):
        raise incomplete("a text", position)
    # Java writes modified UTF-8: NUL as C0 80, characters outside the BMP as two surrogates of
    # three bytes each.
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
