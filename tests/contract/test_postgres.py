"""The contract's questions as SQL, through PostgreSQL's protocol: rows, batches, errors and rights as Python has them.

Left out is what SQL can't say: which batch changed a row, pages' tokens, structs in keys.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.test_contract import Answer, Question, home, local, mistakes_of, places, python_answer, questions_of
from millpond.errors import MillpondError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.far_time import FarTime
from millpond.schema.types import TIMES
from millpond.schema.values import encode_json, to_json
from millpond.serve.access.tokens import add_token
from millpond.serve.hot.sql import is_utf8
from servers.ports import free_port
from servers.serving import serving, wait_until_ready

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.long
__all__ = ["home", "local", "places"]
ALL = 5000
UNSHOWN = ("string", "unfinished_hdfs", "unfinished_kept_rocksdb")
# Columns of these kinds come as JSON.
# Of the mistakes of reads, those that a statement makes too, with PostgreSQL's codes for them.
MISTAKES = {
    "UNKNOWN_COLUMN": {"42703"},
    "WRONG_TYPE": {"22P02", "22007", "42804"},
    "NOT_UP_TO_BOUND": {"55000"},
    "INVALID_BOUND": {"22023"},
}
_JSON = ("struct", "map", "array")
# Times before the year 1 and after 9999, as JSON has them.
_FAR_TEXT = re.compile(r"([+-][0-9]+|0000)-[0-9]{2}-[0-9]{2}")
_FAR = re.compile(f'"{_FAR_TEXT.pattern}')


@pytest.fixture(scope="module")
def ports(places: dict[str, Path], home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a server of all places, and its port for PostgreSQL's protocol."""
    first, *rest = map(str, places.values())
    port = free_port()
    options = (*rest, "--postgres-port", str(port), "--sql-processes", "2")
    with serving(first, *options, home=home) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        wait_until_ready(client)
        yield url, port


@pytest.fixture(scope="module")
def server(ports: tuple[str, int]) -> str:
    return ports[0]


@pytest.fixture(scope="module")
def client(ports: tuple[str, int]) -> Iterator[Any]:
    with psycopg.connect(f"host=127.0.0.1 port={ports[1]} user=me", autocommit=True) as connection:
        yield connection


# ---------------------------------------------------------------- the door


def quoted(name: str) -> str:
    """A table's name, or a column's without members."""
    return '"' + name.replace('"', '""') + '"'


def is_text(value: str) -> bool:
    """Whether PostgreSQL can have such a text."""
    return "\0" not in value and is_utf8(value)


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_of(each)


class Statement:
    """A question as a statement with its parameters.  Raises LookupError if SQL can't say it."""

    def __init__(self, table: Any, name: str, question: Question) -> None:
        self.values: list[Any] = []
        self._names = table.definition.columns
        definition, options = table.definition, question.options
        conditions = [self._is(column, value) for column, value in question.key.items()]
        if question.read == "get_all":
            found = [" AND ".join(self._is(c, v) for c, v in key.items()) for key in options["keys"]]
            conditions = [f"({' OR '.join(found)})"]
        conditions += self._edges(table, question)
        order = [quoted(column) for column in table.key_order]
        way = "DESC NULLS LAST" if options.get("reverse") else "ASC NULLS FIRST"
        what = "count(*)" if question.read == "count" else ", ".join(map(quoted, definition.columns))
        self.text = f"SELECT {what} FROM {quoted(name)}" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
        if question.read != "count":
            self.text += " ORDER BY " + ", ".join(f"{column} {way}" for column in order)
        self.has_order = all(column.type.kind not in _JSON for column in definition.key)
        if options.get("limit", ALL) != ALL:
            if not self.has_order:
                raise LookupError  # NULL in a struct comes last for DuckDB
            self.text += f" LIMIT {options['limit']}"

    def _is(self, column: str, value: Any) -> str:
        if value is None:
            return f"{self._column(column)} IS NULL"
        self._check(value)
        self.values.append(value)
        return f"{self._column(column)} = %s"

    def _column(self, name: str) -> str:
        """A column, or a member of a struct."""
        return quoted(name) if name in self._names else ".".join(map(quoted, name.split(".")))

    @staticmethod
    def _check(value: Any) -> None:
        is_odd = isinstance(value, str) and (not is_text(value) or _FAR_TEXT.match(value))
        if value is None or is_odd or isinstance(value, dict | list | FarTime):
            raise LookupError

    def _edges(self, table: Any, question: Question) -> list[str]:
        """Ranges of one column, and windows between two times."""
        options, found = question.options, []
        times = [c.name for c in table.definition.key if c.type.kind in TIMES]
        since = next((name for name in table.key_order if name in times and name not in question.key), None)
        edges = [(options.get("start"), ">="), (options.get("end"), "<")]
        if question.read == "windows":
            edges = [({since: options[edge]}, how) for edge, how in (("since", ">="), ("until", "<")) if edge in options]
        for edge, how in edges:
            for column, value in (edge or {}).items():
                self._check(value)
                self.values.append(value)
                is_first = how == "<" and question.read == "range"
                name = self._column(column)
                found.append(f"({name} {how} %s" + (f" OR {name} IS NULL)" if is_first else ")"))
        return found


