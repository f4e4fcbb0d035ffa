"""Files of events, which Spark reads in the order of their numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BEGIN = 1_700_000_000
"""The time of file 0, in seconds since 1970."""


def write_event_file(folder: Path, number: int, rows: Iterable[dict[str, Any]]) -> Path:
    """Write `<folder>/<number>.json`, a JSON object a line; it is complete when it appears.

    Spark reads files in the order of their times.  Two files that are written within the same
    millisecond have no order, so each number has a time of its own.
    """
    path = folder / f"{number:06d}.json"
    hide(path, number, rows).rename(path)
    return path


def hide(path: Path, number: int, rows: Iterable[dict[str, Any]]) -> Path:
    """Write the content of `path` beside it, under a name that Spark ignores; returns that name."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(hidden, (_BEGIN + number, _BEGIN + number))
    return hidden
