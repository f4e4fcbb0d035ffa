"""One set of questions, asked through every door: Python, the client (waiting and not), HTTP, the command line.

All doors must answer as Python's `open` does, errors included, over tables of several operators.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.testing import CliRunner

import millpond
import millpond.client
import millpond.settings
from millpond.cli import main
from millpond.errors import MillpondError, RequestError
from millpond.schema.convert import to_python
from millpond.schema.definition.table import TableDefinition, key_parts
from millpond.schema.far_time import FarTime
from millpond.schema.types import TIMES
from millpond.schema.values import encode_json, to_json, to_text
from millpond.tables.scan.keys import KeyReader
from millpond.wire.answers import cut_json
from millpond.wire.rows import row_writer
from spark_files.golden import GOLDEN
from suite.programs import started
from suite.sizes import a_few
from suite.waiting import wait_until

CELLS = {
    "counts": "counts-hdfs",
    "windows": "windows-rocksdb-changelog",
    "chained": "chained-rocksdb-changelog",
    "session": "spark-4.3/sessions-hdfs",
    "dedupe": "spark-4.3/dedupe-within-watermark-hdfs",
    "join": "spark-4.3/join-left-rocksdb-snapshots",
    "apply": "spark-4.3/apply-event-timeout-rocksdb-snapshots",
    "transform": "spark-4.3/transform-two-keys-rocksdb-snapshots",
}
# Of ponds with many tables, only these are asked.
PONDS = {
    "types": (
        *("long", "string", "price", "timestamp", "timestamp_ntz", "binary", "boolean", "double", "date"),
        *("struct", "struct_of_times", "nested_struct"),
    ),
    "values": ("structs_hdfs", "struct_windows_rocksdb", "struct_sessions_hdfs", "unfinished_hdfs", "unfinished_kept_rocksdb"),
}
Answer = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A read of a table: its name, its key, and options; `bounds` as the members of a `Bounds`."""

    read: str
    key: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- the server


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("contract")
    for name, cell in CELLS.items():
        shutil.copytree(GOLDEN / cell / "checkpoint", folder / name, copy_function=shutil.copy)
    for pond in PONDS:
        shutil.copytree(GOLDEN / pond, folder / pond)
    return {name: folder / name for name in (*CELLS, *PONDS)}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract-home")


@pytest.fixture(scope="module")
def server(places: dict[str, Path], home: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "millpond.cli", "serve", *map(str, places.values()), "--port", "0", "--json"]
    with started(command, stdout=subprocess.PIPE, env={**os.environ, "MILLPOND_HOME": str(home)}) as running:
        try:
            assert running.stdout is not None
            address = json.loads(running.stdout.readline())["url"]
            wait_until(lambda: httpx.get(f"{address}/readyz", timeout=60).status_code == 200, "the server", seconds=120)
            yield address
        finally:
            running.terminate()
            running.wait(30)


@pytest.fixture(scope="module")
def local(places: dict[str, Path], home: Path, server: str) -> Iterator[dict[str, Any]]:
    """Tables by name, as Python has them: all tables of these places that can be read."""
    with ExitStack() as opened:
        tables = {}
        for name, path in places.items():
            pond = opened.enter_context(millpond.open(path, replica_dir=home, follow=False, wait_seconds=30))
            tables |= {table: (pond[table], path) for table in pond.tables() if table in PONDS.get(name, (table,))}
        yield tables


# ---------------------------------------------------------------- the doors


def python_answer(table: Any, question: Question) -> Answer:
    """An answer of Python or of the client, whose tables have the same reads."""
    bounds = millpond.Bounds(**question.bounds) if question.bounds else None
    if question.read == "get_all":
        answer = table.get_all(question.options["keys"], bounds=bounds)
    else:
        answer = getattr(table, question.read)(question.key, bounds=bounds, **question.options)
    return _answer_of(table.definition, question, answer)


