"""RocksDB snapshots: a zip with RocksDB's own files, and the SST files beside it.

<version>.zip   MANIFEST, CURRENT, OPTIONS, an empty log, and `metadata`: "v1\\n" and JSON that maps
local SST names to the
                names under SSTs/, and names of column families to the ids that keys begin with
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millpond.checkpoint.files.codecs import corrupt, naming
from millpond.checkpoint.rocksdb.blocks import Entries, Window
from millpond.checkpoint.rocksdb.manifest import LiveFile, ManifestHistory, parse_manifest, read_history
from millpond.checkpoint.rocksdb.merge import iter_merged, resolve, without_deleted
from millpond.checkpoint.rocksdb.merge_windows import iter_merged_windows, merge_windows
from millpond.checkpoint.rocksdb.sst import WINDOW_BYTES, SstFile
from millpond.checkpoint.rows.columns import Spans
from millpond.errors import CheckpointError
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import CheckpointSettings, FileBounds
from millpond.storage import Storage

# Names of members and of SST files; they become parts of paths.
_MEMBER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
_MANIFEST = re.compile(r"MANIFEST-\d{1,19}")
_LOG = re.compile(r"\d{1,19}\.log")
_LOCAL_SST = re.compile(r"(\d{1,19})\.sst")
# Reads of a whole snapshot use larger pieces.
WHOLE_BYTES = 64 << 20
_LIMITS = CheckpointSettings()
_BOUNDS = FileBounds()
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."


SnapshotFile = tuple[str, LiveFile]
"""(path of an SST, its entry in the MANIFEST)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMetadata:
    """Spark's metadata of a snapshot.

    sst_names:        RocksDB's name of each SST -> its name under SSTs/
    column_families:  name -> the id at the beginning of the family's keys; empty for stores without
                      families
    internal:         the families that hold what only Spark needs, as it calls them
    largest_family:   the largest id that a family ever had
    """

    sst_names: dict[str, str]
    column_families: dict[str, int]
    internal: frozenset[str] = frozenset()
    largest_family: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A readable snapshot.

    path:   of the zip
    files:  the live SSTs, by level and number
    """

    path: str
    metadata: SnapshotMetadata
    files: tuple[SnapshotFile, ...]


def read_snapshot_metadata(storage: Storage, folder: str, name: str) -> SnapshotMetadata:
    """Spark's metadata of the snapshot `<name>.zip`.  Raises as `read_snapshot`."""
    return read_snapshot(storage, folder, name).metadata


def read_snapshot(storage: Storage, folder: str, name: str) -> Snapshot:
    """The files that make up the snapshot `<name>.zip`.

    Raises:  FILE_GONE if the zip is missing; CORRUPT_FILE, INCOMPLETE_FILE, UNKNOWN_FORMAT.
    Source:  RocksDBFileManager, RocksDBCheckpointMetadata, Spark 4.3; golden checkpoints.
    """
    path = f"{folder}/{name}.zip"
    return parse_snapshot(storage.read(path, _BOUNDS.snapshot_bytes), path, lambda sst: f"{folder}/SSTs/{sst}")


def parse_snapshot(data: bytes, path: str, path_of: Callable[[str], str]) -> Snapshot:
    """The same of the zip's bytes.

    path:     of the zip, for messages
    path_of:  from the name of an SST under SSTs/ to its path
    """
    try:
        metadata_text, manifest = _unpack(data)
        metadata = _parse_metadata(metadata_text)
        files = []
        by_number = {int(found[1]): dfs for local, dfs in metadata.sst_names.items() if (found := _LOCAL_SST.fullmatch(local))}
        for live in parse_manifest(manifest):
            if live.number not in by_number:
                raise corrupt(f"the snapshot's metadata lacks SST {live.number}", 0)
            files.append((path_of(by_number[live.number]), live))
    except CheckpointError as error:
        raise naming(error, path) from error
    return Snapshot(path=path, metadata=metadata, files=tuple(files))


def history_of(data: bytes, path: str) -> ManifestHistory:
    """The history in a zip's MANIFEST.  Raises as `parse_snapshot`."""
    try:
        return read_history(_unpack(data)[1])
    except CheckpointError as error:
        raise naming(error, path) from error


