"""How rows are written: a table for people on a terminal, one line a row for programs.

On a terminal control characters are shown as escapes, since keys come from strangers and a terminal obeys them.  In a pipe the
plain form is that of PostgreSQL's COPY: tabs between columns, `\\N` for NULL, backslash escapes; it says everything, once.
Rows go to stdout; where they come from (batch, lag) goes to stderr, so that a pipe holds rows only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from millpond.schema.definition import TableDefinition
from millpond.serve.shapes import row_writer, typed_columns
from millpond.tables import Row
from millpond.tables.answer import Cut
from millpond.tables.values import encode_json, to_text

_PLAIN = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NULL = "\\N"
# How an answer's age is counted, `Lag.age_from`.
_SINCE = {"commit": "committed", "batch_start": "begun"}


def write_rows(definition: TableDefinition, rows: Iterable[Row], cut: Cut, *, as_json: bool) -> None:
    """Rows that are there, in the form that suits stdout, and the footer."""
    if as_json:
        write_json_rows(definition, rows, cut)
    elif sys.stdout.isatty():
        _write_grid(definition, list(rows))
    else:
        _write_plain(definition, rows)
    if not as_json:
        write_footer(cut)


def write_json_rows(definition: TableDefinition, rows: Iterable[Row], cut: Cut) -> None:
    """One object a row: its columns, then `_batch` and `_behind_seconds`.

    A column of one of these names keeps it; ours then gets one more underscore in front.
    """
    write = row_writer(definition)
    batch, behind = (_free_name(name, definition.columns) for name in ("_batch", "_behind_seconds"))
    for row in rows:
        write_line(encode_json({**(write(row) or {}), batch: cut.position.batch, behind: cut.lag.behind_seconds}).decode())


def write_footer(cut: Cut) -> None:
    """batch 41 · page-views · caught up · 3 s old · job running"""
    lag = cut.lag
    behind = "caught up" if not lag.behind_batches else f"{lag.behind_batches} batches ({lag.behind_seconds:.1f} s) behind"
    parts = [f"batch {cut.position.batch} of {cut.job}", behind, f"{_SINCE[lag.age_from]} {_age(lag.age_seconds)} ago"]
    if lag.event_lag_seconds is not None:
        parts.append(f"watermark {_age(lag.event_lag_seconds)} ago")
    parts.append(f"job {cut.job_state}" if cut.job_state != "unknown" else "job state unknown")
    click.echo(" · ".join(parts), err=True)


def write_grid(columns: Iterable[str], rows: Iterable[list[str]]) -> None:
    """A table of texts: with lines on a terminal, tab-separated with a header line in a pipe."""
    if not sys.stdout.isatty():
        write_line("\t".join(columns))
        for row in rows:
            write_line("\t".join(text.translate(_PLAIN) for text in row))
        return
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(visible(text)) for text in row))
    Console(highlight=False).print(grid)


def write_line(line: str) -> None:
    """One line to stdout; bytes of a Spark string that aren't UTF-8 go out as they are."""
    sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")


def visible(text: str) -> str:
    """The text with control characters, and bytes that aren't UTF-8, as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def _write_plain(definition: TableDefinition, rows: Iterable[Row]) -> None:
    writers = _text_writers(definition)
    write_line("\t".join(name.translate(_PLAIN) for name, _ in writers))
    for row in rows:
        write_line("\t".join(_NULL if row[n] is None else write(row[n]).translate(_PLAIN) for n, write in writers))


def _write_grid(definition: TableDefinition, rows: list[Row]) -> None:
    numbers = {name for name, type_ in typed_columns(definition) if type_.kind in _RIGHT}
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in definition.columns:
        grid.add_column(Text(visible(name)), justify="right" if name in numbers else "left", overflow="fold")
    writers = _text_writers(definition)
    for row in rows:
        grid.add_row(*(_cell(row[name], write) for name, write in writers))
    Console(highlight=False).print(grid)


_RIGHT = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})


def _cell(value: Any, write: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    return Text(visible(write(value))) if value != "" else Text('""', style="dim")


def _text_writers(definition: TableDefinition) -> list[tuple[str, Any]]:
    return [(name, to_text(type_)) for name, type_ in typed_columns(definition)]


def _free_name(name: str, taken: tuple[str, ...]) -> str:
    while name in taken:
        name = "_" + name
    return name


def _age(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
