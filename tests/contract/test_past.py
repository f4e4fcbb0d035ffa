"""Questions about more than the newest rows, asked through every door: earlier batches, versions, changes, cuts, an event's place.

Four jobs go on while a server follows them and keeps everything: two over one source, one of windows, one of sessions.  All doors
must answer as Python's `open` does.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import millpond
import millpond.client
from millpond.catalogue import create_job
from millpond.cli import main
from millpond.cli.hints import hint_here
from millpond.errors import MillpondError
from millpond.schema.convert import to_python
from millpond.schema.values import encode_json, to_json, to_text
from millpond.tables.scan.keys import KeyReader
from millpond.wire.answers import answer_json
from millpond.wire.rows import row_writer
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import GOLDEN
from suite.waiting import wait_until

pytestmark = pytest.mark.long

CELLS = {
    "windows": "windows-rocksdb-changelog",
    "sessions": "spark-4.3/sessions-hdfs",
    "ttl": "spark-4.3/transform-ttl-rocksdb-changelog",
}
FAST, SLOW, WINDOWS, SESSIONS = "fast.aggregate_0", "slow.aggregate_0", "windows.aggregate_0", "sessions.sessions_0"
TABLES = (FAST, SLOW, WINDOWS, SESSIONS)
CASES = [WINDOWS, FAST, SESSIONS, SLOW]
# These tables are of a job that has fewer batches than the others; the TTL of all their rows has passed.
EXPIRED = ("ttl.transform_0_short", "ttl.transform_0_list", "ttl.transform_0_map")
Answer = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A read of a table, with key and options.  `as_of` chooses the state of the table: batch, time, closed."""

    read: str
    key: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    as_of: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- jobs that go on


class Counting:
    """A job that counts the records of a topic, `step` of them in each batch."""

    def __init__(self, path: Path, step: int) -> None:
        self._step = step
        self._job = WrittenCheckpoint(path, sources=lambda batch: [{"views": {"0": step * (batch + 1)}}])

    def commit(self, batch: int) -> None:
        assert batch == self._job.next_batch
        end = self._step * (batch + 1)
        rows: list[tuple[Any, int | None]] = [(f"k{n % 7}", n) for n in range(end - self._step, end)]
        gone: list[tuple[Any, int | None]] = [(f"k{batch % 5}", None)]
        self._job.plan(rows[1:] + gone if batch % 3 == 2 else rows, snapshot=False)
        self._job.commit()


class Golden:
    """A job that Spark ran, whose batches are committed again."""

    def __init__(self, cell: Path, checkpoint: Path) -> None:
        self._commits = cell / "checkpoint" / "commits"
        self._checkpoint = checkpoint
        shutil.copytree(cell / "checkpoint", checkpoint, copy_function=shutil.copy)
        shutil.rmtree(checkpoint / "commits")
        (checkpoint / "commits").mkdir()

    def commit(self, batch: int) -> None:
        if (self._commits / str(batch)).exists():
            shutil.copyfile(self._commits / str(batch), self._checkpoint / f"{batch}.tmp")
            (self._checkpoint / f"{batch}.tmp").rename(self._checkpoint / "commits" / str(batch))


