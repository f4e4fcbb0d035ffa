"""Finds all records of a change log or snapshot at once: the same that `records` finds one by one.

The compiled library walks the file.  If it rejects the file, `records.iter_spans` reads it record
by record, and raises the error.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.checkpoint.files.records import iter_spans, parse_changelog_header
from millpond.checkpoint.rows.columns import Array, Spans
from millpond.native import calls


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpans:
    """The records of one file, in write order.

    kinds:  uint8 array, see `records`
    """

    kinds: Array
    keys: Spans
    values: Spans


def locate_changelog(data: bytes) -> RecordSpans:
    """The records of a decompressed RocksDB change log of any version.

    Raises as `records.iter_changelog`.
    """
    header = parse_changelog_header(data)
    return locate_records(data, header.start, typed=header.version in (2, 4))


def locate_records(data: bytes, start: int = 0, *, typed: bool = False) -> RecordSpans:
    """The records of a decompressed delta, snapshot or change log, from `start` on.

    typed:   whether each begins with its type
    Raises:  as `records.iter_records`.
    """
    found = calls.find_records(data, start, typed=typed)
    return _spans(data, _one_by_one(data, start, typed=typed) if found is None else found)


def find_whole_records(data: bytes) -> tuple[RecordSpans, int] | None:
    """The whole records in the first part of a delta or snapshot, and where the last one ends.

    None without the library.
    """
    found = calls.find_whole_records(data, typed=False)
    return None if found is None else (_spans(data, found[0]), found[1])


def _one_by_one(data: bytes, start: int, *, typed: bool) -> calls.Records:
    import numpy as np

    records = list(iter_spans(data, start, typed=typed))
    kinds, *places = zip(*records, strict=True) if records else ((), (), (), (), ())
    key_begin, key_size, begin, size = (np.array(part, np.int64) for part in places)
    return np.array(kinds, np.uint8), key_begin, key_size, begin, size


def _spans(data: bytes, found: calls.Records) -> RecordSpans:
    kinds, key_begin, key_size, begin, size = found
    return RecordSpans(kinds=kinds, keys=Spans(data, key_begin, key_size), values=Spans(data, begin, size))