def snapshot_at(storage: Storage, path: str) -> Snapshot:
    """The same by the path of the zip."""
    return read_snapshot(storage, *folder_and_name(path))


def folder_and_name(path: str) -> tuple[str, str]:
    """The folder of a zip's path, and the snapshot's name there."""
    folder, _, name = path.rpartition("/")
    return folder, name.removesuffix(".zip")


def iter_snapshot(storage: Storage, folder: str, name: str, delimiter: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a snapshot, in order of the keys' bytes.

    Memory needs a window of blocks for each level, not the whole state.

    delimiter:  between the elements of lists: b"," for merge operator version 1, b"" for version 2
    Raises:     FILE_GONE if an SST is missing; CORRUPT_FILE, INCOMPLETE_FILE, UNKNOWN_FORMAT.
    Source:     RocksDBFileManager, Spark 4.3; golden checkpoints; property tests against RocksDB
                itself.
    """
    for keys, values in iter_chunks(storage, read_snapshot(storage, folder, name), delimiter):
        yield from zip(keys, values, strict=True)


def iter_chunks(storage: Storage, snapshot: Snapshot, delimiter: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """As `iter_snapshot`, many keys at a time."""
    if library(sum(live.size_bytes for _, live in snapshot.files)) is not None:
        yield from ((keys.tolist(), values.tolist()) for keys, values in iter_spans(storage, snapshot, delimiter))
        return
    try:
        for keys, values in iter_merged(runs_of(storage, snapshot.files), delimiter):
            yield without_deleted(keys, values)
    except CheckpointError as error:
        raise error if "path" in error.context else naming(error, snapshot.path) from error


def iter_spans(storage: Storage, snapshot: Snapshot, delimiter: bytes) -> Iterator[tuple[Spans, Spans]]:
    """As `iter_chunks`, but as spans.  Only with the compiled library."""
    runs = [_iter_run_windows(storage, run) for run in _levels(snapshot.files)]
    try:
        yield from iter_merged_windows(runs, delimiter)
    except CheckpointError as error:
        raise error if "path" in error.context else naming(error, snapshot.path) from error


def read_spans(storage: Storage, snapshot: Snapshot, delimiter: bytes) -> tuple[Spans, Spans]:
    """All keys and values of a snapshot at once.  Only with the compiled library.

    Raises as `iter_snapshot`.
    """
    try:
        return merge_windows(iter_windows(storage, snapshot, WHOLE_BYTES), delimiter)
    except CheckpointError as error:
        raise error if "path" in error.context else naming(error, snapshot.path) from error


def iter_windows(
    storage: Storage, snapshot: Snapshot, window_bytes: int = WINDOW_BYTES, memory: Memory | None = None
) -> Iterator[Window]:
    """All entries of a snapshot's SSTs, with older versions and deletes, in no order.

    window_bytes, memory:  as for `SstFile.iter_windows`
    Raises:  as `iter_snapshot`.
    """
    for path, live in snapshot.files:
        with _open(storage, path, live) as sst:
            yield from sst.iter_windows(window_bytes, memory)


def find(storage: Storage, snapshot: Snapshot, key: bytes, delimiter: bytes) -> bytes | None:
    """The value of one key; None if it has none.

    On a local disk, this only reads the blocks that may have it.

    Raises:  as `iter_snapshot`.
    """
    versions: list[tuple[int, bytes]] = []
    for path, live in snapshot.files:
        if live.smallest <= key <= live.largest:
            with _open(storage, path, live) as sst:
                versions += [(tag, value) for _, tag, value in sst.find(key)]
    try:
        return resolve(sorted(versions, key=_tag, reverse=True), delimiter)
    except CheckpointError as error:
        raise naming(error, snapshot.path) from error


def runs_of(storage: Storage, files: Sequence[SnapshotFile], wanted: list[bytes] | None = None) -> list[Iterator[Entries]]:
    """Sorted runs of entries: each file of level 0, and each level above.

    wanted:  only the entries of these sorted keys, each once; None for all
    """
    return [_iter_run(storage, run, wanted) for run in _levels(files)]


def _levels(files: Sequence[SnapshotFile]) -> list[list[SnapshotFile]]:
    """The files of each sorted run, in order."""
    levels: dict[tuple[int, int], list[SnapshotFile]] = {}
    for path, live in files:
        levels.setdefault((live.level, 0 if live.level else live.number), []).append((path, live))
    # The versions of one key may be in two files of a level: the largest keys show which file is
    # first.
    return [sorted(run, key=lambda file: (file[1].smallest, file[1].largest)) for run in levels.values()]


def _iter_run_windows(storage: Storage, files: list[SnapshotFile]) -> Iterator[Window]:
    for path, live in files:
        with _open(storage, path, live) as sst:
            yield from sst.iter_windows()


def _iter_run(storage: Storage, files: list[SnapshotFile], wanted: list[bytes] | None) -> Iterator[Entries]:
    for path, live in files:
        if wanted is None:
            with _open(storage, path, live) as sst:
                yield from sst.iter_entries()
        elif within := wanted[bisect_left(wanted, live.smallest) : bisect_right(wanted, live.largest)]:
            with _open(storage, path, live) as sst:
                yield from sst.iter_wanted(within)


def _open(storage: Storage, path: str, live: LiveFile) -> SstFile:
    sst = SstFile(storage, path)
    if sst.size_bytes != live.size_bytes:
        sst.close()
        raise naming(corrupt(f"the SST has {sst.size_bytes} bytes, in the snapshot it has {live.size_bytes}", 0), path)
    try:
        sst.check_session(live.session)
    except CheckpointError:
        sst.close()
        raise
    return sst


def _tag(version: tuple[int, bytes]) -> int:
    return version[0]


def _unpack(data: bytes) -> tuple[str, bytes]:
    """The zip's `metadata`, and the MANIFEST that its CURRENT names."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LIMITS.max_unpacked_bytes(len(data)):
                raise corrupt("the snapshot claims to unpack to an absurd size", 0)
            for member in archive.infolist():
                if not _MEMBER.fullmatch(member.filename):
                    raise corrupt(f"the snapshot has a member called {member.filename!r:.100}", 0)
                if _LOG.fullmatch(member.filename) and member.file_size:
                    raise CheckpointError(
                        "UNKNOWN_FORMAT", "The snapshot holds changes that aren't in its SSTs (a log that isn't empty).", hint=_HINT
                    )
            metadata = archive.read("metadata").decode()
            current = archive.read("CURRENT").decode().rstrip("\n")
            if not _MANIFEST.fullmatch(current):
                raise corrupt(f"the snapshot's CURRENT says {current!r:.100}", 0)
            return metadata, archive.read(current)
    # zipfile passes on errors of its parts: a wrong method, a password, an offset outside.
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, NotImplementedError, RuntimeError) as broken:
        raise corrupt(f"the snapshot isn't a whole zip file: {broken}", 0) from broken


