"""Flushed expired rows on disk, for a new generation if the previous one can't be trusted.

LMDB isn't synced, so after a restart of the machine a replica is built again, and the checkpoint no
longer has expired rows.

    <replica>/closed.json                         the mark: all rows that had expired by a batch of the job are in that folder
    <replica>/closed-<unique>/<store>/<b>-<n>     segments of one store (a hash of its name), b: batch of its first row, n: from 0

    segment  = a frame with its header (JSON: format and the store's schema), then frames of rows
    frame    = length of the body uint32, checksum uint32, body
    body     = batch uint64, when it began int64 (milliseconds), and for each row: its number within the batch uint32, length of
               the key uint16, of the value uint32, stored key, stored value without its stamp, which the batch tells
    Numbers are little-endian.  The checksum is a CRC-32 of length and body that begins with the header's, so that neither zeros
    nor what another file left on the disk is a frame.

Segments only grow.  Bytes that aren't a whole frame end their segment: they are cut off before more
is added, and nothing after them is read.  Frames beyond the mark were written by a process that
died, and aren't read either.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import msgspec

from millpond.errors import CheckpointError, MillpondError
from millpond.replica.folder import FILE_MODE, FOLDER_MODE
from millpond.replica.history.keeper import ClosedRow, ClosedRows
from millpond.schema.prepared import ready
from millpond.schema.store import StoreSchema, parse_store
from millpond.schema.strict_json import parse_json
from millpond.settings import FileBounds
from millpond.storage import FileStamp, LocalStorage, sync_folder

# Change this number also if the format of ordered keys or stored values changes: older rows aren't
# read.
FORMAT = 1
SEGMENT_BYTES = 4 << 20
_FRAME_ROWS = 1000
_MARK = "closed.json"
_BOUNDS = FileBounds()
_FRAME = struct.Struct("<II")
_BATCH = struct.Struct("<Qq")
_ROW = struct.Struct("<IHI")
_FOLDER = re.compile(r"closed-[0-9a-f]+")
_SEGMENT = re.compile(r"(\d{20})-(\d{6,})")


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The batch, of one run of a job, up to which the journal is complete.

    folder:       with the segments
    generation:   the generation of these rows
    checkpoint:   the place of the job's checkpoint
    fingerprint, commit_*:  of the batch, as in `record.ReplicaRecord`
    ends:         store's folder -> (newest segment, bytes in it), None if it has none
    """

    format: int
    folder: str
    generation: str
    checkpoint: str
    job_id: str
    batch: int
    fingerprint: str
    commit_identity: str
    commit_modified_ns: int
    commit_size_bytes: int
    ends: dict[str, tuple[str, int] | None]

    @property
    def commit_stamp(self) -> FileStamp:
        """The stamp of commits/N when it was applied."""
        return FileStamp(self.commit_identity, self.commit_modified_ns, self.commit_size_bytes)


def read_mark(place: Path) -> Mark | None:
    """The mark in a replica's folder; None if there is none that can be read."""
    try:
        mark = msgspec.convert(parse_json(LocalStorage(place).read(_MARK, _BOUNDS.log_bytes)), ready(Mark))
    except (CheckpointError, ValueError):  # also msgspec's errors
        return None
    is_known = mark.format == FORMAT and _FOLDER.fullmatch(mark.folder) is not None
    return mark if is_known and (place / mark.folder).is_dir() else None


def write_mark(place: Path, mark: Mark) -> None:
    """Write and flush the mark, after all that it names is flushed.  Raises NOT_WRITABLE."""
    LocalStorage(place, mode=FILE_MODE).write(_MARK, msgspec.json.encode(mark))


def remove_others(place: Path, current: str | None) -> None:
    """Remove folders that the mark doesn't name: of a crash, or of another run of the job."""
    if current is None:
        (place / _MARK).unlink(missing_ok=True)
    for folder in place.glob("closed-*"):
        if folder.name != current:
            shutil.rmtree(folder, ignore_errors=True)


def store_folder(store: str) -> str:
    """The name of a store's folder: a hash, since files can't have all names of column families."""
    return hashlib.blake2b(store.encode(), digest_size=12).hexdigest()


# ------------------------------------------------------------ bytes


def encode_frame(body: bytes, seed: int) -> bytes:
    """A frame; `seed` is the checksum of the segment's header, 0 for the header itself."""
    length = len(body).to_bytes(4, "little")
    return length + zlib.crc32(body, zlib.crc32(length, seed)).to_bytes(4, "little") + body


def _decode_frame(data: bytes, begin: int, seed: int) -> bytes | None:
    """The body of the frame at this place; None if it isn't whole."""
    if len(data) - begin < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack_from(data, begin)
    body = data[begin + _FRAME.size : begin + _FRAME.size + length]
    if not length or len(body) != length or zlib.crc32(body, zlib.crc32(data[begin : begin + 4], seed)) != checksum:
        return None
    return body


def encode_header(store: StoreSchema, salt: str) -> bytes:
    """The body of a segment's first frame; the salt makes it unique."""
    return json.dumps({"format": FORMAT, "salt": salt, "store": store.to_json()}).encode()


def encode_rows(found: ClosedRows) -> Iterator[bytes]:
    """Bodies of frames."""
    front = _BATCH.pack(found.batch, found.started_ms)
    for first in range(0, len(found.rows), _FRAME_ROWS):
        parts = [front]
        for number, key, value in found.rows[first : first + _FRAME_ROWS]:
            parts += (_ROW.pack(number, len(key), len(value)), key, value)
        yield b"".join(parts)