@dataclass(frozen=True)
class Asked:
    """Where to ask.  `commit` lets every job do one more batch, and waits until the server has it."""

    pond: millpond.Pond
    path: Path
    home: Path
    address: str
    client: millpond.client.RemotePond
    http: httpx.Client
    commit: Callable[[int], None]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    path, home = tmp_path_factory.mktemp("past") / "pond", tmp_path_factory.mktemp("past-home")
    jobs: list[Counting | Golden] = []
    for name, step in (("fast", 6), ("slow", 4)):
        create_job(path, name)
        jobs.append(Counting(path / "jobs" / name / "checkpoint", step))
    for name, cell in CELLS.items():
        create_job(path, name)
        jobs.append(Golden(GOLDEN / cell, path / "jobs" / name / "checkpoint"))
    words = [word for table in (*TABLES, *EXPIRED) for word in ("--history", f"{table}=forever")]
    command = [sys.executable, "-m", "millpond.cli", "serve", str(path), "--port", "0", "--json", *words]
    for job in jobs:
        job.commit(0)
    with ExitStack() as opened:
        running = opened.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "MILLPOND_HOME": str(home)})
        )
        opened.callback(lambda: (running.terminate(), running.wait(30)))
        assert running.stdout is not None
        address = json.loads(running.stdout.readline())["url"]
        http = opened.enter_context(httpx.Client(base_url=address, timeout=60))

        def commit(batch: int) -> None:
            time.sleep(0.005)  # commit times are in milliseconds
            for job in jobs:
                job.commit(batch)
            wait_for_batch(http, batch)

        wait_for_batch(http, 0)
        for batch in range(1, LAST + 1):
            commit(batch)
        wait_until(lambda: http.get(f"/tables/{EXPIRED[0]}").json()["batch"] >= 7, f"batch 7 of {EXPIRED[0]}")
        pond = opened.enter_context(millpond.open(path, replica_dir=home, follow=False, wait_seconds=30))
        client = opened.enter_context(millpond.connect(address))
        yield Asked(pond, path, home, address, client, http, commit)


LAST = 9


def wait_for_batch(http: httpx.Client, batch: int) -> None:
    for table in TABLES if batch <= LAST else (FAST, SLOW):  # jobs that Spark ran have a last batch
        asked = f"/tables/{table}/count?_min_batch={batch}&_wait_seconds=20"
        wait_until(lambda asked=asked: http.get(asked).status_code == 200, f"batch {batch} of {table}")


# ---------------------------------------------------------------- the doors


def _state(table: Any, as_of: dict[str, Any]) -> Any:
    """The chosen state of a table.  The asynchronous client gives an awaitable if it has to ask."""
    when = {name: value for name, value in as_of.items() if name != "closed"}
    if "closed" in as_of:
        table = table.with_closed() if as_of["closed"] else table.live()
    return table.at(**when) if when else table


def _ask(table: Any, question: Question) -> Any:
    key = (question.key,) if question.read not in ("changes", "find_event") else ()
    return getattr(table, question.read)(*key, **question.options)


def _answer_of(table: Any, question: Question, answer: Any) -> Answer:
    """An answer in the form of HTTP."""
    name, write = "", row_writer(table.definition)
    if question.read == "get":
        answer = millpond.Rows([answer], answer.cut)
    return _stable(json.loads(encode_json(answer_json(name, answer, write))), question)


def _stable(data: Answer, question: Question) -> Answer:
    """An answer without what differs from one moment, or one process, to the next."""
    out = {name: value for name, value in data.items() if name not in ("table", "lag", "job_state")}
    if question.read != "changes":
        out.pop("token", None)
    return out


def ask_python(asked: Asked, name: str, question: Question) -> Answer:
    table = asked.pond[name]
    return _answer_of(table, question, _ask(_state(table, question.as_of), question))


def ask_client(asked: Asked, name: str, question: Question) -> Answer:
    table = asked.client[name]
    return _answer_of(table, question, _ask(_state(table, question.as_of), question))


def ask_client_async(asked: Asked, name: str, question: Question) -> Answer:
    async def ask() -> Answer:
        async with millpond.connect_async(asked.address) as server:
            table = _state(server[name], question.as_of)
            table = table if isinstance(table, millpond.client.AsyncRemoteTable) else await table
            return _answer_of(await table.load(), question, await _ask(table, question))

    return asyncio.run(ask())


ROUTES = {"changes": "changes", "history": "versions", "find_event": "event", "count": "count", "range": "rows"}
POST_ROUTES = {"changes": "changes", "history": "versions", "find_event": "event", "count": "rows:count"}


