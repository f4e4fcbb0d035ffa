"""Output of rows: a table for people on a terminal, one line per row for programs.

In a pipe the plain form is that of PostgreSQL's COPY: tabs between columns, `\\N` for NULL,
backslash escapes; no value is shortened.  A value that can't be computed is `\\E`, and a line on
stderr says why. Rows go to stdout; batch and lag go to stderr, so that a pipe has rows only.  With
--json both are JSON: on stdout one object per row; stderr's last line has the other members of
HTTP's answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from rich.text import Text

from millpond.cli.grid import GridColumn, apart, rounded, show_rows
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.operate.units import moment
from millpond.schema.definition.resolutions import OF_BUCKETS
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import Json, to_text
from millpond.tables.answer import Answer, Count, Cut, Row, Rows
from millpond.tables.buckets.answer import Series, Total
from millpond.tables.failed import FailedValue, FailingValues, errors_of, free_name
from millpond.tables.history.versions import Versions
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.subscribe import SqlChange, SqlChanges
from millpond.wire.answers import answer_json, members
from millpond.wire.rows import columns_writer, row_writer, typed_columns

Cell = str | FailedValue | None
"""A value's text; None for NULL"""
Column = tuple[str, Callable[[Any], Cell]]
_PLAIN = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NULL, _FAILED = "\\N", "\\E"
# The words for `Lag.age_from`: from when an answer's age counts.
_SINCE = {"commit": "committed", "batch_start": "begun"}


def write_rows(definition: TableDefinition, rows: Rows, *, as_json: bool, closed: bool | None = None) -> None:
    """Write rows in the form that suits stdout, and the footer.

    closed:  whether text has a column that marks expired rows; None: only if there are any
    """
    if as_json:
        write_json_rows(definition, rows)
        write_json_footer(_footer(definition, rows))
        return
    columns = _text_columns(definition)
    if closed or any(row.final for row in rows):
        columns.append((free_name("_final", definition.columns), lambda row: "true" if row.final else "false"))
    write_texts([name for name, _ in columns], ([write(row) for _, write in columns] for row in rows), _grid_columns(definition))
    _write_failures(rows)
    write_footer(rows.cut)


def write_page(definition: TableDefinition, rows: Rows, *, as_json: bool, closed: bool | None) -> None:
    """Write the rows of one page, and how to get the next one."""
    write_rows(definition, rows, as_json=as_json, closed=closed)
    if rows.more and not as_json:
        say(f"There are more rows: only {len(rows)} are shown (--limit); the next: --token {rows.token}")


def write_one(definition: TableDefinition, found: Answer | Count, names: tuple[str, ...], *, as_json: bool) -> None:
    """Write these members of an answer that isn't rows; its other members are the footer."""
    answer = members(answer_json(definition.table, found, row_writer(definition)))
    if as_json:
        write_json({name: answer[name] for name in names})
        write_json_footer({name: value for name, value in answer.items() if name not in names})
        return
    if len(names) == 1:
        write_line(str(answer[names[0]]))
    else:
        write_texts(list(names), [[_word(answer[name]) for name in names]])
    write_footer(found.cut)


def write_merged(definition: TableDefinition, found: Total | Series, *, as_json: bool) -> None:
    """Write the rows of a span of time; the footer has the span, and which buckets make it up."""
    if as_json:
        answer = members(answer_json(definition.table, found, row_writer(definition)))
        for row in answer.pop("rows") if isinstance(found, Series) else [answer.pop("row")]:
            if row is not None:
                write_json(row)
        write_json_footer({name: value for name, value in answer.items() if name != "untils"})
        return
    rows: Sequence[Row] = found if isinstance(found, Series) else [found] if found else []
    names = set(rows[0]) if rows else set(definition.columns) - set(OF_BUCKETS)
    columns = [(name, write) for name, write in _text_columns(definition) if name in names]
    grid = [column for column in _grid_columns(definition) if column.name in names]
    write_texts([name for name, _ in columns], ([write(row) for _, write in columns] for row in rows), grid)
    write_footer(found.cut)
    used = ", ".join(f"{u.rows} × {u.resolution}" for u in found.used if u.rows) or "no buckets"
    say(f"{definition.table} has no buckets of this group" if found.since is None else f"{found.since} until {found.until}: {used}")
    _write_estimates(definition, found)


def _write_estimates(definition: TableDefinition, found: Total | Series) -> None:
    """Write between which values the true ones lie; of several rows, only that there are such values."""
    if isinstance(found, Total):
        writers = dict(_text_columns(definition))
        for name, (lower, upper, confidence) in found.estimates.items():
            low, high = (writers[name]({name: value}) for value in (lower, upper))
            what = "exact" if low == high else f"an estimate: {low} to {high}"
            say(f"{name} is {what}" + (f", with {confidence:.1%} confidence" if confidence < 1 else ""))
        return
    names = sorted({name for row in found if isinstance(row, Total) for name in row.estimates})
    if names:
        say(f"{', '.join(names)}: estimates; --json shows between which values the true ones lie")