def _answer_of(definition: TableDefinition, question: Question, answer: Any) -> Answer:
    cut = json.loads(encode_json(cut_json("", answer.cut)))
    source = {"batch": cut["batch"], "position": cut["position"], "job": cut["job"], "behind": cut["lag"]["behind_batches"]}
    if question.read == "count":
        return {**source, "count": int(answer)}
    write = row_writer(definition)
    rows = [answer] if question.read == "get" else answer
    marks = [(row.changed_batch, row.final) if row else row.evicted for row in rows]
    shown = [json.loads(encode_json(write(row))) for row in rows]
    return {**source, "rows": shown, "marks": marks, "more": getattr(answer, "more", False)}


def ask_python(asked: Asked, name: str, question: Question) -> Answer:
    return python_answer(asked.local[name][0], question)


def ask_client(asked: Asked, name: str, question: Question) -> Answer:
    return python_answer(asked.client[name], question)


def ask_client_async(asked: Asked, name: str, question: Question) -> Answer:
    async def ask() -> Answer:
        bounds = millpond.Bounds(**question.bounds) if question.bounds else None
        async with millpond.connect_async(asked.address) as server:
            table = server[name]
            if question.read == "get_all":
                answer = await table.get_all(question.options["keys"], bounds=bounds)
            else:
                answer = await getattr(table, question.read)(question.key, bounds=bounds, **question.options)
            return _answer_of((await table.load()).definition, question, answer)

    return asyncio.run(ask())


def ask_url(asked: Asked, name: str, question: Question) -> Answer:
    definition = asked.local[name][0].definition
    types = {c.name: c.type for c in key_parts(definition)}
    if question.read == "get_all":
        keys = [_json_key(definition, key) for key in question.options["keys"]]
        return _over_http(asked, name, "rows:get", question, {"keys": keys})
    words = []
    for column, value in question.key.items():
        if value is None:
            words.append((f"{column}__isnull", "1"))
        else:
            words.append((column, _text(types.get(column), value)))
    for option, value in question.options.items():
        if option in ("start", "end"):
            value = encode_json(_json_key(definition, value)).decode()
        words.append((f"_{option}", "1" if value is True else "0" if value is False else _time_or_word(value)))
    for bound, value in question.bounds.items():
        words.append((f"_{bound}", json.dumps(value) if bound == "min_offsets" else str(value)))
    encoded = "&".join(f"{_quote(n)}={_quote(t)}" for n, t in words)
    path = f"{asked.address}/tables/{_quote(name)}/{'count' if question.read == 'count' else 'rows'}?{encoded}"
    return _read_http(asked.http.get(path), question)


def ask_json(asked: Asked, name: str, question: Question) -> Answer:
    definition = asked.local[name][0].definition
    if question.read == "get_all":
        return ask_url(asked, name, question)
    options = {o: _json_key(definition, v) if o in ("start", "end") else v for o, v in question.options.items()}
    options = {o: _time_or_word(v) if isinstance(v, dt.date | FarTime) else v for o, v in options.items()}
    body = {"key": _json_key(definition, question.key), **options}
    return _over_http(asked, name, "rows:count" if question.read == "count" else "rows:scan", question, body)


def ask_command_line(asked: Asked, name: str, question: Question) -> Answer:
    return _by_command(asked, str(asked.local[name][1]), name, question)


def ask_command_line_of_server(asked: Asked, name: str, question: Question) -> Answer:
    return _by_command(asked, asked.address, name, question)


