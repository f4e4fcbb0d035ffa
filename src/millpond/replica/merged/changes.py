"""Changes of a table whose store lies in parts: the merged row before and after each batch.

Changes of a row in several parts by one batch are one change of the merged row.  Changes that leave
the merged row the same are left out.  Each batch's changes are numbered in key order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import msgspec

from millpond.replica.backends.base import Snapshot
from millpond.replica.history.as_of import NumberedChange, SnapshotAsOf, iter_changes, kept_of, whole_key
from millpond.replica.history.keeper import Change
from millpond.replica.keys.codec import join_value, split_value, store_key
from millpond.replica.merged.snapshot import SnapshotOfParts, StoreParts
from millpond.replica.record import ReplicaRecord, StoresRecord
from millpond.replica.row_stamp import newest_stamp, without_stamp


def iter_merged_changes(
    rows: Snapshot, stores: StoresRecord, record: ReplicaRecord, store: int, parts: StoreParts, first: int, number: int
) -> Iterator[NumberedChange]:
    """The changes from a batch on, of that batch from a number on: see `history.iter_changes`.

    Memory holds the changes of one batch.
    Raises:  what `parts.merge` raises.
    """
    seen_as_one = {last for _, last in kept_of(record, parts.store).collapsed}

    def as_of(batch: int) -> SnapshotOfParts:
        earlier = SnapshotAsOf(rows, stores, msgspec.structs.replace(record, batch=batch))
        return SnapshotOfParts(earlier, parts, None)

    for batch, changes in groupby(iter_changes(rows, store, first), key=itemgetter(0)):
        by_key: dict[bytes, dict[int, Change]] = {}
        for _, _, change in changes:
            part, key = parts.split(whole_key(change))
            by_key.setdefault(key, {})[part] = change
        before, after = as_of(batch - 1), as_of(batch)
        for place, key in enumerate(sorted(by_key, key=store_key)):
            if batch == first and place < number:
                continue
            old, new = before.get(parts.store, store_key(key)), after.get(parts.store, store_key(key))
            if old is not None and new is not None:
                if without_stamp(old) != without_stamp(new):
                    yield batch, place, Change(store_key(key), "update", old, new)
            elif new is not None:
                yield batch, place, Change(store_key(key), "insert", None, new)
            elif old is not None or batch not in seen_as_one:
                # The row is gone: this batch removed it from all parts.
                last = None if batch in seen_as_one else _last(parts, key, by_key[key])
                if old is not None or last is not None:
                    kind = next(change.kind for change in by_key[key].values())
                    yield batch, place, Change(store_key(key), kind, old, last)


def _last(parts: StoreParts, key: bytes, gone: dict[int, Change]) -> bytes | None:
    """The last value of a removed row, if it is known for each part."""
    found: list[bytes | None] = [None] * len(parts.prefixes)
    for part, change in gone.items():
        value = None if change.new is None else split_value(change.key, change.new)[1]
        if value is None or not without_stamp(value):
            return None
        found[part] = value
    merged = parts.merge(key, [None if value is None else without_stamp(value) for value in found])
    return join_value(key, merged + newest_stamp(value for value in found if value is not None))
