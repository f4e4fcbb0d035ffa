"""Writes COMPATIBILITY.md from the golden checkpoints: each is read now, and what the table says is how that went.

python tests/golden/compatibility.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
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
NOT_READ = """
State of the JVM's own operators (`flatMapGroupsWithState`, Scala's `transformWithState`) | `UNSUPPORTED` | PySpark can't write it
Real-time mode (`trigger(realTime=…)`) | `UNSUPPORTED` | docs/operators.md tells how it is known
State store providers other than Spark's two | `UNSUPPORTED` | their files are their own
Ranges of deleted keys in change logs and SSTs | `UNSUPPORTED`, `UNKNOWN_FORMAT` | no operator of Spark 4.3 writes them
Unknown versions of any file | `UNKNOWN_FORMAT` | the message names the file and what it found
Checkpoint format 1 whose snapshots outlived a rewind in place | `REWOUND_IN_PLACE` | Spark itself would load them
Spark 3.5: a key column called `sessionStartTime` that isn't a session's | `UNSUPPORTED` | there is no metadata to tell it by
Spark 3.5: applyInPandasWithState in its old state format 1, or an aggregation in such a job | `UNSUPPORTED` | they look alike
"""


@dataclass(frozen=True)
class Cell:
    """One golden checkpoint: its name without version and provider, and how reading it went."""

    name: str
    provider: str
    spark: str
    outcome: str


def cells(read: Any) -> Iterator[Cell]:
    """Every golden checkpoint; `read(folder)` gives `read` or the condition of an error."""
    for path in sorted(HERE.rglob("state.json")):
        spark = ".".join(json.loads((path.parent / "about.json").read_text())["spark"].split(".")[:2])
        provider = next((p for p in PROVIDERS if path.parent.name.endswith(f"-{p}")), "")
        name = path.parent.name.removesuffix(f"-{provider}") if provider else path.parent.name
        yield Cell(name, provider, spark, read(path.parent))


def render(found: list[Cell], refused: dict[str, str]) -> str:
    """The page.  refused: cell -> the condition with which Spark refuses to write it."""
    lines = [
        "# What can be read",
        "",
        "Written by `python tests/golden/compatibility.py`, and held by a test: every entry is a checkpoint in tests/golden that",
        "this version of Spark wrote, read without a JVM, and equal to what Spark's own reader finds in it, row by row.",
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
    lines += [f"| {row} |" for row in NOT_READ.strip().splitlines()]
    return "\n".join(lines) + "\n"


def _entry(found: list[Cell], refused: dict[str, str], name: str, provider: str) -> str:
    versions = [_shown(cell) for cell in found if (cell.name, cell.provider) == (name, provider)]
    if versions:
        return ", ".join(sorted(set(versions)))
    same_as = f"transform-state-{provider}" if name.startswith("transform-") else f"{name}-{provider}"
    condition = refused.get(same_as)
    return f"Spark refuses: `{condition}`" if condition else "not tried"


def _shown(cell: Cell) -> str:
    return cell.spark if cell.outcome == "read" else f"{cell.spark}: `{cell.outcome}`"


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(HERE))
    from make_operators import REFUSED
    from test_compatibility import read_cell

    PAGE.write_text(render(list(cells(read_cell)), {name: condition for name, (_, condition) in REFUSED.items()}))


if __name__ == "__main__":
    main()
