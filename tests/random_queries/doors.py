"""The doors of a table: Python, Arrow, a server through its client and plain requests, the command line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json, to_text
from millpond.wire.rows import row_writer, typed_columns
from oracles.emitted import bits
from suite.programs import started
from suite.waiting import wait_until

Failure = Callable[[str, str], Exception]


# ---------------------------------------------------------------- Arrow


def arrow_rows(table: Any, types: list[SparkType]) -> list[tuple[Any, ...]]:
    """Rows of a pyarrow.Table in stored form; Python's dates aren't used."""
    columns = [[_stored(value, type_) for value in column] for column, type_ in zip(table.columns, types, strict=True)]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def has_arrow(definition: TableDefinition) -> bool:
    """Whether Arrow has a form for all columns, according to docs/types.md."""
    return all(_arrow_holds(c.type) for c in (*definition.key, *definition.values))


def _arrow_holds(type_: SparkType) -> bool:
    inner = (*(f.type for f in type_.fields), *(t for t in (type_.element, type_.key, type_.value) if t is not None))
    return type_.kind not in ("calendar_interval", "variant") and all(map(_arrow_holds, inner))


def _stored(value: Any, type_: SparkType) -> Any:
    if not value.is_valid:
        return None
    if type_.kind in ("date", "timestamp", "timestamp_ntz", "day_time_interval", "time"):
        return value.value
    if type_.kind == "string":  # which may not be UTF-8
        return value.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
    if type_.kind == "struct":
        return tuple(_stored(value[n], f.type) for n, f in enumerate(type_.fields))
    if type_.kind == "array":
        assert type_.element is not None
        return [_stored(v, type_.element) for v in value.values]
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return [(_stored(v[0], type_.key), _stored(v[1], type_.value)) for v in value.values]
    return value.as_py()


# ---------------------------------------------------------------- Python


def cells(row: Any) -> dict[str, Any]:
    """The values of a row; None for one that can't be computed, as at the doors that can't raise Python's errors."""
    failed = getattr(row, "errors", {})
    return {name: None if name in failed else value for name, value in row.items()}


def _text(rows: Any) -> list[str]:
    """Rows as text, equal only for equal rows, with the conditions of errors."""
    return [
        repr([[bits(v) for v in cells(row).values()], {n: e.condition for n, e in getattr(row, "errors", {}).items()}])
        for row in rows
    ]


def _key_of(table: Any, row: Any) -> dict[str, Any]:
    return {c.name: row[c.name] for c in table.definition.key}


