"""The compressed streams of state files.

offsets/N names the codec of each batch; nothing is guessed from the bytes.

    lz4     blocks of "LZ4Block", token, int32 compressed length, int32 length, int32 checksum (little-endian), data; a raw block of
            length 0 ends the stream
    zstd    standard frames
    snappy  a 16-byte header, then int32 length (big-endian) and a raw snappy block, repeated
    lzf     "ZV", type, lengths (big-endian int16), data, repeated
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import cramjam
import lz4.block
import xxhash
import zstandard

from millpond.errors import CheckpointError
from millpond.settings import CheckpointSettings

LZ4_MAGIC = b"LZ4Block"
LZ4_HEADER = struct.Struct("<8sBiii")
LZ4_RAW, LZ4_PACKED = 0x10, 0x20
LZ4_SEED = 0x9747B28C
# No block of Spark's writers is larger: LZ4BlockOutputStream stops at 32 MiB, Spark asks for 32
# KiB.
_MAX_BLOCK = 32 << 20
_ZSTD_STEP = 8 << 20
SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = 16
_LIMITS = CheckpointSettings()


def decompress(codec: str, data: bytes) -> bytes:
    """The content of a state file.

    codec:   lz4, zstd, snappy or lzf, as offsets/N names it
    Raises:  INCOMPLETE_FILE if the stream ends early; CORRUPT_FILE, with the byte position, if it
             contradicts itself; UNKNOWN_FORMAT for another codec.
    Source:  lz4-java LZ4BlockOutputStream, snappy-java SnappyOutputStream, compress-lzf; golden
             checkpoints.
    """
    return b"".join(_blocks(codec, (data,)))


def iter_unpacked(codec: str, pieces: Iterable[bytes], window_bytes: int) -> Iterator[bytes]:
    """The same for a file in pieces, in windows of about so many bytes; it ends at damage."""
    window, size = [], 0
    for block in _blocks(codec, pieces):
        window.append(block)
        size += len(block)
        if size >= window_bytes:
            joined = b"".join(window)
            window, size = [], 0  # frees the pieces before the whole is used
            yield joined
    yield b"".join(window)


def _blocks(codec: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    file = _Output(pieces)
    match codec:
        case "lz4":
            return _iter_lz4(file)
        case "zstd":
            return _iter_zstd(file)
        case "snappy":
            return _iter_snappy(file)
        case "lzf":
            return _iter_lzf(file)
    raise unknown_codec(codec)


def unknown_codec(codec: str) -> CheckpointError:
    """offsets/N names a codec that Spark doesn't have."""
    return CheckpointError(
        "UNKNOWN_FORMAT",
        f"State files compressed with {codec!r:.80} can't be read.",
        hint="Use lz4, zstd, snappy or lzf as spark.sql.streaming.stateStore.compression.codec.",
        codec=codec,
    )


def _iter_lz4(file: _Output) -> Iterator[bytes]:
    ended = False
    while head := file.take(LZ4_HEADER.size):
        position = file.position - len(head)
        if len(head) < LZ4_HEADER.size:
            raise incomplete("an LZ4 block header", position)
        magic, token, packed_size, size, checksum = LZ4_HEADER.unpack(head)
        if magic != LZ4_MAGIC:
            raise corrupt("an LZ4 block doesn't begin with LZ4Block", position)
        if not 0 <= size <= _MAX_BLOCK or not 0 <= packed_size <= _MAX_BLOCK:
            raise corrupt(f"an LZ4 block claims {size} bytes", position)
        if size == 0:
            ended = True
            continue
        packed = file.take(packed_size)
        if len(packed) < packed_size:
            raise incomplete("an LZ4 block", position)
        method = token & 0xF0
        if method == LZ4_RAW:
            block = packed
        elif method == LZ4_PACKED:
            try:
                block = lz4.block.decompress(packed, uncompressed_size=size)
            except lz4.block.LZ4BlockError as broken:
                raise corrupt(f"an LZ4 block doesn't unpack: {broken}", position) from broken
        else:
            raise corrupt(f"an LZ4 block has method {method:#x}", position)
        if len(block) != size or xxhash.xxh32_intdigest(block, LZ4_SEED) & 0x0FFFFFFF != checksum:
            raise corrupt("an LZ4 block doesn't match its checksum", position)
        yield block
        ended = False
    if not ended:
        raise incomplete("the LZ4 end mark", file.position)