def _parse_metadata(text: str) -> SnapshotMetadata:
    version, _, text = text.partition("\n")
    if version != "v1":
        raise CheckpointError("UNKNOWN_FORMAT", f"The snapshot's metadata has version {version!r:.80}.", hint=_HINT)
    try:
        data = parse_json(text)
        names = {e["localFileName"]: e["dfsSstFileName"] for e in data["sstFiles"]}
        for name in (*names, *names.values()):
            if not _MEMBER.fullmatch(name) or not name.endswith(".sst"):
                raise ValueError(f"{name!r:.100} can't be the name of an SST file")
        families = data.get("columnFamilyMapping") or {}
        if not all(isinstance(name, str) and type(id_) is int and 0 <= id_ < 1 << 15 for name, id_ in families.items()):
            raise ValueError("an id of a column family isn't one")
        kinds, largest = data.get("columnFamilyTypeMap") or {}, data.get("maxColumnFamilyId") or 0
        if type(largest) is not int or not all(type(is_internal) is bool for is_internal in kinds.values()):
            raise ValueError("the kinds of column families aren't readable")
        internal = frozenset(name for name, is_internal in kinds.items() if is_internal)
        return SnapshotMetadata(
            sst_names=names, column_families=families, internal=internal, largest_family=max(largest, *families.values(), 0)
        )
    except DAMAGE as broken:
        raise corrupt(f"the snapshot's metadata isn't readable: {broken!r}", 0) from broken
