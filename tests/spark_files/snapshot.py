"""Snapshots as Spark writes them, made by RocksDB itself, for tests and benchmarks with other keys than golden checkpoints have."""

from __future__ import annotations

import json
import shutil
import uuid
import zipfile
from pathlib import Path

from rocksdict import BlockBasedOptions, Checkpoint, ChecksumType, DBCompressionType, Options, Rdict

from millpond.checkpoint.files.checksums import block_checksum
from millpond.checkpoint.rocksdb.blocks import MERGE, VALUE
from millpond.checkpoint.rocksdb.manifest import varint
from millpond.checkpoint.rocksdb.sst import SstFile
from millpond.storage import open_storage

COMPRESSIONS = {
    "bzip2": DBCompressionType.bz2(),
    "lz4": DBCompressionType.lz4(),
    "none": DBCompressionType.none(),
    "snappy": DBCompressionType.snappy(),
    "zlib": DBCompressionType.zlib(),
    "zstd": DBCompressionType.zstd(),
}


class SnapshotWriter:
    """A database that writes snapshots, each a zip and its SSTs, into the folder of a store's partition."""

    def __init__(self, folder: Path, *, compression: str = "lz4", block_bytes: int = 4096, xxh3: bool = True) -> None:
        self.folder = folder
        self._scratch = folder.with_name(folder.name + ".rocksdb")
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(COMPRESSIONS[compression])
        options.set_disable_auto_compactions(True)
        options.set_write_buffer_size(1 << 30)
        table = BlockBasedOptions()
        table.set_format_version(5)
        table.set_block_size(block_bytes)
        table.set_bloom_filter(10, False)
        table.set_checksum_type(ChecksumType.xxh3() if xxh3 else ChecksumType.crc32c())
        options.set_block_based_table_factory(table)
        self.database = Rdict(str(self._scratch), options)
        self._names: dict[str, str] = {}
        (folder / "SSTs").mkdir(parents=True, exist_ok=True)

    def publish(self, name: str, column_families: dict[str, int] | None = None) -> None:
        """Do as Spark does at a commit: flush, then write a zip and the new SSTs."""
        self.database.flush()
        copy = self._scratch.with_name(f"{self._scratch.name}-{name}")
        Checkpoint(self.database).create_checkpoint(str(copy))
        live = {p.name for p in copy.glob("*.sst")}
        for local in live - set(self._names):
            self._names[local] = f"{local.removesuffix('.sst')}-{uuid.uuid4()}.sst"
            shutil.copy(copy / local, self.folder / "SSTs" / self._names[local])
        files = [
            {"localFileName": local, "dfsSstFileName": self._names[local], "sizeBytes": (copy / local).stat().st_size}
            for local in sorted(live)
        ]
        metadata = {"sstFiles": files, "numKeys": -1, "numInternalKeys": -1, "columnFamilyMapping": column_families or {}}
        with zipfile.ZipFile(self.folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(copy.iterdir()):
                if path.suffix != ".sst" and path.suffix != ".log":
                    archive.write(path, path.name)
            archive.writestr("000004.log", b"")
            archive.writestr("metadata", "v1\n" + json.dumps(metadata))
        shutil.rmtree(copy)

    def close(self) -> None:
        """Remove the database; the snapshots stay."""
        self.database.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def turn_into_merges(path: Path, every: int) -> None:
    """Turn some puts of an SST with uncompressed blocks into merge operands: one byte of each key, and the block's checksum."""
    data = bytearray(path.read_bytes())
    with SstFile(open_storage(path.parent), path.name) as opened:
        handles = [handle for _, handle in opened._iter_handles()]
        checksum = opened._checksum
    count = 0
    for offset, size in handles:
        block = bytes(data[offset : offset + size])
        position = 0
        while position < size - 4 - 4 * int.from_bytes(block[-4:], "little"):
            _, position = varint(block, position)
            own, position = varint(block, position)
            value_size, position = varint(block, position)
            position += own
            if count % every == 0:
                assert block[position - 8] == VALUE
                data[offset + position - 8] = MERGE
            position += value_size
            count += 1
        covered = bytes(data[offset : offset + size + 1])
        data[offset + size + 1 : offset + size + 5] = block_checksum(checksum, covered).to_bytes(4, "little")
    path.write_bytes(data)