def _by_command(asked: Asked, place: str, name: str, question: Question) -> Answer:
    table, _ = asked.local[name]
    command = "scan" if question.read == "range" else question.read
    key = encode_json(_json_key(table.definition, question.key)).decode()
    words = [command, place, name, "--key", key, "--json"]
    for option, value in question.options.items():
        if option in ("start", "end"):
            types = {c.name: c.type for c in key_parts(table.definition)}
            words += [w for c, v in value.items() for w in (f"--{option}", f"{c}={_text(types.get(c), v)}")]
        elif value is not False:
            words += [f"--{option}"] + ([] if value is True else [_time_or_word(value)])
    names = {"max_behind_seconds": "max-behind", "max_age_seconds": "max-age", "wait_seconds": "wait"}
    for bound, value in question.bounds.items():
        text = json.dumps(value) if bound == "min_offsets" else str(value)
        words += ["--" + names.get(bound, bound.replace("_", "-")), text]
    done = CliRunner().invoke(main, words, env={"MILLPOND_HOME": str(asked.home)})
    if done.exit_code not in (0, 1):
        _raise(json.loads(done.stderr.splitlines()[-1])["error"])
    rows = [json.loads(line) for line in done.stdout_bytes.decode("utf-8", "surrogateescape").splitlines()]
    data = json.loads(done.stderr.splitlines()[-1])
    if question.read == "count":
        return _answer_of_json({**data, **rows[0]}, question)
    assert {(row.pop("_batch"), row.pop("_behind_seconds")) for row in rows} <= {(data["batch"], data["lag"]["behind_seconds"])}
    marks = [(row.pop("_changed"), row.pop("_final")) for row in rows]
    final = [place for place, (_, is_final) in enumerate(marks) if is_final]
    return _answer_of_json({**data, "rows": rows, "changed": [changed for changed, _ in marks], "final": final}, question)


@dataclass(frozen=True)
class Asked:
    """Where to ask."""

    local: dict[str, Any]
    address: str
    home: Path
    client: millpond.client.RemotePond
    http: httpx.Client


@pytest.fixture(scope="module")
def asked(local: dict[str, Any], server: str, home: Path) -> Iterator[Asked]:
    with millpond.connect(server) as client, httpx.Client(timeout=60) as http:
        yield Asked(local, server, home, client, http)


DOORS: dict[str, Callable[[Asked, str, Question], Answer]] = {
    "client": ask_client,
    "client, not waiting": ask_client_async,
    "url": ask_url,
    "json": ask_json,
    "command line": ask_command_line,
    "command line, of the server": ask_command_line_of_server,
}
COMMANDS = (ask_command_line, ask_command_line_of_server)
# No command reads several keys.
BY_COMMAND = frozenset({"get", "scan", "range", "windows", "count"})


def _quote(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe="")


