"""Earlier batches, versions, cuts and subscriptions of all shards are those of one replica of all partitions."""

from __future__ import annotations

import datetime as dt
import json
import operator
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.settings import ClientSettings, RouterSettings
from servers.shard_jobs import KEYS, Job, answer_or_condition, catch_up
from servers.shards import ShardServer, routing
from suite.sizes import examples

pytestmark = pytest.mark.long

SETTINGS = RouterSettings(client=ClientSettings(page_rows=7, tries=3), common_batch_seconds=60)
SEED, BATCHES = 3, 12


@pytest.fixture(scope="module")
def sharded(servers: list[ShardServer], whole: millpond.Pond, job: Job) -> Iterator[Any]:
    with millpond.connect_shards([server.url for server in servers], settings=SETTINGS) as pond:
        for _ in range(BATCHES):
            job.commit()
            catch_up(pond[job.table], whole[job.table])
        yield pond


@pytest.fixture(scope="module", params=[pytest.param("client"), "router"])
def asked(request: pytest.FixtureRequest, sharded: Any, servers: list[ShardServer]) -> Iterator[Any]:
    """The shards, asked by a client that routes and through a router."""
    if request.param == "client":
        yield sharded
        return
    with routing(*(server.url for server in servers)) as url, millpond.connect(url) as pond:
        yield pond


def said(read: Callable[[], Any]) -> Any:
    """What a read says: its rows with their marks, and its batch; or why it is refused."""
    found = answer_or_condition(read)
    if isinstance(found, str):
        return found
    rows = found if isinstance(found, (list, int)) else [found]
    if isinstance(rows, list):
        rows = [(repr(row), getattr(row, "evicted", None), getattr(row, "changed_batch", None)) for row in rows]
    return rows, found.batch if hasattr(found, "batch") else found.cut.position.batch, getattr(found, "more", None)


def a_question(draw: random.Random, newest: int) -> tuple[str, dict[str, Any]]:
    """A read of a table in any state."""
    keys = sorted(draw.sample(KEYS, 2))
    limit = draw.choice([None, draw.randrange(1, 9)])
    batch = draw.choice([None, draw.randrange(-1, newest + 2)])
    return draw.choice(
        [
            ("get", {"k": keys[0]}),
            ("get_all", {"keys": [{"k": key} for key in draw.sample(KEYS, 5)]}),
            ("scan", {"limit": limit, "reverse": draw.random() < 0.5}),
            ("range", {"start": {"k": keys[0]}, "end": {"k": keys[1]}, "limit": limit}),
            ("count", {}),
            ("history", {"k": keys[0], "since": batch, "limit": limit}),
            ("history", {"since": batch, "limit": draw.randrange(1, 60)}),
            ("history", {"start": {"k": keys[0]}, "end": {"k": keys[1]}, "until": batch, "since": draw.choice([None, newest - 3])}),
        ]
    )


def test_every_read_of_every_batch_is_that_of_the_whole(asked: Any, whole: millpond.Pond, job: Job) -> None:
    draw, newest = random.Random(4), int(whole[job.table].count().batch)
    committed = {v.batch: v.committed_ms for v in whole[job.table].history(k="each")}
    for _ in range(examples(400, 60)):
        method, options = a_question(draw, newest)
        when: dict[str, Any] = draw.choice([{}, {"batch": draw.randrange(-1, newest + 2)}, {"time": None}])
        if "time" in when:
            moment = committed[draw.randrange(1, newest + 1)] + draw.choice([-1, 0, 1, 10**7])
            when["time"] = dt.datetime.fromtimestamp(moment / 1000, dt.UTC)
        kind = draw.choice([None, "live", "with_closed"])

        def read(pond: Any, method: str = method, options: Any = options, when: Any = when, kind: str | None = kind) -> Any:
            table = pond[job.table]
            table = table.at(**when) if when else table
            table = getattr(table, kind)() if kind else table
            return getattr(table, method)(**options)

        assert said(lambda: read(asked)) == said(lambda: read(whole)), (method, options, when, kind)


def test_pages_of_an_earlier_batch(asked: Any, whole: millpond.Pond, job: Job) -> None:
    draw, newest = random.Random(5), int(whole[job.table].count().batch)
    for batch in draw.sample(range(newest), 3):
        table = asked[job.table].at(batch=batch)
        page = table.scan(limit=3)
        rows = list(page)
        while page.more:
            page = table.scan(limit=draw.randrange(1, 9), token=page.token)
            rows += page
        assert list(map(repr, rows)) == list(map(repr, whole[job.table].at(batch=batch).scan()))
    other = asked[job.table].at(batch=newest - 1)
    assert said(lambda: other.scan(limit=3, token=asked[job.table].scan(limit=1).token)) == "INVALID_TOKEN"


