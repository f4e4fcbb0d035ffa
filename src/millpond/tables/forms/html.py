"""Rows and tables as HTML, for notebooks.

Values are untrusted, so they are escaped.  The text form of a table reads nothing; its HTML form
reads the first rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from millpond.schema.definition.table import TableDefinition

# The most rows and tables in a notebook's view, and the most characters of a value.
ROWS = 10
TABLES = 100
_SHOWN = 120


def columns_text(definition: TableDefinition) -> str:
    """page string (key), hits bigint"""
    key = [f"{column.name} {column.type} (key)" for column in definition.key]
    return ", ".join([*key, *(f"{column.name} {column.type}" for column in definition.values)])


def html_tables(tables: Iterable[tuple[str, str, str]], caption: str) -> str:
    """A pond's tables as an HTML table, with a caption below.

    tables:  name, job and columns of each; of many the first ones are shown
    """
    rows = [{"table": table, "job": job, "columns": columns} for table, job, columns in tables]
    more = f", and {len(rows) - TABLES:,} tables more" if len(rows) > TABLES else ""
    return html_rows(rows, caption + more, most=TABLES)


def html_rows(rows: Sequence[dict[str, Any]], caption: str, *, most: int = ROWS) -> str:
    """At most so many rows as an HTML table, with a caption below."""
    names = list(dict.fromkeys(name for row in rows[:most] for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(dict.get(row, name))}</td>" for name in names) + "</tr>" for row in rows[:most])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(caption)}</p>"


def _cell(value: Any) -> str:
    if value is None:
        return "<i>NULL</i>"
    text = str(value)
    return escape(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
