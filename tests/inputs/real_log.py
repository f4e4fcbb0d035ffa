"""A real log: one day of NASA's web server.  Its beginning is committed here; the whole day may be in a folder."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

_HERE = Path(__file__).parent
_CUT = _HERE / "nasa_1995-08-01.tsv.gz"
_FOLDER = Path(os.environ.get("MILLPOND_DATA", _HERE.parents[2] / "shared" / "data"))
WHOLE_LOG = _FOLDER / "nasa_pageviews_1995-08-01.tsv"
NO_WHOLE_LOG = f"{WHOLE_LOG} isn't there (MILLPOND_DATA names its folder)"
CUT_REQUESTS = 4000


def first_lines(requests: int = CUT_REQUESTS) -> bytes:
    """The header, and so many requests, one on each line."""
    lines = gzip.decompress(_CUT.read_bytes()).splitlines(keepends=True)
    assert requests <= CUT_REQUESTS == len(lines) - 1
    return b"".join(lines[: 1 + requests])
