"""RocksDB snapshots: a zip with RocksDB's own files, and the SST files beside it.  The only module that opens RocksDB.

<version>.zip   MANIFEST, CURRENT, OPTIONS, an empty log, and `metadata`: "v1\\n" and JSON that maps local SST names to the
                names under SSTs/
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from millpond.checkpoint.codecs import corrupt, naming
from millpond.errors import CheckpointError
from millpond.settings import CheckpointSettings
from millpond.storage import Storage

# Names of members and of SST files; they become names on our disk.
_MEMBER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
_LIMITS = CheckpointSettings()
_MAX_METADATA_BYTES = 64 * 2**20
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, NotImplementedError, RuntimeError)


def iter_snapshot(storage: Storage, folder: str, name: str) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a snapshot, in RocksDB's key order.

    Only right for stores without list state: the library merges unresolved list operands with another delimiter than Spark.

    Raises:  FILE_GONE where an SST isn't there; CORRUPT_FILE, UNKNOWN_FORMAT.
    Source:  RocksDBFileManager, Spark 4.3; golden checkpoints.
    """
    path = f"{folder}/{name}.zip"
    with tempfile.TemporaryDirectory(prefix="millpond-") as scratch:
        try:
            local_names = _unpack(storage.read(path), Path(scratch))
        except CheckpointError as error:
            raise naming(error, path) if error.condition != "FILE_GONE" else error from error
        for local_name, dfs_name in local_names.items():
            _place(storage, f"{folder}/SSTs/{dfs_name}", Path(scratch, local_name))
        try:
            database = Rdict(scratch, options=Options(raw_mode=True), access_type=AccessType.read_only())
        except Exception as broken:  # the library raises bare Exception
            raise naming(corrupt(f"RocksDB can't open the snapshot: {broken}", 0), path) from broken
        try:
            last: bytes | None = None
            for key, value in database.items():
                last = bytes(key)
                yield last, bytes(value)
            _check_end(database, last, path)
        finally:
            database.close()


def read_families(storage: Storage, folder: str, name: str) -> dict[str, int]:
    """The numbers of a snapshot's column families, by name.  Raises as `iter_snapshot`."""
    path = f"{folder}/{name}.zip"
    try:
        with zipfile.ZipFile(io.BytesIO(storage.read(path))) as archive:
            if archive.getinfo("metadata").file_size > _MAX_METADATA_BYTES:
                raise corrupt("the snapshot's metadata is absurdly large", 0)
            families = json.loads(archive.read("metadata").decode().partition("\n")[2])["columnFamilyMapping"]
        if not all(isinstance(number, int) and 0 <= number < 2**15 for number in families.values()):
            raise ValueError("a column family has no number")
        return dict(families)
    except CheckpointError as error:
        raise (error if error.condition == "FILE_GONE" else naming(error, path)) from error
    except _BROKEN_ZIP + (TypeError, AttributeError, RecursionError) as broken:
        raise naming(corrupt(f"the snapshot's metadata isn't readable: {broken!r:.200}", 0), path) from broken


def _check_end(database: Rdict, last: bytes | None, path: str) -> None:
    """Raise CORRUPT_FILE where the walk over the keys ended before the last one.

    The library's iterator doesn't raise where a block doesn't match its checksum: it just ends.
    """
    end = database.iter()
    end.seek_to_last()
    found = bytes(end.key()) if end.valid() else None
    try:
        end.status()
    except Exception as broken:  # the library raises bare Exception
        raise naming(corrupt(f"an SST of the snapshot is damaged: {broken}", 0), path) from broken
    if found != last:
        raise naming(corrupt("an SST of the snapshot is damaged: its keys end too early", 0), path)


def _unpack(data: bytes, scratch: Path) -> dict[str, str]:
    """Put the zip's files in place; local SST name -> its name under SSTs/."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LIMITS.max_unpacked_bytes(len(data)):
                raise corrupt("the snapshot claims to unpack to an absurd size", 0)
            metadata = archive.read("metadata").decode()
            for member in archive.namelist():
                if member != "metadata":
                    if not _MEMBER.fullmatch(member):
                        raise corrupt(f"the snapshot has a member called {member!r:.100}", 0)
                    (scratch / member).write_bytes(archive.read(member))
    # zipfile lets through what its parts raise: a wrong method, a password, an offset outside.
    except _BROKEN_ZIP as broken:
        raise corrupt(f"the snapshot isn't a whole zip file: {broken}", 0) from broken
    version, _, text = metadata.partition("\n")
    if version != "v1":
        raise CheckpointError(
            "UNKNOWN_FORMAT",
            f"The snapshot's metadata has version {version!r}.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
        )
    try:
        names = {e["localFileName"]: e["dfsSstFileName"] for e in json.loads(text)["sstFiles"]}
        for name in (*names, *names.values()):
            if not _MEMBER.fullmatch(name) or not name.endswith(".sst"):
                raise ValueError(f"{name!r:.100} can't be the name of an SST file")
        return names
    except (ValueError, KeyError, TypeError, RecursionError) as broken:
        raise corrupt(f"the snapshot's metadata isn't readable: {broken!r}", 0) from broken


def _place(storage: Storage, path: str, target: Path) -> None:
    """The SST file under its local name: a link where the storage is a local disk, else a copy."""
    local = storage.local_path(path)
    if local is None:
        target.write_bytes(storage.read(path))
        return
    if not local.exists():
        storage.read(path)  # raises FILE_GONE with the path
    target.symlink_to(local)