class _Output:
    """A file in pieces, read from its beginning.

    position:  how many bytes were taken
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._at = 0
        self.position = 0

    def take(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the file."""
        while self._at + size > len(self._piece) and (piece := next(self._pieces, b"")):
            self._piece, self._at = self._piece[self._at :] + piece, 0
        taken = self._piece[self._at : self._at + size]
        self._at += len(taken)
        self.position += len(taken)
        return taken

    def read(self, size: int = -1) -> bytes:
        """As `read` of files, but never all at once."""
        return self.take(size if size >= 0 else _ZSTD_STEP)


def _iter_zstd(file: _Output) -> Iterator[bytes]:
    unpacked = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:  # type: ignore[arg-type]
            while block := reader.read(_ZSTD_STEP):
                unpacked += len(block)
                if unpacked > (most := _LIMITS.max_unpacked_bytes(file.position)):
                    raise corrupt(f"the zstd stream unpacks to more than {most} bytes", 0)
                yield block
    except (zstandard.ZstdError, MemoryError) as broken:
        raise corrupt(f"the zstd stream doesn't unpack: {broken}", 0) from broken


def _iter_snappy(file: _Output) -> Iterator[bytes]:
    while head := file.take(4):
        position = file.position - len(head)
        if head == SNAPPY_MAGIC[:4]:
            rest = file.take(_SNAPPY_HEADER - 4)
            if len(rest) < _SNAPPY_HEADER - 4:
                raise incomplete("a snappy header", position)
            if not (head + rest).startswith(SNAPPY_MAGIC):
                raise corrupt("a snappy header isn't one", position)
            continue
        if len(head) < 4:
            raise incomplete("a snappy block length", position)
        size = int.from_bytes(head, "big")
        if size > _MAX_BLOCK:
            raise corrupt(f"a snappy block claims {size} bytes", position)
        block = file.take(size)
        if len(block) < size:
            raise incomplete("a snappy block", position)
        try:
            if cramjam.snappy.decompress_raw_len(block) > _MAX_BLOCK:
                raise corrupt("a snappy block claims too many bytes", position)
            yield bytes(cramjam.snappy.decompress_raw(block))
        except (cramjam.DecompressionError, ValueError) as broken:
            raise corrupt(f"a snappy block doesn't unpack: {broken}", position) from broken


def _iter_lzf(file: _Output) -> Iterator[bytes]:
    while head := file.take(5):
        position = file.position - len(head)
        if len(head) < 5:
            raise incomplete("an LZF chunk header", position)
        if head[:2] != b"ZV":
            raise corrupt("an LZF chunk doesn't begin with ZV", position)
        packed, size = head[2], int.from_bytes(head[3:5], "big")
        if packed > 1:
            raise corrupt(f"an LZF chunk has type {packed}", position)
        whole = int.from_bytes(file.take(2), "big") if packed else size
        chunk = file.take(size)
        if len(chunk) < size:
            raise incomplete("an LZF chunk", position)
        if packed:
            out = bytearray()
            _lzf_chunk(chunk, out, whole, position)
            yield bytes(out)
        else:
            yield chunk


def _lzf_chunk(chunk: bytes, out: bytearray, end: int, position: int) -> None:
    begin, i = len(out), 0
    try:
        while i < len(chunk):
            control = chunk[i]
            i += 1
            if control < 32:
                out += chunk[i : i + control + 1]
                i += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += chunk[i]
                i += 1
            source = len(out) - ((control & 0x1F) << 8 | chunk[i]) - 1
            i += 1
            if source < begin:
                raise corrupt("an LZF chunk refers to bytes before its start", position)
            for k in range(source, source + length + 2):
                out.append(out[k])
    except IndexError:
        raise corrupt("an LZF chunk ends inside a reference", position) from None
    if len(out) != end:
        raise corrupt(f"an LZF chunk gave {len(out) - begin} bytes instead of {end - begin}", position)


def corrupt(what: str, position: int) -> CheckpointError:
    """A file that contradicts itself; a caller that knows its name adds it (`naming`)."""
    return CheckpointError(
        "CORRUPT_FILE",
        f"At byte {position}: {what}.",
        hint="Restore the file from a copy, or let the job write a new snapshot and delete the replica.",
        position=position,
    )


def incomplete(what: str, position: int) -> CheckpointError:
    """A file that ends early."""
    return CheckpointError(
        "INCOMPLETE_FILE",
        f"The file ends at byte {position}, inside or before {what}.",
        hint="Restore the file from a copy; a file that is still being written is read again by itself.",
        position=position,
    )


def naming(error: CheckpointError, path: str) -> CheckpointError:
    """The same error with the file's name added."""
    return type(error)(error.condition, f"{path}: {error.message}", hint=error.hint, **{**error.context, "path": path})