def ask_url(asked: Asked, name: str, question: Question) -> Answer:
    definition = asked.pond[name].definition
    types = {c.name: c.type for c in definition.key}
    options = dict(question.options)
    columns = {**question.key, **(options.pop("key", None) or {})}
    words = [(f"{c}__isnull", "1") if v is None else (c, to_text(types[c])(v)) for c, v in columns.items()]
    for option, value in {**options, **question.as_of}.items():
        if option in ("start", "end"):
            value = encode_json(_json_key(definition, value)).decode()
        words.append((f"_{option}", _text(value)))
    answer = asked.http.get(f"/tables/{name}/{ROUTES.get(question.read, 'rows')}", params=words)
    return _read(answer, question)


def ask_json(asked: Asked, name: str, question: Question) -> Answer:
    definition = asked.pond[name].definition
    body: Answer = {} if question.read in ("changes", "find_event") else {"key": _json_key(definition, question.key)}
    for option, value in {**question.options, **question.as_of}.items():
        if option in ("start", "end", "key"):
            body[option] = _json_key(definition, value)
        else:
            body[option] = value.isoformat() if isinstance(value, dt.datetime) else value
    route = POST_ROUTES.get(question.read, "rows:scan")
    return _read(asked.http.post(f"/tables/{name}/{route}", content=encode_json(body)), question)


def ask_command_line(asked: Asked, name: str, question: Question) -> Answer:
    return _by_command(asked, str(asked.path), name, question)


def ask_command_line_of_server(asked: Asked, name: str, question: Question) -> Answer:
    return _by_command(asked, asked.address, name, question)


