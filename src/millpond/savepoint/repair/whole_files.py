"""Whether a file of a checkpoint is whole: it is read to its end, and compared with its checksums.

1. State files are unpacked and divided into records.  LZ4, zips and SSTs have checksums of their
   own, so a file of these that can be read is as it was written.
2. zstd, Snappy and LZF have none, nor have logs: there only the checksums beside a file show that
   it was changed.
3. A snapshot of format 1 that is older than its batch is of another run (see `checkpoint/state.py`).
"""

from __future__ import annotations

import re

from millpond.checkpoint.files.record_spans import locate_changelog, locate_records
from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import StateSettings
from millpond.checkpoint.position import Version
from millpond.checkpoint.rocksdb.snapshot import iter_windows, snapshot_at
from millpond.checkpoint.schemas import parse_schema
from millpond.checkpoint.state import StateReader, unpack
from millpond.errors import CheckpointError
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

    @property
    def differing(self) -> set[str]:
        """Files that can be read to their end, and differ from the checksums beside them."""
        return self._differing

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
            return error
        if old := _OLD_SNAPSHOT.fullmatch(path):
            try:
                self._reader.check_age(path, Version(int(old[1])))  # 3
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
        return None

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
            return True
        data = self._storage.read(path, _BOUNDS.state_bytes if name.endswith(".sst") else _BOUNDS.schema_bytes)
        if name == "schema" or "/_stateSchema/" in path:
            parse_schema(data)
        return name.endswith(".sst")
