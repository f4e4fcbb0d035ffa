"""No file of a checkpoint crashes the reader, stops it, or takes all memory: each is read, or refused by name."""

from __future__ import annotations

import importlib
import io
import json
import re
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from millpond.checkpoint.files.checksums import block_checksum
from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.checkpoint.rocksdb import sst
from millpond.checkpoint.rocksdb.snapshot import iter_snapshot, read_snapshot
from millpond.errors import CheckpointError
from millpond.settings import CheckpointSettings
from millpond.storage import open_storage
from spark_files.snapshot import SnapshotWriter
from suite.sizes import a_few

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # fuzz.py is a program, and imports the modules beside it
expected = importlib.import_module("expected")
FLOOR = CheckpointSettings().unpacked_floor_bytes


# (first mutation, how many) for each of two processes.  The long ones run under sanitizers, and need gcc.
SMALL = [(0, 120)]
LONG = [(120, 880), (1_500, 1_000), (3_000, 10_000), (13_000, 10_000)]


@pytest.mark.parametrize(("first", "count"), [*SMALL, *(pytest.param(*part, marks=pytest.mark.long) for part in LONG)])
def test_damaged_files_end_in_the_right_answer_or_in_an_error_of_ours(first: int, count: int) -> None:
    asked = ["--mutations", str(count), "--first", str(first), "--seed", "1", *(["--sanitized"] if count > 3_000 else [])]
    done = subprocess.run([sys.executable, str(HERE / "fuzz.py"), *asked], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    shares = {kind: float(share) for share, kind in re.findall(r"^ *\d+ +([\d.]+)% ([^:]+):", done.stdout, re.MULTILINE)}
    assert shares["row"] < 15
    state_files = sum(shares[kind] for kind in ("delta", "snapshot", "changelog", "zip", "sst"))
    assert state_files > 35
    assert all(share > 0.3 for share in shares.values())


def test_the_parser_that_answers_are_compared_with_reads_what_spark_wrote() -> None:
    """It also finds a wrong record, and an error that names a byte before the damage."""
    data = b"".join(struct.pack(">i", len(part)) + part for part in (b"k", b"value", b"l", b"")) + struct.pack(">ici", 1, b"k", -1)
    records, begins, is_whole = expected.parse(data + b"\xff" * 4)
    assert records == [(PUT, b"k", b"value"), (PUT, b"l", b""), (DELETE, b"k", b"")]
    assert (begins, is_whole) == ([0, 14, 23, 32], True)
    assert not expected.parse(data)[2]
    assert not expected.parse(data + b"\xff" * 4 + b"x")[2]
    expected.check_records([records], data + b"\xff" * 4, is_whole=False)
    with pytest.raises(AssertionError, match="other records"):
        expected.check_records([records[:2]], data + b"\xff" * 4, is_whole=False)


def refusal(read: Callable[[], Any]) -> CheckpointError:
    with pytest.raises(CheckpointError) as raised:
        read()
    return raised.value


def test_a_zstd_stream_that_unpacks_to_an_absurd_size_is_refused() -> None:
    step = zstandard.ZstdCompressor().compressobj(size=-1)
    bomb = b"".join(step.compress(bytes(1 << 20)) for _ in range((FLOOR >> 20) + 32)) + step.flush()
    assert len(bomb) < 100_000
    assert refusal(lambda: decompress("zstd", bomb)).condition == "CORRUPT_FILE"


@pytest.mark.parametrize(
    ("codec", "stream"),
    [
        ("lz4", b"LZ4Block" + struct.pack("<Biii", 0x25, 4, 0x7FFFFFFF, 0) + b"abcd"),
        ("lz4", b"LZ4Block" + struct.pack("<Biii", 0x15, 0x7FFFFFFF, 0x7FFFFFFF, 0) + b"abcd"),
        ("snappy", b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", 6) + b"\xff\xff\xff\xff\x0f\x00"),
        ("snappy", b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">I", 0xFFFFFFFF) + b"ab"),
        ("lzf", b"ZV\x01" + struct.pack(">HH", 3, 0xFFFF) + b"\xe0\xff\x00"),
    ],
)
def test_a_block_that_claims_an_absurd_size_is_refused(codec: str, stream: bytes) -> None:
    assert refusal(lambda: decompress(codec, stream)).condition in ("CORRUPT_FILE", "INCOMPLETE_FILE")


def test_a_snapshot_that_unpacks_to_an_absurd_size_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles": []}')
        with archive.open("MANIFEST-000001", "w") as member:
            for _ in range((FLOOR >> 20) + 32):
                member.write(bytes(1 << 20))
    (tmp_path / "1.zip").write_bytes(packed.getvalue())
    assert refusal(lambda: list(iter_snapshot(open_storage(tmp_path), "", "1"))).condition == "CORRUPT_FILE"


@pytest.mark.parametrize("name", ["../../escape.sst", "/tmp/escape.sst", "a/b.sst", "", "no-sst", "\x00.sst"])
@pytest.mark.parametrize("side", ["localFileName", "dfsSstFileName"])
def test_a_snapshot_cant_name_files_elsewhere(tmp_path: Path, name: str, side: str) -> None:
    files = [{"localFileName": "000001.sst", "dfsSstFileName": "000001-x.sst", side: name}]
    with zipfile.ZipFile(tmp_path / "1.zip", "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files}))
    assert refusal(lambda: list(iter_snapshot(open_storage(tmp_path), "", "1"))).condition == "CORRUPT_FILE"


def test_a_damaged_block_of_an_sst_doesnt_end_the_state_early(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-rocksdb-snapshots")
    storage, folder = open_storage(copy.checkpoint), "state/0/0"
    whole = list(iter_snapshot(storage, folder, "12"))
    assert whole
    refused = 0
    for path in sorted((copy.checkpoint / folder / "SSTs").iterdir()):
        intact = path.read_bytes()
        damaged = bytearray(intact)
        damaged[20] ^= 0x10  # in the first data block
        path.write_bytes(damaged)
        try:
            assert list(iter_snapshot(storage, folder, "12")) == whole  # an SST of another snapshot
        except CheckpointError as error:
            assert error.condition == "CORRUPT_FILE"
            refused += 1
        path.write_bytes(intact)
    assert refused


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("seed", a_few([0, 1], 1))
def test_a_damaged_block_whose_checksum_is_right_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    writer = SnapshotWriter(tmp_path / "0", compression="none", block_bytes=512)
    for i in range(100):
        writer.database[b"a key %05d" % (i * i)] = b"value" * (i % 40)
    writer.publish("1")
    writer.close()
    storage, random = open_storage(tmp_path), Random(seed)
    ((path, _),) = read_snapshot(storage, "0", "1").files
    intact = (tmp_path / path).read_bytes()
    with sst.SstFile(storage, path) as whole:
        blocks = [*(handle for _, handle in whole._iter_handles()), (whole._index_offset, len(whole._index))]
        checksum = whole._checksum
    ended = Counter[str]()
    for _ in range(1500):
        offset, size = random.choice(blocks)
        damaged = bytearray(intact)
        for _ in range(random.randint(1, 3)):
            at = offset + (random.randrange(size) if random.random() < 0.7 else size - 1 - random.randrange(min(size, 12)))
            damaged[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
        covered = bytes(damaged[offset : offset + size + 1])
        damaged[offset + size + 1 : offset + size + 5] = block_checksum(checksum, covered).to_bytes(4, "little")
        (tmp_path / path).write_bytes(damaged)
        try:
            list(iter_snapshot(storage, "0", "1"))
            ended["answer"] += 1
        except CheckpointError as error:
            assert error.condition in ("CORRUPT_FILE", "INCOMPLETE_FILE", "UNKNOWN_FORMAT")
            ended[error.condition] += 1
    assert ended["answer"] > 100
    assert ended["CORRUPT_FILE"] > 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["test_items.py", "test_lookup.py"])
def test_the_library_steps_outside_of_no_buffer(tmp_path: Path, name: str) -> None:
    """The tests that damage sketches, and rows and commands of lookups, under sanitizers; needs gcc."""
    environment = {**importlib.import_module("fuzz").sanitized(tmp_path / "sanitized"), "PYTHONMALLOC": "malloc"}
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE.parent / "native" / name)]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