def _by_command(asked: Asked, place: str, name: str, question: Question) -> Answer:
    definition = asked.pond[name].definition
    command = {"range": "scan", "find_event": "event"}.get(question.read, question.read)
    words = [command, place, name, "--json"]
    options = dict(question.options)
    key = options.pop("key", None) or question.key
    if command != "changes" and key:
        words += ["--key", encode_json(_json_key(definition, key)).decode()]
    types = {c.name: c.type for c in definition.key}
    for edge in ("start", "end"):
        words += [w for c, v in (options.pop(edge, None) or {}).items() for w in (f"--{edge}", f"{c}={to_text(types[c])(v)}")]
    as_of = dict(question.as_of)
    if "closed" in as_of:
        words.append("--closed" if as_of.pop("closed") else "--live")
    for option, value in {**options, **as_of}.items():
        words += ["--" + option.replace("_", "-")] + ([] if value is True else [_text(value)])
    done = CliRunner().invoke(main, words, env={"MILLPOND_HOME": str(asked.home)})
    if done.exit_code not in (0, 1):
        _raise(json.loads(done.stderr.splitlines()[-1])["error"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    data = json.loads(done.stderr.splitlines()[-1])
    if command in ("changes", "history"):
        return _stable({**data, "versions" if command == "history" else "changes": rows}, question)
    if command in ("count", "event"):
        return _stable({**data, **rows[0]}, question)
    assert {(row.pop("_batch"), row.pop("_behind_seconds")) for row in rows} <= {(data["batch"], data["lag"]["behind_seconds"])}
    changed, final = [row.pop("_changed") for row in rows], [row.pop("_final") for row in rows]
    marks = {"changed": changed, "final": [place for place, is_final in enumerate(final) if is_final]}
    return _stable({**data, "rows": rows, **marks}, question)


DOORS: dict[str, Callable[[Asked, str, Question], Answer]] = {
    "client": ask_client,
    "client, not waiting": ask_client_async,
    "url": ask_url,
    "json": ask_json,
    "command line": ask_command_line,
    "command line, of the server": ask_command_line_of_server,
}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def _json_key(definition: Any, key: dict[str, Any]) -> Answer:
    stored, types = KeyReader(definition).stored(key), {c.name: c.type for c in definition.key}
    return {name: to_json(types[name])(to_python(types[name])(value)) for name, value in stored.items()}


def _read(answer: httpx.Response, question: Question) -> Answer:
    data = json.loads(answer.content)
    if "error" in data:
        _raise(data["error"])
    return _stable(data, question)


def _raise(error: Answer) -> None:
    raise MillpondError(error["condition"], error["message"], hint=error["hint"], **error["context"])


def _say(door: Callable[[Asked, str, Question], Answer], asked: Asked, name: str, question: Question) -> Answer:
    try:
        return door(asked, name, question)
    except MillpondError as error:
        return {"condition": error.condition, "message": error.message, "hint": hint_here(error.hint)}  # in a door's words


def _hold_against_python(asked: Asked, name: str, questions: list[Question]) -> list[Answer]:
    """Python's answer to each question, after all doors gave the same."""
    out = []
    for question in questions:
        said = _say(ask_python, asked, name, question)
        for title, door in DOORS.items():
            answer = _say(door, asked, name, question)
            assert answer == said, (title, name, question)
        out.append(said)
    return out


# ---------------------------------------------------------------- the questions


def _keys(table: Any) -> list[dict[str, Any]]:
    rows = table.scan()
    return [{c.name: row[c.name] for c in table.definition.key} for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_earlier_batches_are_the_same_through_every_door(asked: Asked, name: str) -> None:
    table = asked.pond[name]
    keys = _keys(table)
    states: list[dict[str, Any]] = [{"batch": batch} for batch in (1, LAST // 2, LAST - 1, LAST)]
    states += [{"time": _time_of(table, 4)}, {"time": _time_of(table, LAST)}]
    states += [{"closed": True}, {"closed": False}, {"closed": False, "batch": LAST - 1}]
    batches = set()
    for state in states:
        questions = [Question("scan", options={"limit": 5000}, as_of=state), Question("count", as_of=state)]
        questions += [Question("scan", options={"limit": 2, "reverse": True}, as_of=state)]
        questions += [Question("get", keys[n], as_of=state) for n in (0, len(keys) // 2)]
        first = table.key_order[0]
        questions.append(Question("range", options={"start": {first: keys[len(keys) // 2][first]}, "limit": 5000}, as_of=state))
        if name in (WINDOWS, SESSIONS):
            (start,) = (c for c in table.key_order if c.endswith("_start"))
            key = {c: keys[0][c] for c in table.key_order[: table.key_order.index(start)]}
            questions.append(Question("windows", key, {"until": keys[len(keys) // 2][start], "limit": 5000}, as_of=state))
        for said in _hold_against_python(asked, name, questions):
            assert "condition" not in said, (state, said)
            assert said["batch"] == state.get("batch", said["batch"])
            batches.add(said["batch"])
        there, here = (_state(pond[name], state).to_arrow() for pond in (asked.client, asked.pond))
        assert there.schema.equals(here.schema, check_metadata=True)
        assert there.equals(here)
    assert {1, 4, LAST} <= batches


def _time_of(table: Any, batch: int) -> str:
    moment = table.at(batch=batch).scan(limit=1).position.committed_ns // 1_000_000
    return dt.datetime.fromtimestamp(moment / 1000, dt.UTC).isoformat()


@pytest.mark.parametrize("name", EXPIRED)
def test_rows_whose_ttl_has_passed_are_shown_by_no_door_unasked(asked: Asked, name: str) -> None:
    there = asked.pond[name].with_closed().scan()
    key = {c.name: there[0][c.name] for c in asked.pond[name].definition.key}
    for as_of in ({}, {"closed": False}):
        questions = [Question("scan", options={"limit": 5000}, as_of=as_of), Question("get", key, as_of=as_of)]
        *rows, counted = _hold_against_python(asked, name, [*questions, Question("count", as_of=as_of)])
        assert not any(row for said in rows for row in said["rows"])
        assert rows[1]["evicted"] == [0]
        assert counted["count"] == 0
    questions = [Question("scan", options={"limit": 5000}), Question("get", key), Question("count")]
    shown, got, counted = _hold_against_python(asked, name, [replace(q, as_of={"closed": True}) for q in questions])
    assert len(shown["rows"]) == counted["count"] == len(there) > 3
    assert shown["final"] == list(range(len(there)))
    assert (got["rows"], got["final"]) == ([shown["rows"][0]], [0])
    answer = asked.http.get(f"/tables/{name}/rows", headers={"accept": "application/x-ndjson"})
    assert answer.text == ""
    # Such an answer is true for a moment only.
    assert asked.http.get(f"/tables/{name}/rows", headers={"if-none-match": answer.headers["etag"]}).status_code == 200


@pytest.mark.parametrize("name", EXPIRED)
def test_a_time_tells_through_every_door_which_rows_were_over(asked: Asked, name: str) -> None:
    table = asked.pond[name]
    rows = table.at(batch=7).scan()
    ends = sorted({row["expires_at"] for row in rows})
    counts = set()
    for moment in (ends[0] - dt.timedelta(milliseconds=1), ends[len(ends) // 2], ends[-1]):
        state = {"batch": 7, "time": moment.isoformat()}
        questions = [Question("scan", options={"limit": 5000}, as_of=state), Question("count", as_of=state)]
        scanned, counted = _hold_against_python(asked, name, questions)
        assert len(scanned["rows"]) == counted["count"] == sum(row["expires_at"] > moment for row in rows)
        counts.add(counted["count"])
    assert len(counts) > 1
    # By now all rows have expired, but the newest batch at that time had them.
    (said,) = _hold_against_python(asked, name, [Question("count", as_of={"time": dt.datetime.now(dt.UTC).isoformat()})])
    assert (said["count"], said["batch"]) == (0, 7)
    assert len(rows) > 0


def test_the_states_that_were_asked_for_differ(asked: Asked) -> None:
    """Otherwise the test above would show nothing."""
    for name in TABLES:
        states = {repr([dict(r) for r in asked.pond[name].at(batch=batch).scan()]) for batch in (1, LAST // 2, LAST)}
        assert len(states) == 3, name
    for name in (WINDOWS, SESSIONS):
        assert asked.pond[name].live().count() < asked.pond[name].with_closed().count()


def test_batches_that_cant_be_read_are_the_same_mistake(asked: Asked) -> None:
    for state, condition in (
        ({"batch": LAST + 100}, "NOT_UP_TO_BOUND"),
        ({"batch": -1}, "HISTORY_GONE"),
        ({"time": "2001-01-01T00:00:00Z"}, "HISTORY_GONE"),
        ({"time": "noon"}, "WRONG_TYPE"),
    ):
        (said,) = _hold_against_python(asked, FAST, [Question("scan", options={"limit": 10}, as_of=state)])
        assert said["condition"] == condition


@pytest.mark.parametrize("name", CASES)
def test_versions_are_the_same_through_every_door(asked: Asked, name: str) -> None:
    table = asked.pond[name]
    keys = _keys(table)
    first = table.key_order[0]
    edge = {first: keys[len(keys) // 2][first]}
    questions = [
        Question("history", keys[0]),
        Question("history", options={"limit": 10_000}),
        Question("history", options={"limit": 2}),
        Question("history", options={"since": 3, "until": 5, "limit": 1000}),
        Question("history", options={"since": _time_of(table, 4), "limit": 1000}),
        Question("history", options={"until": dt.datetime.fromisoformat(_time_of(table, 4)), "limit": 1000}),
        Question("history", options={"start": edge, "limit": 1000}),
        Question("history", options={"end": edge, "limit": 1000}),
    ]
    said = _hold_against_python(asked, name, questions)
    assert not any("condition" in each for each in said), said
    assert len(said[1]["versions"]) > len(said[3]["versions"]) > 0
    assert said[2]["more"]
    refused = _hold_against_python(
        asked,
        name,
        [Question("history", options={"since": "2001-01-01T00:00:00Z"}), Question("history", options={"since": LAST + 50})],
    )
    assert [each["condition"] for each in refused] == ["HISTORY_GONE", "NOT_UP_TO_BOUND"]


def test_all_versions_are_told_or_an_error(asked: Asked) -> None:
    """Without a limit, a client gets all versions, however few a server gives at a time by default."""
    said = asked.pond[FAST].history(since=0)
    assert len(asked.client[FAST].history(since=0)) == len(said) > 20


@pytest.mark.parametrize("name", CASES)
def test_changes_are_the_same_through_every_door(asked: Asked, name: str) -> None:
    said = _hold_against_python(
        asked,
        name,
        [
            Question("changes"),
            Question("changes", options={"since": 0, "limit": 1000}),
            Question("changes", options={"since": 4, "limit": 3}),
            Question("changes", options={"since": LAST}),
        ],
    )
    assert not any("condition" in each for each in said), said
    whole, some = said[1], said[2]
    assert len(whole["changes"]) > 5
    earlier = _hold_against_python(
        asked,
        name,
        [Question("changes", options={"since": 0, "limit": 1000}, as_of={"batch": batch}) for batch in range(LAST + 1)],
    )
    for batch, until in enumerate(earlier):
        assert until["changes"] == [c for c in whole["changes"] if c["batch"] <= batch]
    # Every door takes the tokens of every other.
    rest = _hold_against_python(asked, name, [Question("changes", options={"since": some["token"], "limit": 1000})])[0]
    assert some["changes"] + rest["changes"] == [c for c in whole["changes"] if c["batch"] > 4]
    refused = _hold_against_python(asked, name, [Question("changes", options={"since": since}) for since in ("nonsense", LAST + 1)])
    assert [each["condition"] for each in refused] == ["INVALID_TOKEN", "NOT_UP_TO_BOUND"]


def test_an_event_is_found_through_every_door(asked: Asked) -> None:
    said = _hold_against_python(
        asked,
        FAST,
        [
            Question("find_event", options={"offset": "views:0:13"}),
            Question("find_event", options={"offset": "views:0:13", "key": {"k": "k1"}}),
            Question("find_event", options={"offset": "views:0:100000"}),
            Question("find_event", options={"offset": "views:0:13", "event_time": "2026-03-01T12:00:00Z"}),
            Question("find_event", options={"offset": "views:0:13"}, as_of={"batch": 1}),
        ],
    )
    assert [(s["batch_read"], s["applied"]) for s in said] == [(2, True), (2, True), (None, False), (2, True), (None, False)]
    refused = _hold_against_python(
        asked,
        FAST,
        [
            Question("find_event"),
            Question("find_event", options={"offset": "views"}),
            Question("find_event", options={"file": "/in/a.json"}),
            Question("find_event", options={"offset": "views:0:13", "event_time": "noon"}),
            Question("find_event", options={"file": "/in/a.log", "line": 1}),
            Question("find_event", options={"file": "/in/a.log", "line": 0}),
            Question("find_event", options={"offset": "views:0:13", "line": 1}),
        ],
    )
    assert [r["condition"] for r in refused] == [
        *("INVALID_REQUEST", "INVALID_BOUND", "INVALID_BOUND", "WRONG_TYPE"),
        *("INVALID_BOUND", "INVALID_REQUEST", "INVALID_REQUEST"),
    ]


def test_several_jobs_are_read_at_one_point_of_their_input(asked: Asked) -> None:
    said = asked.pond.at([FAST, SLOW])
    answer = asked.client.at([FAST, SLOW])

    async def ask() -> dict[str, Any]:
        async with millpond.connect_async(asked.address) as server:
            return {name: await table.scan() for name, table in (await server.at([FAST, SLOW])).items()}

    awaited = asyncio.run(ask())
    for name in (FAST, SLOW):
        rows, there = said[name].scan(), answer[name].scan()
        assert rows.position.offsets == {"0": {"views": {"0": 36}}}
        assert [dict(r) for r in there] == [dict(r) for r in rows] == [dict(r) for r in awaited[name]]
        assert there.batch == rows.batch == awaited[name].batch
    by_url = asked.http.post("/at", json={"tables": [FAST, SLOW]}).json()
    assert {t["table"]: t["batch"] for t in by_url["tables"]} == {name: table.scan().batch for name, table in said.items()}
    offsets = {"0": {"views": {"0": 24}}}
    for pond in (asked.pond, asked.client):
        both: Any = pond.at([FAST, SLOW], offsets=offsets)
        assert {name: table.scan().position.offsets for name, table in both.items()} == {FAST: offsets, SLOW: offsets}
        for tables, where, condition in (
            ([FAST], {"0": {"views": {"0": 25}}}, "NOT_ALIGNED"),
            ([FAST], {"0": 7}, "NOT_ALIGNED"),
            ([FAST, WINDOWS], None, "NOT_ALIGNED"),
            (["nobody"], None, "UNKNOWN_TABLE"),
        ):
            with pytest.raises(MillpondError) as refused:
                pond.at(tables, offsets=where)
            assert refused.value.condition == condition


def test_a_cut_stays_at_its_batch_while_the_job_goes_on(asked: Asked) -> None:
    """This test must be the last: it commits more batches than the others expect."""
    batch = asked.pond[FAST].count().batch + 1

    async def read_all(server: Any, cut: Any) -> list[Any]:
        table = cut[FAST]
        return [cut.batch, await table.scan(), await table.get(k="k1"), await table.count(), await table.scan(limit=2)]

    async def ask() -> tuple[list[Any], list[Any]]:
        async with millpond.connect_async(asked.address) as server, server.cut(FAST) as cut:
            before = await read_all(server, cut)
            asked.commit(batch)
            return before, await read_all(server, cut)

    with asked.pond.cut(FAST) as said, asked.client.cut(FAST) as remote, asked.client.cut(WINDOWS) as other:
        assert (said.batch, said.job) == (remote.batch, remote.job) == (batch - 1, "fast")
        before, after = asyncio.run(ask())
        assert before == after
        asked.commit(batch + 1)
        assert asked.client[FAST].count().batch == batch + 1
        for cut in (said, remote):
            table: Any = cut[FAST]
            assert table.count().batch == batch - 1
        rows = [dict(r) for r in said[FAST].scan()]
        assert [dict(r) for r in remote[FAST].scan()] == rows == [dict(r) for r in before[1]]
        assert rows != [dict(r) for r in asked.client[FAST].scan()]
        assert remote[FAST].get(k="k1") == said[FAST].get(k="k1")
        assert remote[FAST].to_arrow().to_pylist() == said[FAST].to_arrow().to_pylist() == rows
        page: Any = remote[FAST].scan(limit=3)
        found = [*page]
        while page.more:
            page = remote[FAST].scan(limit=3, token=page.token)
            found += page
        assert [dict(r) for r in found] == rows
        token = asked.http.get(f"/tables/{FAST}/cut").json()["cut"]
        assert asked.http.get(f"/tables/{FAST}/rows", params={"_cut": token}).json()["batch"] == batch + 1
        for cut in (said, remote):
            for name, condition in ((WINDOWS, "OTHER_JOB"), ("nobody", "UNKNOWN_TABLE")):
                with pytest.raises(MillpondError) as refused:
                    cut[name]
                assert refused.value.condition == condition
        assert other[WINDOWS].count().batch == LAST
    for closed in (said, remote):
        with pytest.raises(MillpondError) as refused:
            closed[FAST].count()
        assert refused.value.condition == "CUT_EXPIRED"
    for text, condition in (("nonsense", "INVALID_TOKEN"), (asked.pond[SLOW].cut().token, "OTHER_JOB")):
        for pond in (asked.pond, asked.client):
            with pytest.raises(MillpondError) as refused:
                pond[FAST].at(cut=text).count()
            assert refused.value.condition == condition
