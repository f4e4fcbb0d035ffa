"""Draws docs/pictures/speed.svg: how many times as quick as the other way, for each comparison with a committed result.

`python benchmarks/chart.py` writes it anew from benchmarks/results/; a test holds it against these files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
TARGET = Path(__file__).parents[1] / "docs" / "pictures" / "speed.svg"


class Bar(NamedTuple):
    """A comparison: what is measured, beside what, and where its ratio stands in which result."""

    what: str
    beside: str
    result: str
    ratio: Callable[[Any], float]


BARS = [
    Bar("A key over HTTP, one process", "a Kafka Streams query", "http_get", lambda r: r["ratio_of_requests"]["kafka_streams"]),
    Bar(
        "A key over HTTP, two processes",
        "a Kafka Streams query",
        "http_get",
        lambda r: r["ratio_of_requests_of_millpond_2"]["kafka_streams"],
    ),
    Bar("A whole state as Arrow", "Spark’s own reader", "to_arrow", lambda r: _arrow(r, "hdfs, long key")),
    Bar("The same, RocksDB’s change logs", "Spark’s own reader", "to_arrow", lambda r: _arrow(r, "rocksdb-changelog, long key")),
    Bar("The same, RocksDB’s snapshots", "Spark’s own reader", "to_arrow", lambda r: _arrow(r, "rocksdb-snapshots, long key")),
    Bar("A RocksDB snapshot", "RocksDB (rocksdict)", "sst", lambda r: r["counts"]["ratio_in_chunks"]),
    Bar("A job with a replica that is read", "with a sink to Redis", "sinks", lambda r: _sink(r, "redis")),
    Bar("The same", "with a sink to PostgreSQL", "sinks", lambda r: _sink(r, "postgres")),
    Bar("The same", "alone, nothing to read", "sinks", lambda r: _sink(r, "plain")),
    Bar("Broadcast rules that change", "a join, fixed rules", "broadcast", lambda r: r["ratio"]["broadcast/join"]["100000"]),
    Bar("Models that change", "a UDF, fixed model", "broadcast", lambda r: r["ratio"]["models/udf"]["100000"]),
]
_LEFT, _WIDTH, _TOP, _STEP, _TICKS = 430, 360, 76, 30, (0.25, 0.5, 1, 2, 5, 10, 20, 50)
_STYLE = """<style>
text { font: 13px "DejaVu Sans", Verdana, sans-serif; fill: #1f2933 }
.small { font-size: 12px; fill: #52606d }
.head { font-size: 14px; font-weight: bold }
.page { fill: #ffffff; stroke: #d9e2ec }
.more { fill: #2f8f6b }
.less { fill: #b7791f }
.tick { stroke: #d9e2ec }
.one { stroke: #52606d }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb }
.small { fill: #9fb3c8 }
.page { fill: #1b2430; stroke: #334e68 }
.more { fill: #4fb58d }
.less { fill: #d69e2e }
.tick { stroke: #334e68 }
.one { stroke: #9fb3c8 }
}
</style>"""


def _arrow(result: Any, variant: str) -> float:
    return float(result["variants"][variant]["read_arrow"]["times_spark_to_arrow"]["rows_per_second"])


def _sink(result: Any, other: str) -> float:
    return float(result["shapes"][0]["replica_to_others_in_rows_per_second"][other])


def draw() -> str:
    """The chart from the committed results, as SVG; its axis is logarithmic, and bars begin at 1."""
    bottom = _TOP + _STEP * len(BARS)
    width, height = _LEFT + _WIDTH + 40, bottom + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>How many times as quick as the other way</title>",
        _STYLE,
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        '<text class="head" x="20" y="32">How many times as quick as the other way</text>',
        '<text class="small" x="20" y="54">each pair on one machine, by turns in one run</text>',
    ]
    for tick in _TICKS:
        kind = "one" if tick == 1 else "tick"
        out.append(f'<path class="{kind}" d="M{_x(tick)} {_TOP - 10}V{bottom}"/>')
        out.append(f'<text class="small" x="{_x(tick)}" y="{bottom + 20}" text-anchor="middle">{tick}</text>')
    for n, bar in enumerate(BARS):
        ratio = bar.ratio(json.loads((RESULTS / f"{bar.result}.json").read_text()))
        start, end = sorted((_x(1), _x(ratio)))
        kind, y = ("more" if ratio >= 1 else "less"), _TOP + _STEP * n
        out.append(f'<text x="20" y="{y + 13}">{escape(bar.what, quote=False)}</text>')
        out.append(f'<text class="small" x="{_LEFT - 140}" y="{y + 13}">{escape(bar.beside, quote=False)}</text>')
        out.append(f'<rect class="{kind}" x="{start}" y="{y}" width="{round(end - start, 1)}" height="18" rx="2"/>')
        # Beside the bar, on the side away from 1.
        place, anchor = (end + 6, "start") if ratio >= 1 else (start - 6, "end")
        out.append(f'<text x="{round(place, 1)}" y="{y + 14}" text-anchor="{anchor}">{ratio:.3g}</text>')
    return "\n".join([*out, "</svg>\n"])


def _x(ratio: float) -> float:
    """Where a ratio stands."""
    low, high = math.log(_TICKS[0] / 1.5), math.log(_TICKS[-1] * 1.8)
    return round(_LEFT + 20 + _WIDTH * (math.log(ratio) - low) / (high - low), 1)


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