def ask(client: Any, table: Any, name: str, question: Question) -> Answer:
    """The answer of the door, as far as a statement gives it.

    Raises:  LookupError if there is no such statement; psycopg.Error.
    """
    statement = Statement(table, name, question)
    for bound, value in question.bounds.items():
        client.execute(f"SET millpond.{bound} = '{value}'")
    try:
        cursor = client.execute(statement.text, statement.values)
        found = cursor.fetchall()
        rows = [shown(table.definition, row) for row in found] if question.read != "count" else []
    finally:
        for bound in question.bounds:
            client.execute(f"RESET millpond.{bound}")
    batch = int(client.info.parameter_status("millpond.batch"))
    if question.read == "count":
        return {"batch": batch, "count": found[0][0]}
    if question.read == "get":
        rows = rows or [None]
    if question.read == "get_all":
        wanted = [plain({name: key[name] for name in key}, table.definition) for key in question.options["keys"]]
        rows = [next((row for row in rows if {n: row[n] for n in key} == key), None) for key in wanted]
    return {"batch": batch, "rows": rows if statement.has_order else sorted(rows, key=json.dumps)}


def shown(definition: TableDefinition, values: tuple[Any, ...]) -> dict[str, Any]:
    """A row of psycopg's values in JSON's form."""
    return plain(dict(zip(definition.columns, values, strict=True)), definition)


def plain(row: dict[str, Any], definition: TableDefinition) -> dict[str, Any]:
    types = definition.types
    found = {name: value if types[name].kind in _JSON else to_json(types[name])(value) for name, value in row.items()}
    return json.loads(encode_json(found))  # type: ignore[no-any-return]


# ---------------------------------------------------------------- the questions


@pytest.mark.parametrize("every", [12, 1])
def test_a_statement_says_what_python_says(client: Any, local: dict[str, Any], every: int) -> None:
    """One question of so many is asked."""
    compared, refused, reads, tables = 0, 0, Counter[str](), set()
    for name, (table, _) in local.items():
        for question in questions_of(table)[::every]:
            said = python_answer(table, question)
            if _FAR.search(json.dumps(said.get("rows"))):
                continue  # psycopg can't hold them
            try:
                found = ask(client, table, name, question)
            except LookupError:
                continue
            except psycopg.Error as error:
                # A text that isn't UTF-8, or a value that can't be computed, also of other rows that are read.
                assert name in UNSHOWN, (name, question, error)
                assert error.diag.message_detail == "WRONG_TYPE"
                refused += 1
                continue
            assert all(map(is_utf8, texts_of(said)))
            if any(column.type.kind in _JSON for column in table.definition.key) and "rows" in said:
                said["rows"].sort(key=json.dumps)
            assert found == {member: said[member] for member in found}, (name, question)
            compared += 1
            reads[question.read] += 1
            tables.add(name)
    assert compared > 150 / every, reads
    assert refused > 0
    assert every > 1 or min(reads[read] for read in ("get", "get_all", "scan", "range", "windows", "count")) > 0, reads
    assert len(tables) > 12, tables


def test_a_statement_makes_the_same_mistake_of_it(client: Any, local: dict[str, Any]) -> None:
    met = Counter[str]()
    for name in ("counts.aggregate_0", "windows.aggregate_0", "long", "timestamp"):
        table = local[name][0]
        for question in mistakes_of(table):
            try:
                python_answer(table, question)
                continue
            except MillpondError as error:
                said = error.condition
            if said not in MISTAKES:
                continue
            with pytest.raises(psycopg.Error) as refused:
                ask(client, table, name, question)
            assert refused.value.sqlstate in MISTAKES[said], (name, question, said, refused.value)
            met[said] += 1
    assert met.keys() == MISTAKES.keys()


def test_rights_are_those_of_http(places: dict[str, Path], home: Path, tmp_path: Path) -> None:
    tokens, port = tmp_path / "tokens.json", free_port()
    token = add_token(tokens, "some", tables=["counts.*"])
    options = ("--postgres-port", str(port), "--tokens", str(tokens), "--sql-processes", "1")
    headers, address = {"authorization": f"Bearer {token}"}, f"host=127.0.0.1 port={port} user=some password="
    with serving(places["counts"], str(places["types"]), *options, home=home) as (url, _):
        with httpx.Client(base_url=url, timeout=60, headers=headers) as http, psycopg.connect(address + token) as connection:
            for name in ("counts.aggregate_0", "long", "nothing"):
                answer = http.get(f"/tables/{name}/count", params={"_wait_seconds": 30}).json()
                try:
                    found = connection.execute(f"SELECT count(*) FROM {quoted(name)}").fetchone()[0]
                    assert found == answer["count"]
                except psycopg.Error as error:
                    assert error.diag.message_detail == answer["error"]["condition"] == "NOT_ALLOWED"
                    assert error.sqlstate == "42501"
                    assert name != "counts.aggregate_0"
                connection.rollback()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address + "wrong")
