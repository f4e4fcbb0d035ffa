"""Whether a file of a checkpoint is whole: it is read to its end, and compared with its checksums.

1. State files are unpacked and divided into records.  LZ4, zips and SSTs have checksums of their
   own, so a file of these that can be read is as it was written.
2. zstd, Snappy and LZF have none, nor have logs: there only the checksums beside a file show that
   it was changed.
3. Spark copies zips and SSTs, and compares them with their hidden checksums. Those of other state
   files it doesn't read.
4. A snapshot of format 1 that is older than its batch is of another run (see `checkpoint/state.py`).
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib

from millpond.checkpoint.files.codecs import corrupt, naming
from millpond.checkpoint.files.record_spans import locate_changelog, locate_records
from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import StateSettings
from millpond.checkpoint.position import Version
from millpond.checkpoint.rocksdb.snapshot import iter_windows, snapshot_at
from millpond.checkpoint.schemas import parse_schema
from millpond.checkpoint.state import StateReader, unpack
from millpond.errors import CheckpointError
from millpond.savepoint.repair.unread import has_all_members, has_all_records, iter_members
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.names import NUMBER

_BOUNDS = FileBounds()
_OLD_SNAPSHOT = re.compile(rf".*/({NUMBER})\.(?:snapshot|zip)")


class WholeFiles:
    """Reads each file of a checkpoint once, and keeps what was wrong with it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reader = StateReader(storage)
        self._found: dict[str, CheckpointError | None] = {}
        self._differing: set[str] = set()
        self._unread: set[str] = set()
        self._differing_beside: dict[str, CheckpointError] = {}

    @property
    def differing(self) -> set[str]:
        """Files that can be read to their end, and differ from the checksums beside them."""
        return self._differing

    @property
    def differing_beside(self) -> dict[str, CheckpointError]:
        """Whole files that Spark doesn't take, since they differ from the checksums beside them: path -> the difference."""
        return self._differing_beside

    @property
    def unread(self) -> set[str]:
        """Files with damage that Spark may not read, see `unread.py`."""
        return self._unread

    def why_not(self, path: str, settings: StateSettings) -> CheckpointError | None:
        """What is wrong with a state, schema or metadata file; None if it is whole.

        settings:  of a batch whose state the file is part of
        Raises:    what the storage raises.
        """
        if path not in self._found:
            self._found[path] = self._check(path, settings)
        return self._found[path]

    def _check(self, path: str, settings: StateSettings) -> CheckpointError | None:
        try:
            has_own = self._read(path, settings)
        except CheckpointError as error:
            if error.condition in ("CORRUPT_FILE", "INCOMPLETE_FILE", "UNKNOWN_FORMAT") and self._is_unread(path, settings):
                self._unread.add(path)
            return error
        if old := _OLD_SNAPSHOT.fullmatch(path):
            try:
                self._reader.check_age(path, Version(int(old[1])))  # 4
            except CheckpointError as error:
                if error.condition == "REWOUND_IN_PLACE":  # else its plan is damaged, which doesn't show it
                    return error
        try:
            verify_file(self._storage, path)
        except CheckpointError as error:
            # Else the file is as it was, and its checksums are wrong: copies don't have them.
            if not has_own:
                self._differing.add(path)
                return error
            if path.endswith((".zip", ".sst")) or self._differs_from_sparks(path):
                self._differing_beside[path] = error
        return None

    def _differs_from_sparks(self, path: str) -> bool:
        """Whether it differs from Spark's own checksum, with which Spark 4.1 and later compare what they read."""
        try:
            verify_file(self._storage, path, hadoop=False)
        except CheckpointError:
            return True
        return False

    def _read(self, path: str, settings: StateSettings) -> bool:
        """Read a file to its end; returns whether its content has checksums of its own."""
        name = path.rpartition("/")[2]
        if name.endswith((".delta", ".snapshot")):
            locate_records(unpack(self._storage, path, settings.codec))
            return settings.codec == "lz4"
        if name.endswith(".changelog"):
            locate_changelog(unpack(self._storage, path, settings.codec))
            return settings.codec == "lz4"
        if name.endswith(".zip"):
            for _ in iter_windows(self._storage, snapshot_at(self._storage, path)):
                pass
            self._compare_directory(path)
            return True
        data = self._storage.read(path, _BOUNDS.state_bytes if name.endswith(".sst") else _BOUNDS.schema_bytes)
        if name == "schema" or "/_stateSchema/" in path:
            parse_schema(data)
        return name.endswith(".sst")

    def _is_unread(self, path: str, settings: StateSettings) -> bool:
        """Whether Spark reads all of a damaged file before it comes to the damage."""
        try:
            if path.endswith(".zip"):
                return has_all_members(self._storage.read(path, _BOUNDS.state_bytes))
            if path.endswith((".delta", ".snapshot", ".changelog")):
                data = self._storage.read(path, _BOUNDS.state_bytes)
                return has_all_records(data, settings.codec, is_changelog=path.endswith(".changelog"))
        except CheckpointError:
            pass  # the file is gone
        return False

    def _compare_directory(self, path: str) -> None:
        """Compare the names before a zip's members, by which Spark goes, with its directory, by which Millpond does."""
        data = self._storage.read(path, _BOUNDS.state_bytes)
        try:
            members = [name for name, _ in iter_members(data)]
        except (ValueError, zlib.error, struct.error) as broken:
            raise naming(corrupt(f"the snapshot has a member that can't be read: {broken}", 0), path) from broken
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if members != archive.namelist():
                raise naming(corrupt("the snapshot's directory has other names than its members", 0), path)
