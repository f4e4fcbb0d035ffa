"""Rows as a table on a terminal; if it isn't wide enough for all columns, a block of lines for each row.

A number or a time is never broken over two lines: half of one would look like another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Between two columns, and at the edges together.
_BETWEEN = 2
# A text may be broken into pieces of this size, anywhere.
_TEXT_WIDTH = 16
# A number with so few characters isn't rounded.
_SHORT = 8
# Numbers between these are shown without an exponent.
_SMALL, _LARGE = 1e-3, 1e15


class GridColumn(NamedTuple):
    """How a column is shown.

    is_number:  whether it is aligned to the right
    is_whole:   whether its words are never broken: numbers and times
    form:       a function to a shorter text for people
    """

    name: str
    is_number: bool = False
    is_whole: bool = False
    form: Callable[[str], str] = str


def show_rows(columns: Sequence[GridColumn], rows: Sequence[Sequence[Text]]) -> None:
    """Write rows to stdout, a cell for each column."""
    console = Console(highlight=False)
    widths = _widths(columns, rows, console.width - _BETWEEN * len(columns))
    if widths is None:
        _show_blocks(console, columns, rows)
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(Text(column.name), justify="right" if column.is_number else "left", overflow="fold", width=width)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)


def rounded(text: str) -> str:
    """A number for people: six digits after the point, or four digits in all if it is small."""
    value = float(text)
    if len(text) <= _SHORT or not math.isfinite(value):
        return text
    return f"{value:.6f}".rstrip("0").rstrip(".") if _SMALL <= abs(value) < _LARGE else f"{value:.4g}"


def apart(text: str) -> str:
    """A time's text with a blank between day and hour, which may then be on two lines."""
    return text.replace("T", " ")


def _widths(columns: Sequence[GridColumn], rows: Sequence[Sequence[Text]], room: int) -> list[int] | None:
    """A width for each column, in cells of the terminal; None if they are too many."""
    least, wanted = [], []
    for number, column in enumerate(columns):
        texts = [column.name, *(row[number].plain for row in rows)]
        words = max(cell_len(word) for text in texts for word in text.split(" "))
        least.append(words if column.is_whole else min(words, _TEXT_WIDTH))
        wanted.append(max(cell_len(text) for text in texts))
    spare = room - sum(least)
    if spare < 0:
        return None
    widths = list(least)
    # Columns that need little more get it; the widest share the rest.
    order = sorted(range(len(columns)), key=lambda number: wanted[number] - least[number])
    for place, number in enumerate(order):
        more = min(wanted[number] - least[number], spare // (len(order) - place))
        widths[number] += more
        spare -= more
    return widths


def _show_blocks(console: Console, columns: Sequence[GridColumn], rows: Sequence[Sequence[Text]]) -> None:
    for row in rows:
        block = Table(box=None, pad_edge=False, show_header=False)
        block.add_column(style="bold")
        block.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            block.add_row(Text(column.name), cell)
        console.print(block)
        console.print()
