"""Each measured figure in the manual stands in the result that its section links to.

A figure is a number with a decimal point, a unit or more than two digits.  It is right if a median, ratio or size of the result
rounds to it, in the unit of the page.  Sentences about aims claim nothing about results.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md")),
    "benchmarks/README.md",
    "src/millpond/native/README.md",
]
RESULT = re.compile(r"results/(\w+)\.json")
# Only medians, ratios and the like count: among many single rounds, one comes near to any number.
EACH = frozenset({"rounds", "runs", "each", "machine", "reasons", "sha256", "command"})
# Seconds as ms and µs, shares as percent, numbers as thousands and millions, bytes as KiB and MiB.
SCALES = (1, 100, 1e3, 1e6, 1e-3, 1e-6, 1 / 1024, 1 / 1024**2)
_UNIT = r"(?: ?(?:%|ms|µs|s|MiB|GiB|KiB|GB|times|million|M|k|microseconds|seconds|rows|keys)\b| ?%)"
_FIGURE = re.compile(rf"(?<![\w.,/`-])(\d{{1,3}}(?:,\d{{3}})+|\d+\.\d+|\d+)(?![\w.,]*\w)({_UNIT})?|(?<![\w.,/`-])(\d+)({_UNIT})")


def sections(text: str) -> list[str]:
    """The text between headings."""
    return re.split(r"^#+ .*$", text, flags=re.MULTILINE)


def figures(section: str) -> list[str]:
    """The numbers of a section that claim something."""
    plain = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", section, flags=re.DOTALL)
    claims = [s for s in re.split(r"(?<=[.;:])\s+|\n\n", plain) if not re.search(r"\baims?\b", s)]
    found = []
    for match in _FIGURE.finditer("\n".join(claims)):
        number, unit = match[1] or match[3], match[2] or match[4]
        if unit or "." in number or len(number.replace(",", "")) > 2:
            found.append(number)
    return found


def leaves(node: Any) -> Iterator[float]:
    """Every number of a result that counts."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name not in EACH:
                yield from leaves(value)
            if re.fullmatch(r"\d+", name):
                yield float(name)
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield float(node)


def stands_in(figure: str, values: list[float]) -> bool:
    """Whether a value, rounded to as many digits as the figure has, is the figure."""
    shown = float(figure.replace(",", ""))
    digits = len(figure.partition(".")[2])
    step = (
        10.0**-digits
        if digits
        else 10.0 ** (len(figure) - len(figure.rstrip("0,").replace(",", "")) - figure.count(","))
        if shown
        else 1
    )
    return any(math.isclose(value * scale, shown, rel_tol=0, abs_tol=step / 2 * 1.0001) for value in values for scale in SCALES)


def computed() -> dict[str, dict[str, list[float]]]:
    """Figures computed from two facts: page -> figure -> its value."""
    salted = {(m["stream"], m["aggregate"], m["grouping"]): m for m in result("salted")["measured"]}

    def times(fact: str, grouping: str) -> list[float]:
        pairs = [(m, salted[stream, kind, "plain"]) for (stream, kind, found), m in salted.items() if found == grouping]
        found = [m[fact] / plain[fact] for m, plain in pairs if fact in m]
        return [min(found), max(found)]

    lookup, history, broadcast = result("lookup"), result("history")["followed"], result("broadcast")
    sinks = result("sinks")
    few, many = (shape["median"] for shape in sinks["shapes"])
    beside = [
        few["plain"]["rows_per_second"] / few[side]["rows_per_second"] for side in ("redis", "postgres")
    ] + [many["plain"]["rows_per_second"] / many[side]["rows_per_second"] for side in ("redis", "postgres")]  # fmt: skip
    joined = [r for r in broadcast["rounds"] if r["rows"] == min(o["rows"] for o in broadcast["rounds"])]
    one_shard = [r["rows_per_second"] for r in joined if r["side"] == "broadcast"]
    added = [
        statistics.median(r["batch_ms"] for r in joined if r["side"] == side) / 1000 for side in ("broadcast", "fixed")
    ]  # fmt: skip
    ratios, most = broadcast["ratio"], str(max(r["rows"] for r in broadcast["rounds"]))
    followed = [
        shape["median"]["replica"]["follower_cpu_seconds"] / (sinks["size"]["batches"] * shape["changed_rows_a_batch"])
        for shape in sinks["shapes"]
    ]
    speed = {
        "1.35": beside,
        "1.38": beside,
        "1.43": beside,
        "2.1": beside,
        "3": [1e6 * max(followed)],
        "1.4": [1e6 / lookup["lmdb_get_per_second"]],
        "6": [sum(result("profiles")["apply"][part] for part in ("other", "offsets and commits"))],
        "2.9": [1e6 * (1 / 0.8 - 1) / result("http_get")["median"]["protocol_constant"]["requests_per_second"]],
        "0.28": [added[0] - added[1]],
        "0.39": [ratios["broadcast/join"][most] / ratios["broadcast/fixed"][most]],
        "210,000": [statistics.median(one_shard)],
    }
    return {
        "docs/history.md": {"4.5": [history["history"]["apply_seconds"] / history["none"]["apply_seconds"]]},
        "docs/hot-keys.md": {
            figure: [
                *times("get_microseconds", "salted"),
                *times("get_microseconds", "only the hot key salted"),
                *times("scan_seconds", "salted"),
                *times("scan_seconds", "only the hot key salted"),
            ]
            for figure in ("4.4", "7.2", "7.8", "10.6", "1.8", "2.1", "2.0", "2.4")
        },
        "docs/speed.md": speed,
        "benchmarks/README.md": speed,
    }


