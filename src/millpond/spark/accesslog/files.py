"""Log files and places in them: find files, count lines, and notice replaced files.

A place has line and byte, so a batch starts with a seek and never reads from the file's beginning.
A gzip file allows no seek, so its text is written once to a spool file.  That costs the log's full
size on the local disk of every machine that reads it, and one pass over it before the first row.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from millpond.errors import CheckpointError, SetupError
from millpond.settings import home
from millpond.spark.accesslog.lines import MAX_LINE_BYTES

# A place has a hash of so many bytes before it: several lines, so that two logs of one server
# differ.
_TAIL_BYTES = 1024
_CHUNK_BYTES = 1 << 20
# A spool file that nobody opened for so long is removed when the next one is made.
_SPOOL_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a log was read.

    line:  number of the last line read, 0 at the start; a header line counts
    byte:  where the next line begins (in a gzip file: in its text)
    tail:  hash of the bytes just before it, empty at the start; if it differs, the file is another
    """

    line: int
    byte: int
    tail: str

    def to_json(self) -> dict[str, Any]:
        return {"line": self.line, "byte": self.byte, "tail": self.tail}


START = Place(line=0, byte=0, tail="")


def parse_place(data: dict[str, Any] | None) -> Place:
    """A place from its JSON form; without one, the start."""
    return Place(line=data["line"], byte=data["byte"], tail=data["tail"]) if data else START


def find_logs(path: str) -> list[str]:
    """Absolute paths of the logs behind a file, a folder (its files, not its subfolders) or a glob, sorted by name.

    Raises:  FILE_MISSING if the path isn't a glob and doesn't exist.
    """
    where = os.path.abspath(os.path.expanduser(path))
    if os.path.isfile(where):
        return [where]
    if os.path.isdir(where):
        found = [entry.path for entry in os.scandir(where) if entry.is_file()]
    elif glob.has_magic(path):
        found = [name for name in glob.glob(where, recursive=True) if os.path.isfile(name)]
    else:
        raise SetupError(
            "FILE_MISSING", f"There is no log at {where}.", hint="Name a log file, a folder of logs, or a glob.", path=where
        )
    return sorted(name for name in found if not os.path.basename(name).startswith("."))