def write_sql(answer: SqlAnswer, *, as_json: bool) -> None:
    """Write the rows of a statement; the footer has each batch that it reflects."""
    types = answer.types()
    if as_json:
        write = columns_writer(types)
        for row in answer:
            write_json(write(row) or {})
        write_json_footer({"cuts": [{"job": cut.job, "batch": cut.position.batch} for cut in answer.cuts]})
        return
    writers = [to_text(type_) for _, type_ in types]
    names = [name for name, _ in types]
    if answer.is_plan:
        for line in str(answer.rows()[0]["plan"]).splitlines():
            write_line(line)
    else:
        lines = ([None if v is None else w(v) for w, v in zip(writers, row, strict=True)] for row in answer.values())
        write_texts(
            names,
            lines,
            [GridColumn(n, t.kind in _RIGHT, t.kind in _RIGHT | _FORMS.keys(), _FORMS.get(t.kind, str)) for n, t in types],
        )
    for cut in answer.cuts:
        write_footer(cut)


def write_sql_changes(changes: SqlChanges, *, as_json: bool) -> None:
    """Write what a batch changed in an answer: a line for each row, of an update `old → new` where a column differs."""
    types = changes.answer.types()
    if as_json:
        write = columns_writer(types)
        for change in changes:
            old, new = (None if row is None else write(row) or {} for row in (change.old, change.new))
            write_json({"batch": changes.batch, "kind": change.kind, "old": old, "new": new})
        return
    writers = [(name, to_text(type_)) for name, type_ in types]

    def cell(name: str, write: Callable[[Any], str], change: SqlChange) -> str:
        texts = ["NULL" if row[name] is None else write(row[name]) for row in (change.old, change.new) if row is not None]
        return " → ".join(dict.fromkeys(texts))

    lines = ([str(changes.batch), change.kind, *(cell(name, write, change) for name, write in writers)] for change in changes)
    write_grid(["_batch", "_kind", *(name for name, _ in types)], lines)


def write_versions(definition: TableDefinition, versions: Versions, *, as_json: bool) -> None:
    """Write versions of rows: the columns of each, then since when and until when it was current."""
    if as_json:
        write_json_list(definition, versions, "versions")
        return
    columns = _text_columns(definition)
    facts = [free_name(fact, definition.columns) for fact in ("_kind", "_batch", "_until_batch", "_committed", "_until")]
    lines = (
        [
            *(write(version.row) for _, write in columns),
            version.kind,
            *(_word(number) for number in (version.batch, version.until_batch)),
            *(None if ms is None else moment(ms) for ms in (version.committed_ms, version.until_ms)),
        ]
        for version in versions
    )
    numbers, times = facts[1:3], facts[3:]
    fact_columns = [*(GridColumn(n, True, True) for n in numbers), *(GridColumn(n, False, True, apart) for n in times)]
    write_texts([*(name for name, _ in columns), *facts], lines, [*_grid_columns(definition), *fact_columns])
    _write_failures(version.row for version in versions)
    write_footer(versions.cut)
    if versions.more:
        say(f"There are more versions: only {len(versions)} are shown (--limit)")


def _write_failures(rows: Iterable[dict[str, Any]]) -> None:
    """Write how many values can't be computed, and why the first can't."""
    errors = [(row, error) for row in rows if isinstance(row, FailingValues) for error in errors_of(row).values()]
    if errors:
        what = "1 value" if len(errors) == 1 else f"{len(errors)} values"
        place = ", ".join(f"{name}={value!s:.80}" for name, value in islice(errors[0][0].items(), 1))
        say(f"{what} can't be computed, in the row {place}: {errors[0][1]}")


def write_miss(definition: TableDefinition, rows: Rows, *, as_json: bool) -> None:
    """Write that there is no row, whether there was one, and the footer."""
    if as_json:
        write_json_footer(_footer(definition, rows))
        return
    evicted = rows[0].evicted if rows else False
    say(f"{definition.table} has no row with this key.{_GONE[evicted]}")
    write_footer(rows.cut)


_GONE = {
    False: "",
    True: " There was one, which expired by a watermark or a TTL. `millpond get --closed` shows expired rows that are kept.",
    None: " There may have been one that expired and is no longer kept.",
}


