"""RocksDB snapshots, written: the reverse of `snapshot` and `manifest`.

1. The rows' SSTs, under names that no other file has.
2. The zip, last, since Spark reads nothing that a zip doesn't name: CURRENT, a MANIFEST that puts
   the SSTs on the last level, and Spark's own metadata.

RocksDB needs no other file: it makes its OPTIONS and IDENTITY anew, and Spark writes no WAL.
"""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from millpond.checkpoint.rocksdb.manifest import NewFile, encode_manifest
from millpond.checkpoint.rocksdb.snapshot import SnapshotMetadata
from millpond.checkpoint.rocksdb.write_sst import WrittenSst, build_ssts, build_ssts_of_records
from millpond.storage import Storage

_MANIFEST = "MANIFEST-000005"
_FIRST_SST = 8
# Of members of the zip: the earliest time that a zip can name.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(slots=True)
class _Counts:
    """Spark's number of keys, and of those in column families of its own."""

    keys: int = 0
    internal: int = 0


def write_snapshot(
    storage: Storage, folder: str, name: str, rows: Iterable[tuple[bytes, bytes]], families: SnapshotMetadata
) -> None:
    """Write `<name>.zip` and its SSTs.

    rows:      in order of the keys' bytes, each key once
    families:  the column families; SSTs in it don't count
    Raises:    ValueError if the keys aren't in order; what the storage raises.
    Source:    RocksDBFileManager, RocksDBCheckpointMetadata, Spark 4.3; VersionEdit, RocksDB 9.8;
               restarts in tests/spark/savepoint.
    """
    counts = _Counts()
    internal = {number.to_bytes(2, "little") for name, number in families.column_families.items() if name in families.internal}
    _write(storage, folder, name, build_ssts(_counted(rows, counts, internal)), families, counts)


def write_snapshot_of_records(
    storage: Storage, folder: str, name: str, pieces: Iterable[bytes], families: SnapshotMetadata
) -> None:
    """The same of records in pieces, for a store without column families.  Only with the compiled library."""
    counts = _Counts()

    def counted() -> Iterator[WrittenSst]:
        for sst in build_ssts_of_records(pieces):
            counts.keys += sst.entries
            yield sst

    _write(storage, folder, name, counted(), families, counts)


def _write(
    storage: Storage, folder: str, name: str, ssts: Iterable[WrittenSst], families: SnapshotMetadata, counts: _Counts
) -> None:
    files, names = [], []
    for number, sst in zip(count(_FIRST_SST), ssts, strict=False):  # 1
        local, stored = f"{number:06}.sst", f"{number:06}-{uuid.uuid4()}.sst"
        storage.write_pieces(f"{folder}/SSTs/{stored}", [sst.content])
        names.append({"localFileName": local, "dfsSstFileName": stored, "sizeBytes": len(sst.content)})
        files.append(NewFile(number=number, size_bytes=len(sst.content), smallest=sst.ends[0], largest=sst.ends[1]))
    metadata = {
        "sstFiles": names,
        "numKeys": counts.keys,
        "numInternalKeys": counts.internal,
        "columnFamilyMapping": families.column_families,
        "columnFamilyTypeMap": {name: name in families.internal for name in families.column_families},
        "maxColumnFamilyId": families.largest_family,
    }
    members = {
        "CURRENT": f"{_MANIFEST}\n".encode(),
        _MANIFEST: encode_manifest(files, next_file=_FIRST_SST + len(files), sequence=counts.keys + counts.internal),
        "metadata": b"v1\n" + json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode(),
    }
    storage.write(f"{folder}/{name}.zip", _zip(members))  # 2


def _counted(rows: Iterable[tuple[bytes, bytes]], counts: _Counts, internal: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in rows:
        if internal and key[:2] in internal:
            counts.internal += 1
        else:
            counts.keys += 1
        yield key, value


def _zip(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
