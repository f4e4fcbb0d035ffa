"""Which files a file source has read: its own log, `sources/<source>/N`, compacted every ten entries.

A source's offset {"logOffset": n} means the log up to entry n, that entry included.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from millpond.errors import CheckpointError
from millpond.storage import Storage

_NAME = re.compile(r"([0-9]{1,18})(\.compact)?")
_SOURCE = re.compile(r"[0-9A-Za-z_-]{1,255}")
_VERSION = b"v1"


class _Entry(msgspec.Struct):
    path: str
    batchId: int  # noqa: N815 - Spark's name


_decode = msgspec.json.Decoder(_Entry).decode


def find_file(storage: Storage, source: str, wanted: Callable[[str], bool], *, upto: int, after: int = -1) -> int | None:
    """The entry of the source's log that has a file, None where none has.

    wanted:  says of a path, as Spark logged it (a URI, percent-encoded), whether it is the file
    upto:    the newest entry to look at
    after:   entries up to this one are known not to have it
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


def _find(storage: Storage, source: str, wanted: Callable[[str], bool], upto: int, after: int) -> int | None:
    folder = f"sources/{source}"
    names = [(int(m[1]), m[0], bool(m[2])) for name in storage.names(folder) if (m := _NAME.fullmatch(name))]
    # A compacted entry holds everything up to it; without it the single ones may be gone.
    compact = max((entry for entry, _, compacted in names if compacted and entry <= upto), default=-1)
    for entry, name, compacted in sorted(names, reverse=True):
        if entry > upto or entry <= after or entry < compact or (entry == compact and not compacted):
            continue
        for path, batch in _entries(storage.read(f"{folder}/{name}"), f"{folder}/{name}"):
            if batch <= upto and wanted(path):
                return batch
    return None


def _entries(data: bytes, name: str) -> list[tuple[str, int]]:
    lines = data.split(b"\n")
    if lines[0] != _VERSION:
        raise CheckpointError(
            "UNKNOWN_FORMAT" if len(lines) > 1 else "INCOMPLETE_FILE",
            f"{name} has version {lines[0][:40]!r}; known is v1.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
            path=name,
        )
    try:
        return [(entry.path, entry.batchId) for entry in map(_decode, filter(None, lines[1:]))]
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise CheckpointError(
            "CORRUPT_FILE", f"{name}: a line isn't a file's entry: {broken}.", hint="Restore the file from a copy.", path=name
        ) from broken
