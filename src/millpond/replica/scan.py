"""Rows between two keys, in key order or against it, with long keys.

Keys with equal first 495 bytes are stored in the order of their hashes.  Such a group is read whole
and sorted by the whole keys, which are stored beside the values.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.replica.backends.base import Snapshot
from millpond.replica.keys.codec import PREFIX_BYTES, split_value

Pairs = Iterator[tuple[bytes, bytes]]


def iter_prefix(snapshot: Snapshot, table: str, prefix: bytes) -> Pairs:
    """(ordered key, row) of every row whose ordered key begins with `prefix`, ascending."""
    return iter_range(snapshot, table, prefix, after_prefix(prefix))


def iter_range(snapshot: Snapshot, table: str, low: bytes, high: bytes | None, *, reverse: bool = False) -> Pairs:
    """(ordered key, row) of every row from `low` on and below `high`, ascending; descending if `reverse`.

    high:  None if there is no end
    """
    if high is not None and high <= low:
        return iter(())
    return _in_range(snapshot, table, low, high, reverse)


def after_prefix(prefix: bytes) -> bytes | None:
    """The least key above every key that begins with `prefix`; None if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


def _in_range(snapshot: Snapshot, table: str, low: bytes, high: bytes | None, reverse: bool) -> Pairs:
    # All keys of a group share their first bytes: these decide where the stored keys begin and end.
    begin = low[:PREFIX_BYTES]
    end = None if high is None else high if len(high) <= PREFIX_BYTES else after_prefix(high[:PREFIX_BYTES])
    group: list[tuple[bytes, bytes]] = []
    shared = b""
    for key, stored in snapshot.iterate_back(table, end) if reverse else snapshot.iterate(table, begin):
        if key < begin if reverse else end is not None and key >= end:
            break
        if group and not key.startswith(shared):
            yield from _sorted(group, low, high, reverse)
            group = []
        if len(key) < PREFIX_BYTES:
            if key >= low:
                yield key, stored
        else:
            shared = key[:PREFIX_BYTES]
            group.append(split_value(key, stored))
    yield from _sorted(group, low, high, reverse)


def _sorted(group: list[tuple[bytes, bytes]], low: bytes, high: bytes | None, reverse: bool) -> list[tuple[bytes, bytes]]:
    group.sort(reverse=reverse)
    return [pair for pair in group if pair[0] >= low and (high is None or pair[0] < high)]