@contextlib.contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """The bytes of a log's text, with seek; for a gzip file (known by its first two bytes), its spool file.

    Raises:  FILE_MISSING, NOT_WRITABLE (no room for the spool file), CORRUPT_FILE (a gzip file that
             is cut off or damaged).
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
        if file.read(2) == b"\x1f\x8b":
            file.close()
            file = open(_spool(path), "rb")  # noqa: SIM115
    except FileNotFoundError as missing:
        raise SetupError(
            "FILE_MISSING",
            f"The log {path} is gone.",
            hint="Put it back: a planned batch needs it.",
            path=path,
        ) from missing
    with file:
        file.seek(0)
        yield file


def _spool(path: str) -> Path:
    """The spool file with the text of a gzip file, made if it doesn't exist.

    Each version of the gzip file has one.
    """
    found = os.stat(path)
    key = f"{os.path.abspath(path)}\n{found.st_ino}\n{found.st_size}\n{found.st_mtime_ns}"
    folder = home() / "spool"
    target = folder / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.log"
    if target.exists():
        with contextlib.suppress(OSError):
            os.utime(target)
        return target
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with gzip.open(path, "rb") as packed, temporary.open("wb") as plain:
            shutil.copyfileobj(packed, plain, _CHUNK_BYTES)
        temporary.rename(target)
    except (EOFError, zlib.error, gzip.BadGzipFile) as broken:
        raise CheckpointError(
            "CORRUPT_FILE",
            f"The gzip file {path} can't be unpacked: {broken}.",
            hint="Check it with `gzip -t`; a file that is still being written must be plain text.",
            path=path,
        ) from broken
    except OSError as full:
        raise SetupError(
            "NOT_WRITABLE",
            f"The text of {path} can't be written to {folder}: {full.strerror}.",
            hint="Free some space there, set MILLPOND_HOME to a folder with room, or unpack the log yourself.",
            path=str(folder),
        ) from full
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _sweep(folder: Path) -> None:
    now = time.time()
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            if now - entry.stat().st_mtime > _SPOOL_SECONDS:
                entry.unlink()


def size_of(file: BinaryIO) -> int:
    """Length of the open text in bytes."""
    return os.fstat(file.fileno()).st_size


def check_place(file: BinaryIO, place: Place, path: str) -> None:
    """Make sure that this is still the file in which the place was taken.

    Raises:  LOG_REPLACED if it is shorter, or if other bytes stand before the place.
    """
    if size_of(file) >= place.byte and _tail(file, place.byte) == place.tail:
        return
    raise SetupError(
        "LOG_REPLACED",
        f"{path} is no longer the file that was read up to line {place.line} (byte {place.byte}): it was cut or replaced.",
        hint="Give the new log another name, or start again with a new pond; let rotated logs have dated names.",
        path=path,
        line=place.line,
        byte=place.byte,
    )


def advance(
    file: BinaryIO,
    start: Place,
    *,
    max_lines: int | None = None,
    end_byte: int | None = None,
    complete: bool = False,
    wanted: Callable[[bytes, int], bool] | None = None,
) -> Place:
    """The place after the next lines.

    max_lines:  at most so many, None for all
    end_byte:   don't look beyond this byte, None for the end of the file
    complete:   whether text without a line end at the very end is a line; otherwise it waits for
                its line end
    wanted:     called with each line and its number; stops before the first for which it is false
    """
    at, line = resume_byte(file, start), start.line
    end_byte = size_of(file) if end_byte is None else end_byte
    last_line = None if max_lines is None else line + max_lines
    if wanted is None:
        at, line = _skip_whole_chunks(file, at, line, end_byte=end_byte, last_line=last_line)
    file.seek(at)
    while (last_line is None or line < last_line) and at < end_byte:
        text, length = read_line(file)
        if at + length > end_byte or not text.endswith(b"\n"):
            if not complete:
                break
            # Bytes after the end belong to the next line.
            length = end_byte - at
            text = text[:length]
        if wanted is not None and not wanted(text, line + 1):
            break
        at, line = at + length, line + 1
    if line == start.line:
        return start
    return Place(line=line, byte=at, tail=_tail(file, at))


def _skip_whole_chunks(file: BinaryIO, at: int, line: int, *, end_byte: int, last_line: int | None) -> tuple[int, int]:
    """Byte and line after as many whole chunks as fit, at the start of a line.

    This only counts line ends.
    """
    file.seek(at)
    start_of_line, line_there = at, line
    while at + _CHUNK_BYTES <= end_byte:
        chunk = file.read(_CHUNK_BYTES)
        ends = chunk.count(b"\n")
        if last_line is not None and line + ends > last_line:
            break
        if ends:
            start_of_line, line_there = at + chunk.rindex(b"\n") + 1, line + ends
        at, line = at + len(chunk), line + ends
    return start_of_line, line_there


def read_line(file: BinaryIO) -> tuple[bytes, int]:
    """The next line with its line end, and its length in bytes; only the beginning of an overlong line.

    Shape:  at most MAX_LINE_BYTES and one more byte, which tells parse_line that the line is too
            long, and the line end.
    """
    text = file.readline(MAX_LINE_BYTES + 1)
    length = len(text)
    if length <= MAX_LINE_BYTES or text.endswith(b"\n"):
        return text, length
    rest = text
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(_CHUNK_BYTES)
        length += len(rest)
    return (text + b"\n" if rest else text), length


def resume_byte(file: BinaryIO, place: Place) -> int:
    """Where the next line begins.

    If the last line was read without its line end, which has been written since, that is one byte
    on.
    """
    if place.byte == 0:
        return 0
    file.seek(place.byte - 1)
    before = file.read(2)
    return place.byte + 1 if len(before) == 2 and before[0:1] != b"\n" and before[1:2] == b"\n" else place.byte


def _tail(file: BinaryIO, byte: int) -> str:
    if byte == 0:
        return ""
    start = max(0, byte - _TAIL_BYTES)
    file.seek(start)
    return hashlib.blake2b(file.read(byte - start), digest_size=8).hexdigest()
