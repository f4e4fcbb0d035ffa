"""The changes between two RocksDB snapshots, for jobs without change logs.

1. SSTs never change, and have unique names.  SSTs of both snapshots are shared; the others are
   fresh or gone.  A key with entries only in shared SSTs has the same versions in both snapshots,
   and so the same value.  Only keys of fresh and gone SSTs can have changed.
2. If no SST is gone and all fresh ones were written after all shared ones, the fresh SSTs decide.
   Shared ones are read only for keys to which elements were appended.
3. Otherwise there was a compaction: its output may be older than shared SSTs, and dropped entries
   are nowhere.  Look the keys up in both snapshots, on all levels; those that differ are the
   changes.

This doesn't depend on how compactions work: 1 is true for any two snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.rocksdb.blocks import MERGE
from millpond.checkpoint.rocksdb.merge import Row, iter_merged, iter_versions, resolve_all
from millpond.checkpoint.rocksdb.snapshot import SnapshotFile, read_snapshot, runs_of
from millpond.errors import CheckpointError
from millpond.storage import Storage


def iter_snapshot_changes(storage: Storage, folder: str, old: str | None, new: str, delimiter: bytes = b"") -> Iterator[Row]:
    """Keys whose value may have changed, in order, with the new value; None for a deleted key.

    A key may come with an unchanged value.

    old, new:   names of zips without their ending; old is None for an empty state
    delimiter:  as in `snapshot.iter_snapshot`
    Raises:     FILE_GONE if a file is missing, or one that only the old snapshot has is damaged:
                the new one may still be readable as a whole.  CORRUPT_FILE, INCOMPLETE_FILE,
                UNKNOWN_FORMAT for files of the new one.
    """
    after = read_snapshot(storage, folder, new)
    needed = {after.path, *(path for path, _ in after.files)}
    try:
        before = read_snapshot(storage, folder, old) if old else None
        yield from _changes(storage, before.files if before else (), after.files, delimiter)
    except CheckpointError as error:
        if "path" not in error.context:
            raise naming(error, after.path) from error
        if error.condition == "FILE_GONE" or error.context["path"] in needed:
            raise
        raise CheckpointError(
            "FILE_GONE",
            f"What changed since {folder}/{old}.zip is unknown: {error.message}",
            hint="The replica is built again by itself.",
            path=error.context["path"],
        ) from error


def _changes(storage: Storage, old: tuple[SnapshotFile, ...], new: tuple[SnapshotFile, ...], delimiter: bytes) -> Iterator[Row]:
    old_paths, new_paths = {path for path, _ in old}, {path for path, _ in new}  # 1
    shared = [file for file in new if file[0] in old_paths]
    fresh = [file for file in new if file[0] not in old_paths]
    gone = [file for file in old if file[0] not in new_paths]
    if not gone and min((f.oldest for _, f in fresh), default=0) > max((f.newest for _, f in shared), default=-1):  # 2
        for entries in iter_versions(runs_of(storage, fresh)):
            closed = {key for key, tag in zip(entries.keys, entries.tags, strict=True) if tag & 0xFF != MERGE}
            keys, values = resolve_all(entries, delimiter)
            whole = _values(storage, new, [key for key in keys if key not in closed], delimiter)
            yield from ((key, whole.get(key, value)) for key, value in zip(keys, values, strict=True))
        return
    for keys, _, _ in iter_versions([*runs_of(storage, fresh), *runs_of(storage, gone)]):  # 3
        every = list(dict.fromkeys(keys))
        before, after = _values(storage, old, every, delimiter), _values(storage, new, every, delimiter)
        yield from ((key, value) for key in every if (value := after.get(key)) != before.get(key))


def _values(
    storage: Storage, files: tuple[SnapshotFile, ...] | list[SnapshotFile], wanted: list[bytes], delimiter: bytes
) -> dict[bytes, bytes | None]:
    """The values of these keys; keys without a value are missing, or None."""
    found: dict[bytes, bytes | None] = {}
    for keys, values in iter_merged(runs_of(storage, files, wanted), delimiter):
        found.update(zip(keys, values, strict=True))
    return found
