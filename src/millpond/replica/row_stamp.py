"""The stamp of each row in a replica: the batch that last changed it, and whether it is final.

stored value   the output of `codec.join_value`, then a little-endian uint64:
               four times the batch, plus
               0  changed in that batch
               1  changed in that batch or before: the replica was built from a snapshot there
               2  expired in that batch, by a watermark or a TTL: these are its last values
"""

from __future__ import annotations

from collections.abc import Iterable

STAMP_BYTES = 8
_AT_MOST, _FINAL = 1, 2


def stamp(batch: int) -> bytes:
    """The stamp of a row that `batch` changed."""
    return (batch << 2).to_bytes(STAMP_BYTES, "little")


def stamp_at_most(batch: int) -> bytes:
    """The stamp of a row that existed when the replica was built at `batch`."""
    return (batch << 2 | _AT_MOST).to_bytes(STAMP_BYTES, "little")


def stamp_final(batch: int) -> bytes:
    """The stamp of a row that expired in `batch`."""
    return (batch << 2 | _FINAL).to_bytes(STAMP_BYTES, "little")


def as_final(stored: bytes) -> bytes:
    """The stored value's stamp, marked final: the row's TTL has passed, but it is still in the state."""
    return (int.from_bytes(stored[-STAMP_BYTES:], "little") | _FINAL).to_bytes(STAMP_BYTES, "little")


def changed_batch(stored: bytes) -> int | None:
    """The batch that last changed a row, or removed a final one.  None if the replica was built since."""
    number = int.from_bytes(stored[-STAMP_BYTES:], "little")
    return None if number & _AT_MOST else number >> 2


def is_final(stored: bytes) -> bool:
    """Whether the row has expired, so that these are its last values."""
    return bool(stored[-STAMP_BYTES] & _FINAL)


def without_stamp(stored: bytes) -> bytes:
    """The value alone."""
    return stored[:-STAMP_BYTES]


def stamp_batch(stored: bytes) -> int:
    """The batch in a stamp of any kind."""
    return int.from_bytes(stored[-STAMP_BYTES:], "little") >> 2


def newest_stamp(values: Iterable[bytes]) -> bytes:
    """The stamp of a row that is merged from several: that of the last change; final if all are."""
    numbers = [int.from_bytes(stored[-STAMP_BYTES:], "little") for stored in values]
    # Of stamps with the same batch, prefer the exact one.
    newest = max(numbers, key=lambda number: (number >> 2, not number & _AT_MOST))
    if newest & _FINAL and not all(number & _FINAL for number in numbers):
        newest &= ~_FINAL
    return newest.to_bytes(STAMP_BYTES, "little")
