"""Whether a line of a log was read, by the offsets of sources that read logs line by line (`accesslog`).

offset   {"files": {path: {"line": number of the last line read, from 1, …}}}
"""

from __future__ import annotations

import os
import posixpath
from urllib.parse import unquote

from millpond.checkpoint.offset_order import is_by_line
from millpond.tables.job.offsets import Offsets, invalid

# Spark's own file source reads whole files; `checkpoint.source_files` finds these.
_BY_FILE = "logOffset"


def line_is_read(path: str, line: int | None, found: Offsets) -> bool | None:
    """Whether all sources that read this log have read the line; None if no source by lines knows it.

    Raises:  INVALID_BOUND if no line is given: a log grows, and batches read it piece by piece.
    """
    by_line = [offset["files"] for offset in found.values() if is_by_line(offset)]
    if not by_line:
        return None
    name = posixpath.normpath("/" + unquote(path.partition(":")[2]).lstrip("/")) if path.startswith("file:/") else path
    reached = [files[os.path.abspath(name)]["line"] for files in by_line if os.path.abspath(name) in files]
    if not reached:
        return None if any(isinstance(offset, dict) and _BY_FILE in offset for offset in found.values()) else False
    if line is None:
        raise invalid(
            f"the job reads {path} line by line, but no line is given", 'Write find_event(file="/logs/access.log", line=3000).'
        )
    return all(line <= end for end in reached)