def _decode_rows(body: bytes) -> ClosedRows | None:
    """The reverse; None for an invalid body, which with a right checksum would be a bug of ours."""
    if len(body) < _BATCH.size:
        return None
    rows, at = [], _BATCH.size
    while at < len(body):
        if len(body) - at < _ROW.size:
            return None
        number, key_size, value_size = _ROW.unpack_from(body, at)
        at += _ROW.size
        if len(body) - at < key_size + value_size:
            return None
        rows.append(ClosedRow(number, body[at : at + key_size], body[at + key_size : at + key_size + value_size]))
        at += key_size + value_size
    batch, started_ms = _BATCH.unpack_from(body)
    return ClosedRows(batch, started_ms, rows)


@dataclass(frozen=True, slots=True)
class Segment:
    """The readable part of one file.

    store:  the store of its rows; None if the header isn't whole or has another format
    seed:   of its checksums
    end:    where the last whole frame ends, in bytes
    """

    store: StoreSchema | None
    seed: int
    frames: list[ClosedRows]
    end: int


def decode_segment(data: bytes) -> Segment:
    """All frames from the beginning on, up to the first that isn't whole."""
    header = _decode_frame(data, 0, 0)
    store = None if header is None else _decode_header(header)
    if header is None or store is None:
        return Segment(None, 0, [], 0)
    seed, end = zlib.crc32(header), _FRAME.size + len(header)
    frames = []
    while (body := _decode_frame(data, end, seed)) is not None and (rows := _decode_rows(body)) is not None:
        frames.append(rows)
        end += _FRAME.size + len(body)
    return Segment(store, seed, frames, end)


def _decode_header(body: bytes) -> StoreSchema | None:
    try:
        data = parse_json(body)
        return parse_store(data["store"]) if data["format"] == FORMAT else None
    except (ValueError, LookupError, TypeError, msgspec.MsgspecError, MillpondError):
        return None


# ------------------------------------------------------------ files


def segments(folder: Path) -> list[Path]:
    """The segments of a store, oldest first."""
    try:
        found = [(match[2], path) for path in folder.iterdir() if (match := _SEGMENT.fullmatch(path.name))]
    except OSError:
        return []
    return [path for _, path in sorted(found, key=lambda pair: int(pair[0]))]


class StoreJournal:
    """Appends to the segments of one store.

    Raises OSError; after that, a new object must continue.
    """

    def __init__(self, folder: Path, store: StoreSchema, *, segment_bytes: int) -> None:
        self._folder = folder
        self._store = store
        self._segment_bytes = segment_bytes
        self._file: int | None = None
        self._seed = self._size = 0
        self._dirty = False
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, parents=True)
            sync_folder(folder.parent)

    def append(self, found: ClosedRows) -> None:
        """Write rows; `sync` flushes them."""
        for body in encode_rows(found):
            if self._file is None:
                self._open(found.batch)
            frame = encode_frame(body, self._seed)
            self._write(frame)
            if self._size >= self._segment_bytes:
                self.close()

    def sync(self) -> tuple[str, int] | None:
        """Flush; the newest segment and its size, None if there is none."""
        if self._dirty:
            assert self._file is not None
            os.fsync(self._file)
            self._dirty = False
        newest = segments(self._folder)[-1:]
        return (newest[0].name, newest[0].stat().st_size) if newest else None

    def drop_before(self, batch: int | None) -> None:
        """Remove segments whose rows are all older than this batch, the oldest still kept; None for all."""
        found = segments(self._folder)
        if batch is None:
            self.close()
        for path, following in zip_longest(found, found[1:]):
            if batch is None or (following is not None and int(following.name[:20]) < batch):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)
                self._file, self._dirty = None, False

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._size += len(data)
        self._dirty = True

    def _open(self, batch: int) -> None:
        """Open the newest segment if it has room, cut off after its last whole frame; else a new one."""
        found = segments(self._folder)
        if found and found[-1].stat().st_size < self._segment_bytes:
            there = _read(found[-1])[0]
            if there.store == self._store:
                self._file = os.open(found[-1], os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                os.ftruncate(self._file, there.end)
                os.lseek(self._file, there.end, os.SEEK_SET)
                self._seed, self._size, self._dirty = there.seed, there.end, True
                return
        number = int(found[-1].name[21:]) + 1 if found else 0
        path = self._folder / f"{batch:020d}-{number:06d}"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        header = encode_header(self._store, os.urandom(8).hex())
        self._size = 0
        self._write(encode_frame(header, 0))
        self._seed = zlib.crc32(header)
        sync_folder(self._folder)


def iter_store(folder: Path, store: StoreSchema) -> Iterator[ClosedRows]:
    """The expired rows of a store, a segment at a time; some may come twice."""
    for path in segments(folder):
        segment = _read(path)[0]
        if segment.store == store:  # marks of windows don't count: the bytes are the same
            yield from segment.frames


def is_end_whole(folder: Path, end: tuple[str, int] | None) -> bool:
    """Whether the newest segment of a store is whole up to the end in the mark."""
    return end is None or _read(folder / end[0])[0].end >= end[1]


def is_whole(folder: Path, end: tuple[str, int] | None) -> bool:
    """The same for all its segments."""
    if end is None:
        return True
    for path in segments(folder):
        segment, size = _read(path)
        if path.name == end[0]:
            return segment.end >= end[1]
        if segment.end != size:
            return False
    return False


def _read(path: Path) -> tuple[Segment, int]:
    try:
        data = LocalStorage(path.parent).read(path.name, _BOUNDS.segment_bytes)
    except CheckpointError:
        return Segment(None, 0, [], 0), -1
    return decode_segment(data), len(data)
