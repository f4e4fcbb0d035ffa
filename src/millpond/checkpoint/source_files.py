"""Which files a file source has read: its own log, `sources/<source>/N`, compacted every ten entries.

A source's offset {"logOffset": n} means the log up to and including entry n.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from millpond.errors import CheckpointError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.names import NUMBER

ENTRY = re.compile(rf"({NUMBER})(\.compact)?")
"""the name of an entry of a log that Spark compacts: of a file source, or of a file sink"""
_SOURCE = re.compile(r"[0-9A-Za-z_-]{1,255}")
_VERSION = b"v1"
_BOUNDS = FileBounds()


class LoggedFile(NamedTuple):
    """A file that a source has read.

    path:          a percent-encoded URI
    timestamp_ms:  of its last change
    entry:         of the log, in which it came
    """

    path: str
    timestamp_ms: int
    entry: int


def find_file(storage: Storage, source: str, wanted: Callable[[str], bool], *, upto: int, after: int = -1) -> int | None:
    """The entry of the source's log that has a file; None if no entry has it.

    wanted:  says whether a logged path, a percent-encoded URI, is the file
    upto:    the newest entry to look at
    after:   entries up to this one don't have it
    Raises:  FILE_GONE, INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT.
    Source:  FileStreamSourceLog, CompactibleFileStreamLog, Spark 4.3; golden checkpoints.
    """
    if not _SOURCE.fullmatch(source):
        return None
    try:
        return _find(storage, source, wanted, upto, after)
    except CheckpointError as error:
        if error.condition != "FILE_GONE":
            raise
        return _find(storage, source, wanted, upto, after)  # it was compacted meanwhile, and cleaned up


def iter_entry(storage: Storage, path: str) -> Iterator[tuple[str, int]]:
    """The files of one entry of a source's log, each with the number of the entry that read it.

    A compacted entry has those of all entries up to it.

    Raises:  FILE_GONE, INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT.
    """
    return ((file.path, file.entry) for file in _iter_entry(storage, path))


def logged_files(storage: Storage, source: str, *, upto: int) -> Iterator[tuple[str, int]]:
    """Each file, a percent-encoded URI, that the source's log has up to an entry, and its entry; newest first.

    Raises as `find_file`.
    """
    for file in iter_logged(storage, source, upto=upto):
        yield file.path, file.entry


def iter_logged(storage: Storage, source: str, *, upto: int) -> Iterator[LoggedFile]:
    """The same with the time of each file."""
    if _SOURCE.fullmatch(source):
        yield from _logged(storage, source, upto, -1)


def newest_compact(storage: Storage, source: str) -> int | None:
    """The newest compacted entry of a source's log; None if there is none."""
    names = storage.names(f"sources/{source}")
    return max((int(m[1]) for name in names if (m := ENTRY.fullmatch(name)) and m[2]), default=None)


def newest_entry(storage: Storage, source: str) -> int | None:
    """The newest entry of a source's log; None if there is none."""
    return max((int(m[1]) for name in storage.names(f"sources/{source}") if (m := ENTRY.fullmatch(name))), default=None)


def entry_names(storage: Storage, source: str) -> dict[int, str]:
    """The entries of a source's log: number -> name; of two of a number, the compacted one."""
    return {int(m[1]): name for name in sorted(storage.names(f"sources/{source}")) if (m := ENTRY.fullmatch(name))}


def write_entry(storage: Storage, source: str, number: int, files: Iterable[LoggedFile], *, is_compact: bool) -> None:
    """Write an entry of a source's log."""
    lines = [json.dumps({"path": f.path, "timestamp": f.timestamp_ms, "batchId": f.entry}, separators=(",", ":")) for f in files]
    name = f"sources/{source}/{number}" + (".compact" if is_compact else "")
    storage.write(name, "\n".join([_VERSION.decode(), *lines]).encode())


def _iter_entry(storage: Storage, path: str) -> Iterator[LoggedFile]:
    return _entries(storage.iter_pieces(path, _BOUNDS.line_bytes, _BOUNDS.source_log_bytes), path)


def _find(storage: Storage, source: str, wanted: Callable[[str], bool], upto: int, after: int) -> int | None:
    return next((file.entry for file in _logged(storage, source, upto, after) if wanted(file.path)), None)


def _logged(storage: Storage, source: str, upto: int, after: int) -> Iterator[LoggedFile]:
    folder = f"sources/{source}"
    names = [(int(m[1]), m[0], bool(m[2])) for name in storage.names(folder) if (m := ENTRY.fullmatch(name))]
    # A compacted entry has all entries up to it; the single ones may be gone.
    compact = max((entry for entry, _, compacted in names if compacted and entry <= upto), default=-1)
    for entry, name, compacted in sorted(names, reverse=True):
        if entry > upto or entry <= after or entry < compact or (entry == compact and not compacted):
            continue
        for file in _iter_entry(storage, f"{folder}/{name}"):
            if file.entry <= upto:
                yield file


def _entries(pieces: Iterable[bytes], name: str) -> Iterator[LoggedFile]:
    """The file of each line."""
    lines = _lines(pieces, name)
    version = next(lines)
    if version != _VERSION:
        raise CheckpointError(
            "UNKNOWN_FORMAT" if version else "INCOMPLETE_FILE",
            f"{name} has version {version[:40]!r}; known is v1.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
            path=name,
        )
    for line in filter(None, lines):
        try:
            entry = parse_json(line)
            file = LoggedFile(entry["path"], entry["timestamp"], entry["batchId"])
            if type(file.path) is not str or type(file.entry) is not int or type(file.timestamp_ms) is not int:
                raise ValueError("it names no path, no time and no batch")
        except DAMAGE as broken:
            raise _corrupt(name, f"a line isn't a file's entry: {broken}") from broken
        yield file


def _lines(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    left = b""
    for piece in pieces:
        *whole, left = (left + piece).split(b"\n")
        if len(left) > _BOUNDS.line_bytes:
            raise _corrupt(name, f"a line has more than {_BOUNDS.line_bytes} bytes")
        yield from whole
    yield left


def _corrupt(name: str, what: str) -> CheckpointError:
    return CheckpointError("CORRUPT_FILE", f"{name}: {what}.", hint="Restore the file from a copy.", path=name)