def _time_or_word(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _text(type_: Any, value: Any) -> str:
    if type_ is None or isinstance(value, str):
        return str(value)
    try:
        return to_text(type_)(value)
    except (AttributeError, TypeError):
        return str(value)


def _json_key(definition: TableDefinition, key: dict[str, Any]) -> dict[str, Any]:
    """The key as JSON.  Values of a wrong type and unknown columns stay as they are."""
    out = {}
    for name, value in key.items():
        try:
            stored = KeyReader(definition).stored({name: value})[name]
            type_ = next(c.type for c in key_parts(definition) if c.name == name)
            out[name] = to_json(type_)(to_python(type_)(stored))
        except RequestError:
            out[name] = value
    return out


def _over_http(asked: Asked, name: str, route: str, question: Question, body: dict[str, Any]) -> Answer:
    data = {**body, **({"bounds": question.bounds} if question.bounds else {})}
    path = f"{asked.address}/tables/{_quote(name)}/{route}"
    return _read_http(asked.http.post(path, content=encode_json(data)), question)


def _read_http(answer: httpx.Response, question: Question) -> Answer:
    data = json.loads(answer.content)
    if "error" in data:
        _raise(data["error"])
    return _answer_of_json(data, question)


def _answer_of_json(data: dict[str, Any], question: Question) -> Answer:
    source = {"batch": data["batch"], "position": data["position"], "job": data["job"], "behind": data["lag"]["behind_batches"]}
    if question.read == "count":
        return {**source, "count": data["count"]}
    rows = data["rows"] or [None] if question.read == "get" else data["rows"]
    missing = {**dict.fromkeys(data["evicted"], True), **dict.fromkeys(data["maybe_evicted"])}
    marks: list[Any] = []
    for place, row in enumerate(rows):
        marks.append(missing.get(place, False) if row is None else (data["changed"][place], place in data["final"]))
    return {**source, "rows": rows, "marks": marks, "more": data["more"]}


def _raise(error: dict[str, Any]) -> None:
    raise MillpondError(error["condition"], error["message"], hint=error["hint"], **error["context"])


# ---------------------------------------------------------------- the questions


def questions_of(table: Any) -> list[Question]:
    """All questions for a table: every read with the options that matter, for rows that exist and one that doesn't."""
    rows = table.scan()
    keys = [{c: row[c] for c in table.definition.columns[: len(table.definition.key)]} for row in rows]
    picked = [keys[i] for i in sorted({0, len(keys) // 2, len(keys) - 1})] if keys else []
    texts = [c.name for c in table.definition.key if c.type.kind == "string"]
    missing = [{**key, name: "nobody"} for key in picked[:1] for name in texts]
    out = [Question("get", key) for key in (*missing, *picked)] + [Question("count"), Question("scan", options={"limit": 5000})]
    out += [Question("scan", options={"limit": 2}), Question("scan", options={"limit": 3, "reverse": True})]
    out.append(Question("get_all", options={"keys": [*picked, *missing, *picked[:1]]}))
    if not picked:
        return out
    first = table.key_order[0]
    part = {first: picked[-1][first]}
    members = [m for m in key_parts(table.definition) if len(m.path) == 1 and m.name.startswith(f"{first}.")]
    # No range begins with a member that is NULL: structs that are NULL would match, too.
    structs = [k for k in picked if members and k[first] is not None and k[first][members[0].path[0]] is not None]
    for key in structs[:1]:
        member = {members[0].name: key[first][members[0].path[0]]}
        out += [Question("scan", member, {"limit": 5000}), Question("count", member), Question("range", options={"start": member})]
        out.append(Question("scan", {m.name: key[first][m.path[0]] for m in members}, {"limit": 5000}))
        out.append(Question("scan", {members[-1].name: None}, {"limit": 5000}))
    out += [Question("scan", part, {"limit": 5000}), Question("count", part)]
    if next(c.type for c in table.definition.key if c.name == first).is_ordered:
        out.append(Question("range", options={"start": part, "limit": 5000}))
        out.append(Question("range", options={"end": part, "limit": 2, "reverse": True}))
    out += windows_of(table, picked[-1])
    out.append(Question("get", picked[0], bounds={"min_batch": rows.batch, "max_behind_seconds": 60}))
    out.append(Question("scan", bounds={"min_batch": rows.batch}, options={"limit": 1}))
    return out


def windows_of(table: Any, key: dict[str, Any]) -> list[Question]:
    """Reads of the windows of a key from or until the time of a row, if the key has a time."""
    times = [c.name for c in table.definition.key if c.type.kind in TIMES]
    if not times:
        return []
    column = next(name for name in table.key_order if name in times)
    before = {name: key[name] for name in table.key_order[: table.key_order.index(column)]}
    starts = sorted({row[column] for row in table.scan(before) if row[column] is not None})
    if not starts:
        return []
    first, middle, last = starts[0], starts[len(starts) // 2], starts[-1]
    return [
        Question("windows", before, {"since": last, "limit": 5000}),
        Question("windows", before, {"until": last, "limit": 5000}),
        Question("windows", before, {"since": first, "until": last, "limit": 5000}),
        Question("windows", before, {"since": middle, "limit": 1, "reverse": True}),
        Question("windows", before, {"since": _time_or_word(middle), "until": _time_or_word(middle), "limit": 5000}),
        Question("windows", before, {"since": _time_or_word(middle), "limit": 2}, bounds={"min_batch": 0}),
    ]


def mistakes_of(table: Any) -> list[Question]:
    """Questions that have no answer."""
    rows = table.scan(limit=1)
    key = {c.name: rows[0][c.name] for c in table.definition.key} if rows else {}
    first = table.definition.key[0].name
    value = table.definition.values[0].name if table.definition.values else None
    out = [
        Question("get", {}),
        Question("scan", {"no_such_column": 1}),
        Question("range", options={"start": {"no_such_column": "x"}}),
        Question("get", key, bounds={"min_batch": 10_000}),
        Question("scan", bounds={"contains_offset": "views:0:1"}),
        Question("scan", options={"token": "nonsense"}),
        Question("windows", options={"since": "2026-01-01T00:00:00Z"}),
        Question("windows", {"no_such_column": 1}, {"until": "2026-01-01T00:00:00Z"}),
        Question("windows", key, {"until": "2026-01-01T00:00:00Z"}),
        Question("windows", options={"until": "yesterday"}),
    ]
    if table.definition.key[0].type.kind != "string":
        out.append(Question("scan", {first: "no such value"}))
    if value is not None and value not in (c.name for c in table.definition.key):
        out.append(Question("scan", {value: None}))
    return out


def _ask(door: Callable[[Asked, str, Question], Answer], asked: Asked, name: str, question: Question) -> Answer:
    try:
        return door(asked, name, question)
    except MillpondError as error:
        return {"condition": error.condition, "message": error.message, "hint": error.hint}


@pytest.mark.parametrize("every", a_few([97, 3], 1))
def test_every_door_says_what_python_says(asked: Asked, every: int) -> None:
    """Commands are asked one question of so many; in `make test`, the other doors every second one."""
    compared = missed = 0
    operators, windows = set(), []
    for name, (table, _) in asked.local.items():
        for number, question in enumerate(questions_of(table)):
            if every > 3 and number % 2:
                continue
            said = _ask(ask_python, asked, name, question)
            assert "condition" not in said, (name, question, said)
            if question.read == "windows":
                windows.append((name, len(said["rows"])))
            for title, door in DOORS.items():
                if door in COMMANDS and (question.read not in BY_COMMAND or number % every):
                    continue
                answer = _ask(door, asked, name, question)
                assert answer == said, (title, name, question)
                assert "rows" in answer or "count" in answer
                compared += 1
                missed += None in answer.get("rows", ())
            operators.add(name.partition(".")[2] or "defined")
    assert compared > 500
    assert missed > 20
    assert len(operators) >= 8, operators
    assert len({name for name, rows in windows if rows > 1}) >= 3, windows
    assert any(rows == 0 for _, rows in windows)  # from a time until the same time


@pytest.mark.long
def test_every_door_makes_the_same_mistake_of_it(asked: Asked) -> None:
    met = set()
    for name in ("counts.aggregate_0", "windows.aggregate_0", "long", "timestamp", "struct"):
        table = asked.local[name][0]
        for question in mistakes_of(table):
            said = _ask(ask_python, asked, name, question)
            if "condition" not in said:
                continue
            met.add(said["condition"])
            for title, door in DOORS.items():
                if door in COMMANDS and question.read not in BY_COMMAND:
                    continue
                if (door is ask_json and question.read == "get") or (door is ask_url and question == Question("get", {})):
                    continue  # these routes scan if the key is incomplete
                answer = _ask(door, asked, name, question)
                assert answer["condition"] == said["condition"], (title, name, question, answer, said)
                if door in (ask_client, ask_client_async):
                    assert answer == said, (title, name, question)
    assert {"KEY_MISSING", "UNKNOWN_COLUMN", "WRONG_TYPE", "NOT_UP_TO_BOUND", "INVALID_TOKEN", "NOT_A_KEY_COLUMN"} <= met
    assert "NO_WINDOW" in met


def test_pages_by_token_have_every_row_once_through_every_door(asked: Asked) -> None:
    for name in ("counts.aggregate_0", "string"):
        table = asked.local[name][0]
        whole = [dict(row) for row in table.scan()]
        with millpond.connect(asked.address) as server:
            for reverse in (False, True):
                found: list[Any] = []
                page = server[name].scan(limit=2, reverse=reverse)
                found += page
                while page.more:
                    page = server[name].scan(limit=2, reverse=reverse, token=page.token)
                    found += page
                assert [dict(row) for row in found] == (whole[::-1] if reverse else whole)
                with pytest.raises(RequestError) as refused:
                    server[name].scan(limit=2, reverse=not reverse, token=server[name].scan(limit=2, reverse=reverse).token)
                assert refused.value.condition == "INVALID_TOKEN"


def test_a_scan_of_many_requests_is_a_scan_of_one_batch(asked: Asked) -> None:
    settings = millpond.settings.ClientSettings(page_rows=2)
    with millpond.connect(asked.address, settings=settings) as server:
        for name in ("counts.aggregate_0", "string"):
            table = asked.local[name][0]
            assert [dict(r) for r in server[name].scan()] == [dict(r) for r in table.scan()]
            limited = server[name].scan(limit=3)
            assert (len(limited), limited.more) == (3, True)


def test_arrow_is_the_same_through_the_client(asked: Asked) -> None:
    with millpond.connect(asked.address) as server:
        for name, (table, _) in asked.local.items():
            answer, said = server[name].to_arrow(), table.to_arrow()
            assert answer.schema.equals(said.schema, check_metadata=True), name
            # NaN equals NaN by its text; strings that aren't UTF-8 have no text.
            assert answer.equals(said) or repr(answer.to_pylist()) == repr(said.to_pylist()), name


async def _iterated(address: str) -> list[str]:
    async with millpond.connect_async(address) as server:
        return [name async for name in server]


def test_a_table_is_described_alike(asked: Asked) -> None:
    with millpond.connect(asked.address) as server:
        assert set(asked.local) <= set(server.tables())
        assert server.ready(60) == (True, "ready")
        for name, (table, _) in asked.local.items():
            there = server[name]
            assert (there.definition, there.columns, there.key_order) == (table.definition, table.columns, table.key_order)
            assert there.job == table.job
        assert "no such table" not in server
        assert list(server) == server.tables() == asyncio.run(_iterated(asked.address))
        with pytest.raises(RequestError) as refused:
            server["no such table"]
        assert refused.value.condition == "UNKNOWN_TABLE"


def test_whether_a_row_that_isnt_there_expired_is_the_same_through_every_door(asked: Asked) -> None:
    met = {}
    for name, (table, _) in asked.local.items():
        numbers = [c.name for c in table.definition.key if c.type.kind in ("long", "int")]
        rows = table.scan(limit=1)
        if not numbers or not rows:
            continue
        key = {c.name: rows[0][c.name] for c in table.definition.key} | {numbers[-1]: 1_000_000}
        said = table.get(key)
        assert not said
        words = {f"{c}__isnull" if v is None else c: "1" if v is None else to_text(_type_of(table, c))(v) for c, v in key.items()}
        path = f"{asked.address}/tables/{_quote(name)}"
        for answer in (
            asked.http.get(f"{path}/rows", params=words).json(),
            asked.http.post(f"{path}/rows:get", content=encode_json({"keys": [_json_key(table.definition, key)]})).json(),
        ):
            assert (answer["evicted"], answer["maybe_evicted"]) == ([0] * (said.evicted is True), [0] * (said.evicted is None)), (
                name
            )
        assert asked.client[name].get(key).evicted is said.evicted
        met[name] = said.evicted
    assert {met["join.join_0_left"], met["long"]} == {None, False}, met


def _type_of(table: Any, column: str) -> Any:
    return next(c.type for c in table.definition.key if c.name == column)
