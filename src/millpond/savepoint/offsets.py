"""The offsets of a batch, `offsets/N`, with those of another place in the sources."""

from __future__ import annotations

from millpond.errors import CheckpointError

_NOTHING_READ = "-"
_INDEX = "0:"


def with_offset(text: bytes, path: str, offset: str | None) -> bytes:
    """The same batch of a query with one source, at another offset of it.

    path:    names the file in an error
    offset:  Spark's JSON; None if the source has read nothing yet
    Raises:  CORRUPT_FILE if the batch hasn't exactly one source.
    Source:  OffsetSeqLog (v1: a line for each source), OffsetMap (v2: index, colon, offset), Spark
             4.3.
    """
    lines = text.decode().split("\n")
    if len(lines) != 3 or lines[0] not in ("v1", "v2"):
        raise CheckpointError(
            "CORRUPT_FILE", f"{path} isn't the plan of a batch with one source.", hint="Restore the file from a copy.", path=path
        )
    index = _INDEX if lines[0] == "v2" else ""
    if index and not lines[2].startswith(index):
        raise CheckpointError(
            "CORRUPT_FILE", f"{path} has a source that isn't called 0.", hint="Restore the file from a copy.", path=path
        )
    found = _NOTHING_READ if offset is None else offset
    return "\n".join([*lines[:2], index + found]).encode()
