"""RocksDB's MANIFEST: the SST files of a database, with their levels.

A log of edits, each a list of tagged fields, which add and remove files.  The log is divided into
blocks of 32 KiB:

    record = masked CRC-32C of all that follows (4 bytes), length (2), type (1), for types 5 to 8 a log number (4), data
    type   = 1 whole, 2 first, 3 middle, 4 last piece; 5 to 8 the same in recycled files; 0 fills a block up

Numbers are little-endian, those of edits varints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millpond.checkpoint.files.checksums import masked_crc32c
from millpond.checkpoint.files.codecs import corrupt, incomplete
from millpond.errors import CheckpointError

_BLOCK = 32 << 10
_HEADER, _RECYCLED_HEADER = 7, 11
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_COMPARATORS = frozenset({b"leveldb.BytewiseComparator"})
_MAX_LEVEL = 64
_MAX_SEQUENCE = (1 << 56) - 1
# Tags of an edit (VersionEdit's Tag): those with one number, and those with one text.
_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE = 2, 3, 4
_NUMBERS = frozenset({_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, 9, 10, 203, 300})
_COMPARATOR, _COMPACT_CURSOR, _DELETED_FILE, _NEW_FILE, _NEW_FILE_2, _NEW_FILE_3, _NEW_FILE_4 = 1, 5, 6, 7, 100, 102, 103
_COLUMN_FAMILY = 200
# Tags with this bit carry their length, and may be skipped.
_MAY_BE_SKIPPED = 1 << 13
# Fields of a file in _NEW_FILE_4: the end, and those that may not be skipped.
_FILE_END, _FILE_ID, _FILE_EPOCH, _FILE_PATH, _FILE_NOT_SKIPPED = 1, 12, 13, 65, 1 << 6
# Of a database with seven levels, as Spark's.
_LAST_LEVEL = 6
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """One SST file of a database.

    level:             0: files may overlap; above: the files of a level don't
    smallest, largest: the user keys at its ends, inclusive
    oldest, newest:    the range of its entries' sequence numbers, inclusive
    epoch:             which of two files of level 0 is newer; 0 if it isn't known
    ends:              the internal keys at its ends, inclusive
    session:           of the database that wrote it, 64 bits of its id; None if it isn't known
    """

    number: int
    level: int
    size_bytes: int
    smallest: bytes
    largest: bytes
    oldest: int
    newest: int
    epoch: int = 0
    ends: tuple[bytes, bytes] = (b"", b"")
    session: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """An SST file of a database that is written.

    Of a new one it is in the last level, and all its entries have sequence number 0.

    smallest, largest:  the internal keys at its ends, inclusive
    level, oldest, newest, epoch:  as in `LiveFile`
    """

    number: int
    size_bytes: int
    smallest: bytes
    largest: bytes
    level: int = _LAST_LEVEL
    oldest: int = 0
    newest: int = 0
    epoch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestHistory:
    """What a MANIFEST says beside its live files.

    next_file, sequence, log:  its last numbers of these
    ends:  the user keys at the ends of all files that it ever named
    """

    next_file: int
    sequence: int
    log: int
    ends: frozenset[bytes]


def read_history(data: bytes) -> ManifestHistory:
    """The numbers and old keys of a MANIFEST.  Raises as `parse_manifest`."""
    live: dict[int, LiveFile] = {}
    ends: set[bytes] = set()
    numbers = {_NEXT_FILE: 0, _LAST_SEQUENCE: 0, _LOG_NUMBER: 0}
    for position, edit in iter_edits(data):
        try:
            for file in _apply(edit, live, numbers):
                ends |= {file.smallest, file.largest}
        except IndexError:
            raise corrupt("an edit of the MANIFEST ends too early", position) from None
    return ManifestHistory(
        next_file=numbers[_NEXT_FILE], sequence=numbers[_LAST_SEQUENCE], log=numbers[_LOG_NUMBER], ends=frozenset(ends)
    )


def encode_manifest(files: Sequence[NewFile], *, next_file: int, sequence: int, log: int = 0) -> bytes:
    """The MANIFEST of a database with these files: the reverse of `parse_manifest`.

    files:      their keys don't overlap, but for those of level 0
    next_file:  a number that no file has, nor any after it
    sequence:   the sequence number of the last write
    log:        the number of the oldest log that counts
    """
    (comparator,) = _COMPARATORS
    named = encode_varint(_COMPARATOR) + _encode_text(comparator)
    numbers = ((_LOG_NUMBER, log), (_NEXT_FILE, next_file), (_LAST_SEQUENCE, sequence))
    edits = [named + b"".join(encode_varint(tag) + encode_varint(number) for tag, number in numbers)]
    for file in files:
        epoch = encode_varint(_FILE_EPOCH) + _encode_text(encode_varint(file.epoch)) if file.epoch else b""
        edits.append(
            b"".join(
                (
                    *map(encode_varint, (_NEW_FILE_4, file.level, file.number, file.size_bytes)),
                    _encode_text(file.smallest),
                    _encode_text(file.largest),
                    *map(encode_varint, (file.oldest, file.newest)),
                    epoch,
                    encode_varint(_FILE_END),
                )
            )
        )
    return encode_edits(edits)


def encode_edits(edits: Iterable[bytes]) -> bytes:
    """A log of edits, divided into blocks: the reverse of `iter_edits`."""
    written = bytearray()
    for edit in edits:
        _append_record(written, edit)
    return bytes(written)


def _append_record(written: bytearray, edit: bytes) -> None:
    begin = 0
    while True:
        left = _BLOCK - len(written) % _BLOCK
        if left < _HEADER:
            written += bytes(left)
            continue
        end = min(len(edit), begin + left - _HEADER)
        is_first, is_last = begin == 0, end == len(edit)
        kind = (_WHOLE if is_last else _FIRST) if is_first else (_LAST if is_last else _MIDDLE)
        covered = bytes([kind]) + edit[begin:end]
        written += masked_crc32c(covered).to_bytes(4, "little") + (end - begin).to_bytes(2, "little") + covered
        begin = end
        if is_last:
            return


def encode_varint(number: int) -> bytes:
    """The reverse of `varint`."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _encode_text(text: bytes) -> bytes:
    return encode_varint(len(text)) + text


