"""Rows of a prefix in key order, long keys included.

Keys that agree in their first 495 bytes may lie in the order of their hashes; such a group is read whole and sorted by the keys
that lie beside the values.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.replica.backend import Snapshot
from millpond.replica.ordered import PREFIX_BYTES, split_value


def iter_prefix(snapshot: Snapshot, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(ordered key, row) of every row whose ordered key begins with `prefix`, ascending."""
    start = prefix[:PREFIX_BYTES]
    group: list[tuple[bytes, bytes]] = []
    shared = b""
    for key, stored in snapshot.iterate(table, start):
        if not key.startswith(start):
            break
        if group and not key.startswith(shared):
            yield from _sorted(group, prefix)
            group = []
        if len(key) < PREFIX_BYTES:
            yield key, stored
        else:
            shared = key[:PREFIX_BYTES]
            group.append(split_value(key, stored))
    yield from _sorted(group, prefix)


def _sorted(group: list[tuple[bytes, bytes]], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    group.sort()
    return (pair for pair in group if pair[0].startswith(prefix))