def ask_table(table: Any, wrong: Failure, *, door: str = "") -> None:
    """Check reads that must agree with the scan: rows by key, ranges, pages, backwards, counts."""
    rows = table.scan()
    texts = _text(rows)
    if _text(table.scan(reverse=True)) != texts[::-1]:
        raise wrong(f"{door}scan reverse", "it isn't the scan backwards")
    if table.count() != len(rows):
        raise wrong(f"{door}count", f"{int(table.count())} where the scan has {len(rows)}")
    for row, text in list(zip(rows, texts, strict=True))[:12]:
        key = _key_of(table, row)
        found = table.get(key)
        if not found or _text([found]) != [text]:
            raise wrong(f"{door}get", f"{key!r} gives {_text([found])}, the scan has {text}")
    if len(rows) > 1:
        page = table.scan(limit=1)
        rest = table.scan(token=page.token)
        if _text([*page, *rest]) != texts:
            raise wrong(f"{door}pages", "pages put together aren't the scan")
    order = table.key_order
    if len(rows) > 1 and order and _is_ordered({c.name: c.type for c in table.definition.key}[order[0]]):
        middle = {order[0]: rows[len(rows) // 2][order[0]]}
        both = [*table.range(end=middle), *table.range(start=middle)]
        if _text(both) != texts:
            raise wrong(f"{door}range", f"before and from {middle!r} aren't the scan")


def _is_ordered(type_: SparkType) -> bool:
    if type_.kind in ("map", "variant", "calendar_interval", "geo", "void") or (type_.kind == "string" and "collate" in type_.name):
        return False
    return all(_is_ordered(t) for t in (*(f.type for f in type_.fields), *([type_.element] if type_.element else [])))


# ---------------------------------------------------------------- a server


@contextlib.contextmanager
def serving(ponds: list[Path], home: Path) -> Iterator[str]:
    """The address of a server of several ponds."""
    import httpx

    command = [sys.executable, "-m", "millpond.cli", "serve", *map(str, ponds), "--port", "0", "--json"]
    with started(command, stdout=subprocess.PIPE, env={**os.environ, "MILLPOND_HOME": str(home)}) as running:
        try:
            assert running.stdout is not None
            address = json.loads(running.stdout.readline())["url"]
            wait_until(
                lambda: httpx.get(f"{address}/readyz", timeout=60).status_code == 200,
                "the server's yes at /readyz",
                seconds=120,
                unless=lambda: running.poll() is not None,
            )
            yield address
        finally:
            running.terminate()
            running.wait(60)


def ask_server(address: str, remote: Any, table: Any, wrong: Failure) -> None:
    """Check the same table through a server: client, JSON, CSV, Arrow.

    remote:  millpond.connect(address)
    table:   the table of an opened pond, at the same batch
    """
    import httpx
    import pyarrow as pa

    rows = table.scan()
    there = remote[table.name]
    if _text(there.scan()) != _text(rows):
        raise wrong("client scan", f"{_text(there.scan())[:3]} where Python has {_text(rows)[:3]}")
    ask_table(there, wrong, door="client ")
    path = f"{address}/tables/{quote(table.name)}/rows?_limit=1000"
    write = row_writer(table.definition)
    answer = httpx.get(path, timeout=60)
    if answer.status_code != 200 or answer.json()["rows"] != [json.loads(encode_json(write(row))) for row in rows]:
        raise wrong("http json", f"{answer.status_code}: {answer.text[:600]}")
    for row in rows[:3]:
        words = _url_words(table, row)
        if words is None:
            break
        answer = httpx.get(f"{address}/tables/{quote(table.name)}/rows?{words}", timeout=60)
        if answer.status_code != 200 or answer.json()["rows"] != [json.loads(encode_json(write(row)))]:
            raise wrong("http url", f"{words} gives {answer.status_code}: {answer.text[:600]}")
    answer = httpx.get(path, timeout=60, headers={"Accept": "text/csv"})
    names = [name for name, _ in typed_columns(table.definition)]
    writers = [(name, to_text(type_)) for name, type_ in typed_columns(table.definition)]
    lines = [[_csv_cell(row, name, text) for name, text in writers] for row in rows]
    read = list(csv.reader(io.StringIO(answer.content.decode("utf-8", "surrogateescape"), newline="")))
    if answer.status_code != 200 or [line or [""] for line in read] != [names, *lines]:  # a row of one NULL is an empty line
        raise wrong("http csv", f"{answer.status_code}: {answer.text[:600]} where Python has {lines[:3]}")
    answer = httpx.get(path, timeout=60, headers={"Accept": "application/vnd.apache.arrow.stream"})
    if not has_arrow(table.definition):
        if "WRONG_TYPE" not in answer.text:
            raise wrong("http arrow", f"{answer.status_code} of a column that Arrow hasn't: {answer.text[:600]}")
        return
    if answer.status_code != 200:
        raise wrong("http arrow", f"{answer.status_code}: {answer.text[:600]}")
    arrow = pa.ipc.open_stream(answer.content).read_all()
    local = table.to_arrow()
    if arrow.schema != local.schema or arrow.to_batches() != local.to_batches():
        types = [c.type for c in (*table.definition.key, *table.definition.values)]
        found, wanted = ([repr(bits(list(row))) for row in arrow_rows(whole, types)] for whole in (arrow, local))
        if found != wanted or arrow.schema != local.schema:
            other = next(((a, b) for a, b in zip(found, wanted, strict=False) if a != b), (len(found), len(wanted)))
            raise wrong("http arrow", f"{arrow.schema} where Python has {local.schema}; first of other values: {other}")


def _csv_cell(row: Any, name: str, text: Callable[[Any], str]) -> str:
    failed = getattr(row, "errors", {})
    if name in failed:
        return f"#{failed[name].condition}"
    return "" if row[name] is None else text(row[name])


def _url_words(table: Any, row: Any) -> str | None:
    """The key of a row in the form of a URL; None if a URL can't name one of the columns."""
    words = []
    for column in table.definition.key:
        if column.name.startswith("_") or column.name.endswith("__isnull"):
            return None
        value = row[column.name]
        name, text = (f"{column.name}__isnull", "1") if value is None else (column.name, to_text(column.type)(value))
        words.append(f"{quote(name, safe='')}={quote(text.encode('utf-8', 'surrogateescape'), safe='')}")
    return "&".join(words)


# ---------------------------------------------------------------- the command line


def ask_command_line(place: str, home: Path, table: Any, wrong: Failure) -> None:
    """Check the same table through `millpond scan` and `millpond get`."""
    from click.testing import CliRunner

    from millpond.cli import main

    rows = table.scan()
    write = row_writer(table.definition)
    expected = [json.loads(encode_json(write(row))) for row in rows]
    env = {"MILLPOND_HOME": str(home)}
    done = CliRunner().invoke(main, ["scan", place, table.name, "--json", "--limit", "1000"], env=env)
    if done.exit_code != 0:
        raise wrong("command line", f"scan ends with {done.exit_code}: {done.stderr[-600:]}")
    found = [json.loads(line) for line in done.stdout_bytes.decode("utf-8", "surrogateescape").splitlines()]
    plain = [{n: row[n] for n in line} for row, line in zip(found, expected, strict=False)]
    if len(found) != len(expected) or plain != expected:
        raise wrong("command line", f"scan has {found[:3]} where Python has {expected[:3]}")
    if expected:
        names = [c.name for c in table.definition.key]
        key = json.dumps({name: expected[-1][name] for name in names})
        done = CliRunner().invoke(main, ["get", place, table.name, "--key", key, "--json"], env=env)
        if done.exit_code != 0:
            raise wrong("command line", f"get --key {key} ends with {done.exit_code}: {done.stderr[-600:]}")