def parse_manifest(data: bytes) -> list[LiveFile]:
    """The files that a database has after the last edit, by level and number.

    Raises:  INCOMPLETE_FILE, CORRUPT_FILE with the byte position; UNKNOWN_FORMAT for edits that
             RocksDB 9 doesn't write, other column families and other key orders.
    Source:  log::Reader, VersionEdit::DecodeFrom, RocksDB 9.8; golden checkpoints.
    """
    live: dict[int, LiveFile] = {}
    for position, edit in iter_edits(data):
        try:
            _apply(edit, live)
        except IndexError:
            raise corrupt("an edit of the MANIFEST ends too early", position) from None
        except CheckpointError as error:
            raise type(error)(
                error.condition, f"In the edit at byte {position}: {error.message}", hint=error.hint, **error.context
            ) from error
    return sorted(live.values(), key=lambda f: (f.level, f.number))


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven in each byte, lowest first; and where it ends.

    Raises IndexError, CORRUPT_FILE.
    """
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise corrupt("a number has more than 64 bits", position)


def iter_edits(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each edit of a MANIFEST, and where it begins.  Raises INCOMPLETE_FILE, CORRUPT_FILE."""
    position = begin = 0
    pieces: list[bytes] | None = None
    while position < len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
            continue
        if position + _HEADER > len(data):
            raise incomplete("a record of the MANIFEST", position)
        checksum = int.from_bytes(data[position : position + 4], "little")
        size = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        if kind == 0 and size == 0 and checksum == 0:
            position += left
            continue
        header = _HEADER if kind <= _LAST else _RECYCLED_HEADER
        end = position + header + size
        if header + size > left:
            raise corrupt(f"a record of the MANIFEST claims {size} bytes", position)
        if end > len(data):
            raise incomplete("a record of the MANIFEST", position)
        if masked_crc32c(data[position + 6 : end]) != checksum:
            raise corrupt("a record of the MANIFEST doesn't match its checksum", position)
        piece, kind = data[position + header : end], kind - (4 if kind > _LAST else 0)
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or (kind in (_WHOLE, _FIRST)) != (pieces is None):
            raise corrupt(f"a record of the MANIFEST has type {kind} out of turn", position)
        if pieces is None:
            pieces, begin = [], position
        pieces.append(piece)
        if kind in (_WHOLE, _LAST):
            yield begin, b"".join(pieces)
            pieces = None
        position = end
    if pieces is not None:
        raise incomplete("the last piece of a record of the MANIFEST", position)