STATEMENTS = (
    "SELECT * FROM {t} AT (VERSION => {b})",
    "SELECT now.k, now.v, before.k AS k2, before.v AS v2 FROM {t} now FULL JOIN {t} before AT (VERSION => {b}) ON now.k = before.k",
    "SELECT * FROM {t} AT (VERSION => {b}) WHERE k IN ('k3', 'k7', 'each')",
    "SELECT * FROM {t} AT (TIMESTAMP => '{at}')",
    "SELECT * FROM changes('{t}', {b})",
    "SELECT _batch, _kind, k, _old FROM changes('{t}', {b}, {c}) WHERE k > 'k2'",
    "SELECT * FROM history('{t}')",
    "SELECT * FROM history('{t}', since => {b}, until => {c}) WHERE k = 'k5'",
    "SELECT * FROM history('{t}', {b}) WHERE k BETWEEN 'k1' AND 'k4'",
    "SELECT count(*), max(_until_at) FROM history('{t}', since => '{at}')",
    "SELECT a._batch, b._kind FROM history('{t}') AS a JOIN changes('{t}', {b}) AS b ON a._batch = b._batch AND a.k = b.k",
)


def test_statements_over_earlier_batches(asked: Any, whole: millpond.Pond, job: Job) -> None:
    draw, newest = random.Random(6), int(whole[job.table].count().batch)
    committed = {v.batch: v.committed_ms for v in whole[job.table].history(k="each")}
    for text in STATEMENTS * examples(4, 1):
        low, high = sorted(draw.sample(range(newest + 1), 2))
        moment = dt.datetime.fromtimestamp((committed[draw.randrange(1, newest + 1)] + 1) / 1000, dt.UTC).isoformat()
        words = text.replace("{t}'", job.table + "'").format(t=f'"{job.table}"', b=low, c=high, at=moment)
        assert answered(asked, words) == answered(whole, words), words
    plain = f'SELECT count(*) FROM "{job.table}"'
    for at in (0, newest // 2, newest, newest + 1, moment, "no time"):
        assert said_sql(asked, plain, at) == said_sql(whole, plain, at)


def answered(pond: Any, text: str) -> Any:
    """The rows of an answer in any order, its batches, and how it was read; or why it is refused."""
    try:
        answer = pond.sql(text)
    except MillpondError as error:
        assert error.condition == "HISTORY_GONE"  # of a time
        return error.condition
    reads = sorted((read.table, read.how) for read in answer.reads)
    return sorted(map(repr, answer.rows())), [(cut.job, cut.position.batch) for cut in answer.cuts], reads


def said_sql(pond: Any, text: str, at: Any) -> Any:
    """The rows of an answer, or why it is refused."""
    try:
        return pond.sql(text, at=at).rows()
    except MillpondError as error:
        return error.condition


def test_a_cut_stays_at_its_batch_while_others_come(asked: Any, sharded: Any, whole: millpond.Pond, job: Job) -> None:
    with asked.cut(job.table) as cut:
        before = said(whole[job.table].scan)
        assert (cut.job, cut.batch) == (whole[job.table].job, before[1])
        job.commit()
        catch_up(sharded[job.table], whole[job.table])
        kept = cut[job.table]
        assert said(kept.scan) == before
        assert said(kept.count)[0] == len(before[0])
        page = kept.scan(limit=2)
        assert list(map(repr, [*page, *kept.scan(limit=100, token=page.token)])) == [row for row, _, _ in before[0]]
        whole_at = whole[job.table].at(batch=cut.batch)
        for key in random.Random(7).sample(KEYS, 5):
            assert said(lambda key=key: kept.get({"k": key})) == said(lambda key=key: whole_at.get({"k": key}))
            assert said(lambda key=key: kept.history({"k": key})) == said(lambda key=key: whole_at.history({"k": key}))
        later = millpond.Bounds(min_batch=cut.batch + 1)
        assert said(lambda: kept.count(bounds=later)) == "NOT_UP_TO_BOUND"
    assert said(lambda: cut[job.table]) == "CUT_EXPIRED"
    assert said(lambda: asked[job.table].at(cut="x")) == "INVALID_TOKEN"


def test_a_subscription_gives_what_each_batch_changes(asked: Any, sharded: Any, whole: millpond.Pond, job: Job) -> None:
    text = f'SELECT k, v FROM "{job.table}" WHERE v > 30'
    rows: dict[str, Any] = {}
    changes = asked.subscribe(text, key=["k"])
    for batch_changes in islice(changes, 4):
        for change in batch_changes:
            if change.kind == "delete":
                assert rows.pop(change.old["k"]) == change.old
            else:
                assert (change.kind == "update") == (change.new["k"] in rows)
                rows[change.new["k"]] = change.new
        expected = whole.sql(text, at=batch_changes.batch).rows()
        assert sorted(map(repr, rows.values())) == sorted(map(repr, expected))
        job.commit()
        catch_up(sharded[job.table], whole[job.table])


@contextmanager
def streaming(url: str, **query: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
    """The events of a stream: id, kind, data."""
    with httpx.stream("GET", url, params=query, headers={"accept": "text/event-stream"}, timeout=30) as stream:

        def events() -> Iterator[tuple[str, str, Any]]:
            place = kind = ""
            for line in stream.iter_lines():
                name, _, rest = line.partition(": ")
                if name == "id":
                    place = rest
                elif name == "event":
                    kind = rest
                elif name == "data":
                    yield place, kind, json.loads(rest)

        yield events()


def test_a_router_streams_the_changes_of_a_statement(
    sharded: Any, servers: list[ShardServer], whole: millpond.Pond, job: Job
) -> None:
    text = f"SELECT count(*) AS n, max(v) FILTER (WHERE k = 'each') AS batch FROM \"{job.table}\""  # each batch changes it
    with routing(*(server.url for server in servers)) as url:
        path = f"{url}/sql/changes"
        with streaming(path, _statement=text, _by="") as events:
            place, kind, first = next(events)
            assert (kind, first["changes"][0]["new"]) == ("snapshot", whole.sql(text).rows()[0])
            job.commit()
            newest = catch_up(sharded[job.table], whole[job.table])
            _, kind, later = next(events)
            assert (kind, later["since_batch"], later["jobs"][0]["batch"]) == ("changes", newest - 1, newest)
            assert later["changes"][0] == {"kind": "update", "old": first["changes"][0]["new"], "new": whole.sql(text).rows()[0]}
        threading.Timer(0.5, job.commit).start()
        with streaming(path, _statement=text, _by="", _since=place) as events:  # what was missed comes first
            assert [next(events)[2]["changes"][0]["new"]["batch"] for _ in range(2)] == [newest, newest + 1]
        catch_up(sharded[job.table], whole[job.table])
        refused = httpx.get(path, params={"_statement": "SELECT 1"}, timeout=60).json()["error"]["condition"]
        assert refused == "INVALID_STATEMENT"


def test_history_begins_where_all_shards_have_it(
    sharded: Any, servers: list[ShardServer], whole: millpond.Pond, job: Job, tmp_path: Path
) -> None:
    begun = catch_up(sharded[job.table], whole[job.table])
    server = servers[2]
    server.stop()
    before, server.home = server.home, tmp_path / "new"
    try:
        server.start()
        for _ in range(3):
            job.commit()
            newest = catch_up(sharded[job.table], whole[job.table])
        table, there = sharded[job.table], whole[job.table]
        assert said(lambda: table.at(batch=begun - 1)) == "HISTORY_GONE"
        assert said(lambda: table.history(since=begun - 1)) == "HISTORY_GONE"
        assert said_sql(sharded, f"SELECT * FROM changes('{job.table}', {begun - 1})", None) == "HISTORY_GONE"
        assert list(map(repr, table.at(batch=newest - 1).scan())) == list(map(repr, there.at(batch=newest - 1).scan()))
        is_known = operator.attrgetter("kind")  # when the others were written, a new replica doesn't know
        assert list(map(repr, filter(is_known, table.history(since=newest - 1)))) == list(
            map(repr, filter(is_known, there.history(since=newest - 1)))
        )
        found = [version for version in table.history() if version.kind]
        first = min(version.batch for version in found)
        assert first > begun
        assert list(map(repr, found)) == list(map(repr, filter(is_known, there.history(since=first - 1))))
    finally:
        server.stop()
        server.home = before
        server.start()
        catch_up(sharded[job.table], whole[job.table])