_OF_SPEED = {
    "0.2": "ms that a thread may keep the interpreter",
    "125": "rows of a change file",
    "5": "ms of Python's own",
    "16": "KiB of files that the compiled library reads",
}
# Numbers that were set and not measured, or come from a run whose result isn't committed.
SET = {
    "ARCHITECTURE.md": {"10,000": "mutations of a test run"},
    "docs/history.md": {"86400": "a setting", "4": "MiB of a segment"},
    "docs/keyed-state.md": {"30,969": "requests in the log"},
    "docs/speed.md": _OF_SPEED,
    "benchmarks/README.md": _OF_SPEED,
}


def result(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def unfounded(page: str) -> list[str]:
    """Figures of a page that no linked result has, and that aren't computed from one."""
    found = []
    for section in sections((ROOT / page).read_text()):
        values = [value for name in sorted(set(RESULT.findall(section))) for value in leaves(result(name))]
        for figure in figures(section) if values else ():
            known = figure in SET.get(page, ()) or stands_in(figure, values)
            if not known and not stands_in(figure, computed().get(page, {}).get(figure, [])):
                found.append(figure)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_figure_of_a_page_stands_in_its_result(page: str) -> None:
    assert unfounded(page) == []


def test_the_page_of_benchmarks_lists_every_script_and_links_each_aim_to_its_result() -> None:
    page = (ROOT / "benchmarks/README.md").read_text()
    for script in (ROOT / "benchmarks").glob("*.py"):
        assert "--write" not in script.read_text() or f"({script.name})" in page, script
    aims = re.findall(r"^\| .*$", page.partition("\n| aim ")[2].partition("\n\n")[0], flags=re.MULTILINE)[2:]
    assert len(aims) > 20
    for row in aims:
        (name,) = RESULT.findall(row)
        assert (ROOT / f"benchmarks/results/{name}.json").is_file(), row


def test_pages_tell_figures() -> None:
    """Otherwise the test above would compare nothing."""
    shown = [
        figure
        for page in PAGES
        for section in sections((ROOT / page).read_text())
        if RESULT.search(section)
        for figure in figures(section)
    ]
    assert len(shown) > 80


@pytest.mark.parametrize(
    ("figure", "value", "is_right"),
    [
        ("1.28", 1.281, True),
        ("1.28", 1.29, False),
        ("18,000", 18_041, True),
        ("18,000", 18_600, False),
        ("39", 0.387, True),
        ("41", 0.387, False),
        ("24.6", 24.64, True),
        ("85", 849, False),
    ],
)
def test_a_figure_is_right_where_a_value_rounds_to_it(figure: str, value: float, is_right: bool) -> None:
    assert stands_in(figure, [value]) == is_right


def test_figures_are_what_a_page_claims() -> None:
    link = "[result](../benchmarks/results/x_9.json)"
    text = f"It makes 1,200 rows a second in 2 ms, 1.5 times as much ({link}). 3.5 is the aim. Two, `7.7`."
    assert figures(text) == ["1,200", "2", "1.5"]