def _apply(edit: bytes, live: dict[int, LiveFile], numbers: dict[int, int] | None = None) -> list[LiveFile]:
    """Apply an edit; returns the files that it adds, and notes these numbers."""
    position, family = 0, 0
    added: list[LiveFile] = []
    while position < len(edit):
        tag, position = varint(edit, position)
        if tag in _NUMBERS:
            found, position = varint(edit, position)
            if numbers is not None and tag in numbers:
                numbers[tag] = found
        elif tag == _COMPARATOR:
            name, position = _text(edit, position)
            if name not in _COMPARATORS:
                raise _unknown(f"its keys are ordered by {name!r:.80}")
        elif tag == _COMPACT_CURSOR:
            _, position = varint(edit, position)
            _, position = _text(edit, position)
        elif tag == _DELETED_FILE:
            _, position = varint(edit, position)
            number, position = varint(edit, position)
            if live.pop(number, None) is None:
                raise corrupt(f"it takes SST {number} away, which isn't there", position)
        elif tag in (_NEW_FILE, _NEW_FILE_2, _NEW_FILE_3, _NEW_FILE_4):
            file, position = _new_file(edit, position, tag)
            if file.number in live:
                raise corrupt(f"it adds SST {file.number} twice", position)
            live[file.number] = file
            added.append(file)
        elif tag == _COLUMN_FAMILY:
            family, position = varint(edit, position)
        elif tag & _MAY_BE_SKIPPED:
            _, position = _text(edit, position)
        else:
            raise _unknown(f"it has a field of kind {tag}")
    # Spark's column families are prefixes of keys; RocksDB only has its default one.
    if family:
        raise _unknown(f"it speaks of RocksDB's column family {family}")
    return added


def _new_file(edit: bytes, position: int, tag: int) -> tuple[LiveFile, int]:
    level, position = varint(edit, position)
    number, position = varint(edit, position)
    if tag == _NEW_FILE_3:
        path, position = varint(edit, position)
        if path:
            raise _unknown("an SST lies in another folder")
    size, position = varint(edit, position)
    smallest, position = _text(edit, position)
    largest, position = _text(edit, position)
    oldest, newest, epoch, session = 0, _MAX_SEQUENCE, 0, None
    if tag != _NEW_FILE:
        oldest, position = varint(edit, position)
        newest, position = varint(edit, position)
    if tag == _NEW_FILE_4:
        while True:
            field, position = varint(edit, position)
            if field == _FILE_END:
                break
            value, position = _text(edit, position)
            if field & _FILE_NOT_SKIPPED and (field != _FILE_PATH or value.strip(b"\x00")):
                raise _unknown(f"an SST has a field of kind {field}")
            if field == _FILE_EPOCH:
                epoch, _ = varint(value, 0)
            if field == _FILE_ID:  # the session's 64 bits, and a hash of the database's id and the file's number
                session = int.from_bytes(value[:8], "little") or None
    if level > _MAX_LEVEL or len(smallest) < 8 or len(largest) < 8:
        raise corrupt(f"SST {number} has no level or no keys", position)
    file = LiveFile(
        number=number,
        level=level,
        size_bytes=size,
        smallest=smallest[:-8],
        largest=largest[:-8],
        oldest=oldest,
        newest=newest,
        epoch=epoch,
        ends=(smallest, largest),
        session=session,
    )
    return file, position


def _text(edit: bytes, position: int) -> tuple[bytes, int]:
    size, position = varint(edit, position)
    if position + size > len(edit):
        raise corrupt(f"a text claims {size} bytes", position)
    return edit[position : position + size], position + size


def _unknown(what: str) -> CheckpointError:
    return CheckpointError("UNKNOWN_FORMAT", f"RocksDB's MANIFEST can't be read: {what}.", hint=_HINT)
