"""From the bytes of a key row straight to the ordered key, for the kinds of keys that most jobs have.

Decoding the row and encoding its values costs more, for every changed row of every batch.  For keys
of whole numbers, times, text, binary and structs of these (windows), the bytes are rearranged
directly. A property test compares both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

from millpond.checkpoint.rows.columns import Spans
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.replica.keys.codec import INTEGER_BYTES, MAX_KEY_BYTES, KeyCodec
from millpond.schema.types import Field, SparkType

Transcode = Callable[[bytes], bytes]
_Column = Callable[[bytes, int], bytes]
"""(row, where the enclosing row begins) -> the column's bytes, its mark included"""

# Kinds of columns in native/c/order.c.
_WHOLE_NUMBER, _TEXT, _STRUCT = 0, 1, 2
_NULL = b"\x00"
_unpack_slot = Struct("<II").unpack_from
# The mark of a value and the first byte of a whole number with its sign bit flipped, by that byte.
_FIRST = [bytes((1, byte ^ 0x80)) for byte in range(256)]


def key_transcoder(fields: tuple[Field, ...], codec: KeyCodec) -> Transcode:
    """A function from the UnsafeRow bytes of a key to its ordered bytes, the same as `codec.encode(decode(row))`.

    Raises (the function):  CORRUPT_FILE if a length or an offset points outside the bytes.
    """
    decode, encode = decoder(fields), codec.encode
    if not fields or not all(_is_plain(f.type) for f in fields):
        return lambda row: encode(decode(row))
    columns = _columns(fields, codec.order)
    least = (len(fields) + 63) // 64 * 8 + 8 * len(fields)
    if len(columns) == 1:
        only = columns[0]

        def transcode_one(row: bytes) -> bytes:
            if len(row) < least:
                raise _short(row, least)
            return only(row, 0)

        return transcode_one

    def transcode(row: bytes) -> bytes:
        if len(row) < least:
            raise _short(row, least)
        return b"".join([column(row, 0) for column in columns])

    return transcode


class KeysTranscoder:
    """As `key_transcoder`, for many keys at once, by the compiled library."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        plain = bool(fields) and all(_is_plain(f.type) for f in fields)
        self._program = list(_program(fields, KeyCodec(fields).order)) if plain else []
        self._least = _least(fields)

    def transcode(self, rows: Spans) -> list[bytes] | None:
        """The ordered keys; None if a key is long, or needs decoding."""
        found = self.spans(rows)
        return None if found is None else calls.to_list(*found[:3])

    def spans(self, rows: Spans) -> Spans | None:
        """The same as spans in one buffer."""
        found = self._ordered(rows)
        return None if found is None or (found[2] >= MAX_KEY_BYTES).any() else Spans(*found)

    def _ordered(self, rows: Spans) -> calls.Pieces | None:
        if not self._program:
            return None
        import numpy as np

        return calls.order_keys(rows.data, rows.begin, rows.size, np.array(self._program, np.int64), self._least)


def _program(fields: tuple[Field, ...], order: Iterable[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """Columns in the form of `Column` in native/c/order.c."""
    bitset = (len(fields) + 63) // 64 * 8
    for i in order:
        type_ = fields[i].type
        if type_.kind == "struct":
            members = list(_program(type_.fields, range(len(type_.fields))))
            yield _STRUCT, i, bitset + 8 * i, _least(type_.fields), len(members)
            yield from members
        else:
            kind = _WHOLE_NUMBER if type_.kind in INTEGER_BYTES else _TEXT
            yield kind, i, bitset + 8 * i, INTEGER_BYTES.get(type_.kind, 0), 0


def _least(fields: tuple[Field, ...]) -> int:
    """The least number of bytes of a row with these fields."""
    return (len(fields) + 63) // 64 * 8 + 8 * len(fields)


def _is_plain(type_: SparkType) -> bool:
    if type_.kind == "struct":
        return all(_is_plain(f.type) for f in type_.fields)
    return type_.kind in INTEGER_BYTES or type_.kind in ("string", "binary")


def _columns(fields: tuple[Field, ...], order: tuple[int, ...]) -> list[_Column]:
    bitset = (len(fields) + 63) // 64 * 8
    return [_column(fields[i].type, i, bitset + 8 * i) for i in order]


def _column(type_: SparkType, index: int, slot: int) -> _Column:
    null_byte, null_bit = index >> 3, 1 << (index & 7)
    if type_.kind in INTEGER_BYTES:
        top, bottom = slot + INTEGER_BYTES[type_.kind] - 1, slot - 1

        def whole_number(row: bytes, base: int) -> bytes:
            if row[base + null_byte] & null_bit:
                return _NULL
            # Little-endian, read backwards. A nested row never begins at 0, and neither does a
            # slot.
            return _FIRST[row[base + top]] + row[base + top - 1 : base + bottom : -1]

        return whole_number
    if type_.kind == "struct":
        members = _columns(type_.fields, tuple(range(len(type_.fields))))
        least = (len(type_.fields) + 63) // 64 * 8 + 8 * len(type_.fields)

        def struct(row: bytes, base: int) -> bytes:
            if row[base + null_byte] & null_bit:
                return _NULL
            begin, size = _place(row, base, slot)
            if size < least:
                raise _short(row, begin + least)
            return b"\x01" + b"".join([member(row, begin) for member in members])

        return struct

    def text(row: bytes, base: int) -> bytes:
        if row[base + null_byte] & null_bit:
            return _NULL
        begin, size = _place(row, base, slot)
        raw = row[begin : begin + size]
        if b"\x00" in raw:
            raw = raw.replace(b"\x00", b"\x00\xff")
        return b"\x01" + raw + b"\x00\x01"

    return text


def _place(row: bytes, base: int, slot: int) -> tuple[int, int]:
    size, offset = _unpack_slot(row, base + slot)
    begin = base + offset
    if begin + size > len(row):
        raise _short(row, begin + size)
    return begin, size


def _short(row: bytes, wanted: int) -> CheckpointError:
    return CheckpointError(
        "CORRUPT_FILE",
        f"A key row of {len(row)} bytes claims {wanted}.",
        hint="Check that the schema file belongs to this checkpoint and that the file is whole.",
        row_bytes=len(row),
    )
