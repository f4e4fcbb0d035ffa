"""Writes COMPATIBILITY.md from runs.

It reads the golden checkpoints and those of refusals.py now; refused.json lists Spark's refusals.

    python tests/golden/compatibility.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packing import unpacked

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = unpacked()
PAGE = ROOT / "COMPATIBILITY.md"
PROVIDERS = ("hdfs", "rocksdb-changelog", "rocksdb-snapshots")

OPERATORS = {
    "keyless": "aggregation without keys",
    "counts": "aggregation",
    "windows": "aggregation over windows",
    "sessions": "session windows",
    "sessions-two-keys": "session windows, two keys",
    "sessions-complete": "session windows, complete mode",
    "dedupe": "dropDuplicates",
    "dedupe-within-watermark": "dropDuplicatesWithinWatermark",
    "limit": "limit",
    "join-inner": "join, inner",
    "join-left": "join, left outer",
    "join-right": "join, right outer",
    "join-full": "join, full outer",
    "join-semi": "join, left semi",
    "join-windows": "join by windows",
    "apply": "applyInPandasWithState, no time-out",
    "apply-event-timeout": "applyInPandasWithState, event time",
    "apply-processing-timeout": "applyInPandasWithState, processing time",
    "transform-state": "transformWithStateInPandas: value, list, map",
    "transform-state-rows": "transformWithState (rows): value, list, map",
    "transform-append": "lists that are only appended to",
    "transform-two-keys": "transformWithState, two keys",
    "transform-event-timers": "timers by event time",
    "transform-two-keys-timers": "timers, two keys",
    "transform-processing-timers": "timers by processing time",
    "transform-ttl": "TTL on value, list, map",
    "transform-variables": "state variables added and removed",
    "chained": "chained operators",
}


@dataclass(frozen=True)
class Cell:
    """One golden checkpoint: its name without version and provider, and the outcome of reading it."""

    name: str
    provider: str
    spark: str
    outcome: str


def cells(read: Any) -> Iterator[Cell]:
    """Every golden checkpoint; `read(folder)` returns `read` or the condition of an error."""
    for path in sorted(GOLDEN.rglob("state.json")):
        spark = ".".join(json.loads((path.parent / "about.json").read_text())["spark"].split(".")[:2])
        provider = next((p for p in PROVIDERS if path.parent.name.endswith(f"-{p}")), "")
        name = path.parent.name.removesuffix(f"-{provider}") if provider else path.parent.name
        yield Cell(name, provider, spark, read(path.parent))


def render(found: list[Cell], refused: dict[str, str], not_read: list[tuple[str, list[str], str]]) -> str:
    """The page.

    refused:   cell -> the condition with which Spark refused to write it
    not_read:  what Millpond refuses, the conditions of its errors, and why
    """
    lines = [
        "# What can be read",
        "",
        "`python tests/golden/compatibility.py` writes this page, and a test checks it. Each entry is a",
        "checkpoint in tests/golden that this version of Spark wrote. Millpond reads it without a JVM, and a",
        "test compares each row with that of Spark's own reader. A version that a cell doesn't name wasn't",
        "tried there.",
        "",
        "| operator | HDFS-backed | RocksDB, change log | RocksDB, snapshots only |",
        "|---|---|---|---|",
    ]
    for name, words in OPERATORS.items():
        lines.append(f"| {words} | " + " | ".join(_entry(found, refused, name, provider) for provider in PROVIDERS) + " |")
    lines += ["", "## One cell each", "", "| what | Spark |", "|---|---|"]
    for cell in found:
        if cell.name not in OPERATORS or not cell.provider:
            lines.append(f"| `{cell.name}{'-' + cell.provider if cell.provider else ''}` | {_shown(cell)} |")
    lines += ["", "## What Spark itself refuses to write", "", "| what | Spark's condition |", "|---|---|"]
    lines += [f"| `{name}` | `{condition}` |" for name, condition in sorted(refused.items())]
    lines += ["", "## What Millpond refuses", "", "| what | condition | why |", "|---|---|---|"]
    lines += [f"| {what} | {', '.join(f'`{c}`' for c in conditions)} | {why} |" for what, conditions, why in not_read]
    return "\n".join(lines) + "\n"


def _entry(found: list[Cell], refused: dict[str, str], name: str, provider: str) -> str:
    versions = [_shown(cell) for cell in found if (cell.name, cell.provider) == (name, provider)]
    if versions:
        return ", ".join(sorted(set(versions)))
    condition = refused.get(f"{name}-{provider}")
    return f"Spark refuses: `{condition}`" if condition else "not tried"


def _shown(cell: Cell) -> str:
    return cell.spark if cell.outcome == "read" else f"{cell.spark}: `{cell.outcome}`"


def main() -> None:
    """Write the page."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from test_compatibility import read_cell

    PAGE.write_text(render(list(cells(read_cell)), spark_refuses(), millpond_refuses()))


def spark_refuses() -> dict[str, str]:
    """Spark's observed refusals; test_refused.py repeats them."""
    refused: dict[str, str] = json.loads((HERE / "refused.json").read_text())["refused"]
    return refused


def millpond_refuses() -> list[tuple[str, list[str], str]]:
    """The errors that Millpond now gives for each kind of checkpoint that it refuses."""
    from refusals import REFUSALS

    with tempfile.TemporaryDirectory() as scratch:
        return [(r.what, r.conditions(Path(scratch, str(number))), r.why) for number, r in enumerate(REFUSALS)]


if __name__ == "__main__":
    main()