def write_json_rows(definition: TableDefinition, rows: Iterable[Row]) -> None:
    """Write one object per row: its columns, then `_batch`, `_behind_seconds`, `_changed` and `_final`.

    Their meaning is that of HTTP's answers.  If a column has one of these names, ours gets one more
    underscore in front.
    """
    write = row_writer(definition)
    batch, behind, changed, final = (
        free_name(name, definition.columns) for name in ("_batch", "_behind_seconds", "_changed", "_final")
    )
    for row in rows:
        marks = {batch: row.batch, behind: row.behind_seconds, changed: row.changed_batch, final: row.final}
        write_json({**(write(row) or {}), **marks})


def write_json_list(definition: TableDefinition, found: Answer | Count, name: str, *, footer: bool = True) -> None:
    """Write one object per entry of the member of this name, and the footer."""
    answer = members(answer_json(definition.table, found, row_writer(definition)))
    for entry in answer.pop(name):
        write_json(entry)
    if footer:
        write_json_footer(answer)


def _footer(definition: TableDefinition, rows: Rows) -> dict[str, Json]:
    """An answer without its rows and their members."""
    answer = members(
        answer_json(definition.table, Rows([r for r in rows if not r], rows.cut, more=rows.more, token=rows.token), dict)
    )
    return {name: value for name, value in answer.items() if name not in ("rows", "changed", "final")}


def write_json_footer(footer: dict[str, Json]) -> None:
    """Write an answer's batch and lag as stderr's last line, after the rows, even if both go to one file."""
    sys.stdout.flush()
    write_json(footer, err=True)


def write_footer(cut: Cut) -> None:
    """batch 41 · page-views · caught up · 3 s old · job running"""
    lag = cut.lag
    behind = "caught up" if not lag.behind_batches else f"{lag.behind_batches} batches ({lag.behind_seconds:.1f} s) behind"
    parts = [f"batch {cut.position.batch} of {cut.job}", behind, f"{_SINCE[lag.age_from]} {_age(lag.age_seconds)} ago"]
    if lag.event_lag_seconds is not None:
        parts.append(f"watermark {_age(lag.event_lag_seconds)} ago")
    parts.append(f"job {cut.job_state}" if cut.job_state != "unknown" else "job state unknown")
    say(" · ".join(parts))


def write_grid(columns: Iterable[str], rows: Iterable[list[str]]) -> None:
    """Write a table of texts: a grid on a terminal, tab-separated with a header line in a pipe."""
    names = list(columns)
    if not sys.stdout.isatty():
        write_texts(names, rows)
        return
    show_rows([GridColumn(visible(name), is_whole=True) for name in names], [[Text(visible(text)) for text in row] for row in rows])


def write_texts(names: list[str], lines: Iterable[Sequence[Cell]], shown: Iterable[GridColumn] = ()) -> None:
    """Write lines of texts, None for NULL.

    shown: the form of columns on a terminal; other columns are texts
    """
    if not sys.stdout.isatty():
        write_line("\t".join(name.translate(_PLAIN) for name in names))
        for line in lines:
            write_line("\t".join(_plain(cell) for cell in line))
        return
    known = {column.name: column for column in shown}
    columns = [known.get(name, GridColumn(name)) for name in names]
    rows = [[_cell(c.form(t) if isinstance(t, str) else t) for c, t in zip(columns, line, strict=True)] for line in lines]
    show_rows([column._replace(name=visible(column.name)) for column in columns], rows)


def _grid_columns(definition: TableDefinition) -> list[GridColumn]:
    """The form of a table's columns.  Key columns keep all digits, since somebody may ask with them."""
    keys = {column.name for column in definition.key}
    kinds = [(name, type_.kind) for name, type_ in typed_columns(definition)]
    return [GridColumn(n, k in _RIGHT, k in _RIGHT | _FORMS.keys(), str if n in keys else _FORMS.get(k, str)) for n, k in kinds]


_RIGHT = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})
_FORMS: dict[str, Callable[[str], str]] = {
    "float": rounded,
    "double": rounded,
    "timestamp": apart,
    "timestamp_ntz": apart,
    "date": str,
}


def _plain(cell: Cell) -> str:
    if isinstance(cell, FailedValue):
        return _FAILED
    return _NULL if cell is None else cell.translate(_PLAIN)


def _cell(text: Cell) -> Text:
    if text is None:
        return Text("NULL", style="dim")
    if isinstance(text, FailedValue):
        return Text(text.error.condition, style="dim")
    return Text(visible(text)) if text else Text('""', style="dim")


def _text_columns(definition: TableDefinition) -> list[Column]:
    """Name of each column, and a function from a row to the column's text, None for NULL."""

    def column(name: str, write: Callable[[Any], str]) -> Column:
        def text(row: dict[str, Any]) -> Cell:
            value = dict.__getitem__(row, name)
            return value if value is None or type(value) is FailedValue else write(value)

        return name, text

    return [column(name, to_text(type_)) for name, type_ in typed_columns(definition)]


def _word(value: Json) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def _age(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
