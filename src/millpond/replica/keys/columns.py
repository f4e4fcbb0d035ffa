"""Decodes many ordered keys to columns at once, and encodes columns; `codec` does so for all others.

It decodes keys of whole numbers, times and windows without NULL, all of the same length, and keys
of one text.  It encodes columns of numbers, times and texts.
"""

from __future__ import annotations

from millpond.checkpoint.rows.columns import Array, Column, Spans, span
from millpond.replica.keys.codec import INTEGER_BYTES, NULL, KeyCodec, text_key
from millpond.schema.types import Field, SparkType

_SIZES = {**INTEGER_BYTES, "boolean": 1, "float": 4, "double": 8}
_TEXT_MARKS = 3  # 01 in front, 00 01 behind


def read_ordered(fields: tuple[Field, ...], keys: list[bytes]) -> dict[int, Column] | None:
    """The columns of keys that `codec.KeyCodec` encoded, by place; None if they aren't such keys."""
    if not fields or not keys:
        return None
    if len(fields) == 1 and fields[0].type.kind in ("string", "binary"):
        column = _texts(fields[0].type, span(keys))
        return None if column is None else {0: column}
    if not all(_is_plain(f.type) for f in fields):
        return None
    import numpy as np

    width = sum(_width(f.type) for f in fields)
    if any(len(key) != width for key in keys):
        return None
    rows = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, width)
    out: dict[int, Column] = {}
    at = 0
    for place in KeyCodec(fields).order:
        column = _column(fields[place].type, rows, at)
        if column is None:
            return None
        out[place] = column
        at += _width(fields[place].type)
    return out


def write_ordered(column: Column) -> list[bytes] | None:
    """The ordered bytes of each value of a column, as `codec.column_writer` writes them; None for other columns."""
    if column.texts is not None:
        out = [text_key(text) for text in column.texts.tolist()]
    elif column.numbers is not None and column.type.kind in _SIZES:
        out = _numbers(column.numbers, column.type)
    else:
        return None
    if column.valid is not None:
        for place in (~column.valid).nonzero()[0].tolist():
            out[place] = NULL
    return out


def _numbers(numbers: Array, type_: SparkType) -> list[bytes]:
    import numpy as np

    size = _SIZES[type_.kind]
    bits = np.ascontiguousarray(numbers).view(f"<u{size}")
    top = bits.dtype.type(1 << (8 * size - 1))
    if type_.kind in ("float", "double"):
        bits = np.where(bits & top, ~bits, bits | top)
    elif type_.kind == "boolean":
        bits = (bits != 0).astype(bits.dtype)
    else:
        bits = bits ^ top
    rows: Array = np.empty((len(bits), 1 + size), np.uint8)
    rows[:, 0] = 1
    rows[:, 1:] = bits.astype(f">u{size}").view(np.uint8).reshape(-1, size)
    begin: Array = np.arange(len(bits), dtype=np.int64) * (1 + size)
    return Spans(rows.tobytes(), begin, np.full(len(bits), 1 + size, np.int64)).tolist()


def _is_plain(type_: SparkType) -> bool:
    return all(_is_plain(f.type) for f in type_.fields) if type_.kind == "struct" else type_.kind in INTEGER_BYTES


def _width(type_: SparkType) -> int:
    return 1 + (sum(_width(f.type) for f in type_.fields) if type_.kind == "struct" else INTEGER_BYTES[type_.kind])


def _column(type_: SparkType, rows: Array, at: int) -> Column | None:
    """The column at this byte of all keys; None if one of them is NULL."""
    if (rows[:, at] != 1).any():
        return None
    at += 1
    if type_.kind == "struct":
        members: list[Column] = []
        for field in type_.fields:
            member = _column(field.type, rows, at)
            if member is None:
                return None
            members.append(member)
            at += _width(field.type)
        return Column(type=type_, size=len(rows), valid=None, members=tuple(members))
    import numpy as np

    size = INTEGER_BYTES[type_.kind]
    unsigned = np.ascontiguousarray(rows[:, at : at + size]).view(f">u{size}").ravel().astype(f"<u{size}")
    numbers = (unsigned ^ unsigned.dtype.type(1 << (8 * size - 1))).view(f"<i{size}")
    return Column(type=type_, size=len(rows), valid=None, numbers=numbers)


def _texts(type_: SparkType, keys: Spans) -> Column | None:
    """The texts; None if one is NULL or has a zero byte, which is encoded as two bytes."""
    import numpy as np

    if (keys.size < _TEXT_MARKS).any() or b"\x00\xff" in keys.data:
        return None
    data = np.frombuffer(keys.data, np.uint8)
    last = keys.begin + keys.size - 1
    if (data[keys.begin] != 1).any() or (data[last] != 1).any() or (data[last - 1] != 0).any():
        return None
    texts = Spans(keys.data, keys.begin + 1, keys.size - _TEXT_MARKS)
    return Column(type=type_, size=len(keys.begin), valid=None, texts=texts)
