"""The batch that last changed a row, in the last eight bytes of every value of a replica.

stored value = what `ordered.join_value` makes, then a signed little-endian int64
               n >= 0:  changed in batch n
               n < 0:   changed in batch -n - 1 or before: the replica was built there, from a snapshot that doesn't tell
"""

from __future__ import annotations

STAMP_BYTES = 8


def stamp(batch: int) -> bytes:
    """Of a row that `batch` changed."""
    return batch.to_bytes(STAMP_BYTES, "little", signed=True)


def stamp_at_most(batch: int) -> bytes:
    """Of a row that was there when the replica was built at `batch`."""
    return stamp(-batch - 1)


def changed_batch(stored: bytes) -> int | None:
    """The batch that last changed a row; None where it was changed before the replica was built."""
    number = int.from_bytes(stored[-STAMP_BYTES:], "little", signed=True)
    return number if number >= 0 else None


def without_stamp(stored: bytes) -> bytes:
    """The value alone."""
    return stored[:-STAMP_BYTES]
