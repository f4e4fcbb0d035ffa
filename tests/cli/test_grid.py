"""Tables on a terminal of any width: numbers and times are never split, and no line is too long."""

from __future__ import annotations

import math

import pytest
from rich.cells import cell_len
from rich.text import Text

from millpond.cli.grid import GridColumn, rounded, show_rows

COLUMNS = [
    GridColumn("name"),
    GridColumn("a description"),
    GridColumn("since", False, True),
    GridColumn("usage", True, True),
    GridColumn("average", True, True),
    GridColumn("url"),
]
ROWS = [
    ["forest", "50 trees of depth 8", "2026-11-22 08:41:29.458Z", "1599", "1.453e-05", "https://example.com/" + "x" * 60],
    ["linear", "least squares on eleven 測定", "2026-11-22 08:41:34.79Z", "123456789012", "-123.456789", "/"],
    ["", "", "NULL", "NULL", "NULL", "NULL"],
]


@pytest.mark.parametrize("width", [40, 60, 79, 80, 81, 90, 100, 120, 160, 220])
def test_no_number_and_no_time_is_broken(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_rows(COLUMNS, [[Text(text) for text in row] for row in ROWS])
    shown = capsys.readouterr().out
    assert max(map(cell_len, shown.splitlines())) <= width
    words = shown.split()
    for row in ROWS:
        for column, text in zip(COLUMNS, row, strict=True):
            assert not column.is_whole or all(word in words for word in text.split()), (column.name, shown)
    # A long text is all there, in pieces.
    assert "".join(words).count("x") >= 60
    is_table = "─" in shown
    assert is_table is (width > 80), shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.4534903693640764e-05, "1.453e-05"),
        (-0.023241311006131582, "-0.023241"),
        (0.1 + 0.2, "0.3"),
        (2 / 3, "0.666667"),
        (1234567.891, "1234567.891"),
        (123456789.0, "123456789"),
        (1.2345678e300, "1.235e+300"),
        (0.1, "0.1"),
        (5e-324, "5e-324"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (1234567890.0, "1234567890"),
    ],
)
def test_fractions_are_rounded_to_what_a_person_reads(value: float, shown: str) -> None:
    assert rounded(repr(value)) == shown


def test_what_is_no_finite_number_is_shown_as_it_is() -> None:
    assert [rounded(text) for text in ("-Infinity", "Infinity", "NaN")] == ["-Infinity", "Infinity", "NaN"]
