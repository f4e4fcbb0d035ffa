"""What shards have of one row, or of one order, is merged by the router as by a replica of all partitions."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.client import RemotePond
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.router.pond import ShardedPond
from millpond.schema.definition.indexes import has_order
from millpond.schema.shard import parse_shard
from millpond.settings import ClientSettings, Retention, RouterSettings
from millpond.tables.answer import Count
from millpond.tables.buckets.answer import Total
from millpond.tables.history.versions import Version
from millpond.tables.job.stored_rows import StoredSpan
from millpond.tables.sql.end import SqlLimits
from servers.serving import wait_until_ready
from servers.shards import routing, shard_servers
from spark_files.golden import GOLDEN
from sql.statements import Statements, rows_in_duckdb, texts_of
from suite.sizes import IS_LONG, examples
from suite.waiting import wait_until

pytestmark = pytest.mark.long

SHARDS = ["0-1", "2", "3-4"]
SETTINGS = RouterSettings(client=ClientSettings(page_rows=7, tries=3), common_batch_seconds=60)
# For reads that must be refused: nobody waits long for them.
HASTY = RouterSettings(client=ClientSettings(page_rows=7, tries=3), common_batch_seconds=5)
BUCKETS, SALTED, WINDOWS = "views", "salted", "windows"


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merged") / "pond"
    shutil.copytree(GOLDEN / "merged", folder)
    return folder


@pytest.fixture(scope="module")
def indexes(pond: Path) -> dict[str, list[tuple[str, ...]]]:
    """Some of each table that may have them, of one column and of several."""
    with millpond.open(pond, replica_dir=MEMORY) as opened:
        draw, found = random.Random(5), {}
        for name in opened.tables():
            definition = opened[name].definition
            columns = [c for c in definition.columns if has_order(definition.types[c])]
            if definition.parts is None and not definition.many and len(columns) > 1:
                found[name] = [(draw.choice(columns),) for _ in range(3)] + [tuple(draw.sample(columns, 2)) for _ in range(3)]
    return {name: list(dict.fromkeys(some)) for name, some in found.items()}


@pytest.fixture(scope="module")
def urls(pond: Path, indexes: dict[str, list[tuple[str, ...]]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    options = [f"--index={name}={','.join(index)}" for name, some in indexes.items() for index in some]
    with shard_servers(pond, SHARDS, tmp_path_factory.mktemp("homes"), *options) as servers:
        yield [server.url for server in servers]


@pytest.fixture(scope="module")
def sharded(urls: list[str]) -> Iterator[ShardedPond]:
    with millpond.connect_shards(urls, settings=SETTINGS) as opened:
        yield opened


@pytest.fixture(scope="module")
def whole(pond: Path, indexes: dict[str, list[tuple[str, ...]]]) -> Iterator[millpond.Pond]:
    with millpond.open(pond, replica_dir=MEMORY, indexes=indexes, retention=Retention(closed_seconds=None)) as opened:
        yield opened


def facts_of(answer: Any) -> Any:
    """All that an answer says, NaN and errors of values as texts."""
    if isinstance(answer, Total):
        return repr(dict(answer)), answer.since, answer.until, answer.used, repr(answer.estimates), answer.batch
    if isinstance(answer, millpond.Row):
        return repr(answer), answer.evicted, answer.final, answer.changed_batch
    if isinstance(answer, Count):
        return int(answer), answer.batch
    if isinstance(answer, Version):
        return repr(answer)
    return [facts_of(row) for row in answer], answer.batch


def said(table: Any, method: str, *words: Any, **more: Any) -> Any:
    """What a read says, or why it is refused."""
    try:
        return facts_of(getattr(table, method)(*words, **more))
    except MillpondError as error:
        return error.condition


@dataclass
class Both:
    """Tables by name, of all shards and of one replica of all partitions."""

    sharded: ShardedPond | RemotePond
    whole: millpond.Pond

    def say(self, name: str, method: str, *words: Any, **more: Any) -> Any:
        """What a read of the whole table says, after a comparison with that of all shards."""
        expected = said(self.whole[name], method, *words, **more)
        assert said(self.sharded[name], method, *words, **more) == expected
        return expected

    def say_in_pages(self, draw: random.Random, name: str, method: str, **more: Any) -> None:
        """The rows in pages of different lengths are those of one answer."""
        read = getattr(self.sharded[name], method)
        page = read(limit=draw.randrange(2, 20), **more)
        found = list(page)
        while page.token is not None:
            assert page.more
            page = read(limit=draw.randrange(2, 20), token=page.token, **more)
            found += page
        assert not page.more
        assert [facts_of(row) for row in found] == said(self.whole[name], method, **more)[0]


@pytest.fixture(scope="module")
def both(sharded: ShardedPond, whole: millpond.Pond) -> Both:
    return Both(sharded, whole)


def test_reads_by_every_index_are_in_the_order_of_the_whole(both: Both, indexes: dict[str, list[tuple[str, ...]]]) -> None:
    compared = 0
    for name, some in indexes.items():
        draw, rows = random.Random(name), list(both.whole[name].scan())
        for index in some if IS_LONG else some[::4]:
            for by in dict.fromkeys((index, index[:1])):  # by its first column alone, ties are in the order of the second
                compared += len(both.say(name, "top", by, None)[0])
                both.say(name, "top", by, 3)
                both.say(name, "range", by=by, reverse=True, limit=4)
                edge = {by[0]: draw.choice(rows)[by[0]]}
                both.say(name, "range", by=by, start=edge)
                both.say(name, "range", by=by, end=edge)
                both.say_in_pages(draw, name, "range", by=by)
            if len(index) > 1:
                both.say(name, "top", index[1], 5, key={index[0]: draw.choice(rows)[index[0]]})
    assert compared
    assert both.say(SALTED, "top", "c0") == "NO_INDEX"
    assert both.say(BUCKETS, "top", "nothing") == "UNKNOWN_COLUMN"
    assert both.say(BUCKETS, "range", by=indexes[BUCKETS][0], token="x") == "INVALID_TOKEN"


def test_totals_and_series_of_every_function_are_those_of_the_whole(both: Both) -> None:
    draw = random.Random(1)
    times = sorted({row["bucket_start"] for row in both.whole[BUCKETS].scan() if row["bucket_start"] is not None})
    found = 0
    for page in ["/", "/ü", "/only-2", "/nobody"]:
        both.say(BUCKETS, "total", page=page)
        for step in ("1 hour", "1 day", "3 hours", "1 month", "1 second", "x"):
            answer = both.say(BUCKETS, "series", page=page, step=step)
            found += 0 if isinstance(answer, str) else len(answer[0])
        for _ in range(2):
            since, until = draw.choice(times), draw.choice(times)
            both.say(BUCKETS, "total", page=page, since=since, until=until)
            both.say(BUCKETS, "series", page=page, since=since, until=until, step="1 minute")
    assert found
    assert both.say(BUCKETS, "total") == "KEY_MISSING"
    assert both.say(SALTED, "total", page="/") == "INVALID_REQUEST"


def test_rows_in_parts_are_those_of_the_whole(both: Both) -> None:
    whole = both.whole
    in_parts = [name for name in whole.tables() if whole[name].definition.parts is not None]
    assert len(in_parts) == 5
    for name in in_parts if IS_LONG else ["rules_control", SALTED]:
        draw, there = random.Random(name), whole[name]
        rows = list(there.scan())
        assert rows, name
        names = [column.name for column in there.definition.key]
        keys = [{column: row[column] for column in names} for row in rows]
        some = draw.sample(keys, min(3, len(keys)))
        absent = [{column: draw.choice(keys)[column] for column in names} for _ in range(2)]
        for reverse in (False, True):
            both.say(name, "scan", reverse=reverse)
            both.say_in_pages(draw, name, "scan", reverse=reverse)
        both.say(name, "count")
        for key in [*some, *absent]:
            both.say(name, "get", key)
            last = {column: key[column] for column in names[-1:]}
            both.say(name, "scan", last)
            both.say(name, "count", last)
            both.say(name, "range", start=key, limit=2)
            both.say(name, "windows", key)
        both.say(name, "get_all", [*some, *absent])
        both.say(name, "get_all", [])
        both.say(name, "get", {})
        both.say(name, "get", nothing=1)
        assert repr(both.sharded[name].to_arrow().to_pylist()) == repr(there.to_arrow().to_pylist())


def test_statements_over_shards_have_the_answers_of_the_whole(both: Both) -> None:
    asked: Counter[str] = Counter()
    names = ("rules_versions", WINDOWS, BUCKETS, SALTED) if IS_LONG else ("rules_versions", WINDOWS)
    for name in names:
        with rows_in_duckdb(both.whole[name]) as found:
            assert found is not None, name
            draw = Statements(name, found[1], seed=1)
            for _ in range(examples(24, 6)):
                text, values = draw.next()
                try:
                    expected = both.whole.sql(text, values)
                except MillpondError as refused:
                    with pytest.raises(MillpondError) as error:
                        both.sharded.sql(text, values)
                    assert error.value.condition == refused.condition, text
                    continue
                answer = both.sharded.sql(text, values)
                assert sorted(texts_of(answer.to_arrow())) == sorted(texts_of(expected.to_arrow())), (text, values)
                assert ([r.how for r in answer.reads], answer.cuts[0].position.batch) == (
                    [r.how for r in expected.reads],
                    expected.cuts[0].position.batch,
                )
                asked[name] += 1
    assert len(asked) == len(names)


def test_totals_and_series_of_every_group_in_statements_are_those_of_the_whole(both: Both) -> None:
    def answer_of(pond: Any, text: str) -> Any:
        try:
            answer = pond.sql(text)
        except MillpondError as refused:
            return refused.condition
        return texts_of(answer.to_arrow()), [(read.how, read.rows) for read in answer.reads], answer.cuts[0].position.batch

    draw, found = random.Random(6), Counter[bool]()
    times = sorted({row["bucket_start"] for row in both.whole[BUCKETS].scan() if row["bucket_start"] is not None})
    for call in ("total('views'{span})", "series('views', '1 hour'{span})", "series('views', '1 day'{span})"):
        for where in ("", " WHERE page IN ('/', '/ü', '/nobody')", " WHERE page > '/only-1'"):
            for names in ((), ("since",), ("until",), ("since", "until")):
                span = "".join(f", {name} => '{draw.choice(times).isoformat()}'" for name in names)
                text = f"SELECT * FROM {call.format(span=span)}{where}"
                expected = answer_of(both.whole, text)
                assert answer_of(both.sharded, text) == expected, text
                found[isinstance(expected, tuple)] += 1
    assert found[True] > 12, found
    assert found[False], found


def test_what_shards_dont_answer_by_sql_is_refused(both: Both) -> None:
    for text, condition in (
        (f"SELECT * FROM changes('{BUCKETS}', 1)", "HISTORY_GONE"),
        (f"SELECT * FROM history('{BUCKETS}')", "HISTORY_GONE"),
        (f"SELECT * FROM {BUCKETS} AT (VERSION => 1)", "HISTORY_GONE"),
        (f"SELECT count(*) FROM {BUCKETS}, {SALTED}", "INVALID_STATEMENT"),
        ("SELECT * FROM nothing", "UNKNOWN_TABLE"),
        ("SELECT * FROM read_csv('/etc/passwd')", "INVALID_STATEMENT"),
        ("COPY (SELECT 1) TO '/tmp/x'", "INVALID_STATEMENT"),
        ("INSTALL httpfs", "INVALID_STATEMENT"),
    ):
        with pytest.raises(MillpondError) as refused:
            both.sharded.sql(text)
        assert refused.value.condition == condition, text
    with pytest.raises(MillpondError) as refused:
        both.sharded.sql(f"SELECT * FROM {SALTED}", limits=SqlLimits(rows=1))
    assert refused.value.condition == "ANSWER_TOO_LARGE"
    answer = both.sharded.sql(f"SELECT (SELECT count(*) FROM {BUCKETS}), (SELECT count(*) FROM {SALTED})", separate=True)
    assert list(answer.rows()[0].values()) == [both.whole[BUCKETS].count(), both.whole[SALTED].count()]
    # Tables of one job are read at one batch, and index and key choose the rows.
    joined = "SELECT v.rule, v.version, c.least FROM rules_versions v LEFT JOIN rules_control c ON v.rule = c.rule ORDER BY ALL"
    assert both.sharded.sql(joined).rows() == both.whole.sql(joined).rows()


@pytest.mark.parametrize("seed", range(3))
def test_every_batch_in_random_shards_is_that_of_the_whole(tmp_path: Path, seed: int) -> None:
    draw, folder = random.Random(seed), tmp_path / "pond"
    shutil.copytree(GOLDEN / "merged", folder)
    hidden = {commit: commit.read_bytes() for commit in folder.glob("jobs/*/checkpoint/commits/*")}
    for commit in hidden:
        if commit.name != "0":
            commit.unlink()
    numbers = draw.sample(range(5), 5)
    cuts = sorted(draw.sample(range(1, 5), draw.randrange(1, 4)))
    shards = [parse_shard(",".join(map(str, numbers[a:b]))).text for a, b in zip([0, *cuts], [*cuts, 5], strict=True)]
    with (
        millpond.open(
            folder, replica_dir=MEMORY, indexes={BUCKETS: ["c1"]}, retention=Retention(closed_seconds=None, history_batches=None)
        ) as whole,
        shard_servers(
            folder,
            shards,
            tmp_path / "homes",
            f"--index={BUCKETS}=c1",
            *(word for name in whole.tables() for word in ("--history", f"{name}=forever", "--keep-closed", f"{name}=forever")),
        ) as servers,
        millpond.connect_shards([server.url for server in servers], settings=SETTINGS) as sharded,
    ):
        both, compared = Both(sharded, whole), set[str]()
        for batch in range(max(int(commit.name) for commit in hidden) + 1):
            for commit, data in hidden.items():
                if commit.name == str(batch):  # whole at once, as Spark does
                    written = commit.with_name(f".{commit.name}.tmp")
                    written.write_bytes(data)
                    written.rename(commit)
            whole.catch_up(30)
            for name in whole.tables():
                bounds = millpond.Bounds(min_batch=whole[name].scan(limit=1).batch, wait_seconds=20)
                both.say(name, "scan", bounds=bounds)
                both.say(name, "count", bounds=bounds)
            for page in ("/", "/a", "/ü"):
                both.say(BUCKETS, "total", page=page)
                both.say(BUCKETS, "series", page=page, step="1 hour")
                both.say(SALTED, "get", page=page)
            both.say(BUCKETS, "top", "c1", None)
            if batch:
                compared |= say_what_was(both, draw, batch)
            counted = f"SELECT page, resolution, sum(c0), count(*) FROM {BUCKETS} GROUP BY ALL ORDER BY ALL"
            assert sharded.sql(counted).rows() == whole.sql(counted).rows()
        assert compared == set(whole.tables())


def say_what_was(both: Both, draw: random.Random, newest: int) -> set[str]:
    """Compare reads of earlier batches, versions and changes of every table; returns those that had that batch."""
    compared = set()
    for name in both.whole.tables():
        batch = draw.randrange(newest + 1)
        try:
            at = Both({name: both.sharded[name].at(batch=batch)}, {name: both.whole[name].at(batch=batch)})  # type: ignore[arg-type]
        except MillpondError as error:
            assert said(both.sharded[name], "at", batch=batch) == error.condition
            continue
        compared.add(name)
        at.say(name, "scan")
        at.say(name, "count")
        at.say(name, "top", "c1", None)
        both.say(name, "history", limit=draw.randrange(1, 50))
        both.say(name, "history", since=batch)
        if name == BUCKETS:
            at.say(name, "total", page="/a")
            at.say(name, "series", page="/", step="1 hour")
        for text in (
            f"SELECT * FROM {name} AT (VERSION => {batch})",
            f"SELECT * FROM history('{name}', {batch})",
            f"SELECT * FROM changes('{name}', {batch})",
        ):
            assert in_words(both.sharded, text) == in_words(both.whole, text), text
    return compared


def in_words(pond: Any, text: str) -> list[str] | str:
    """The rows of an answer, in any order; or why there is none."""
    try:
        return sorted(texts_of(pond.sql(text).to_arrow()))
    except MillpondError as error:
        return error.condition


def test_a_router_answers_as_a_server(both: Both, urls: list[str], indexes: dict[str, list[tuple[str, ...]]]) -> None:
    with routing(*urls) as url, millpond.connect(url) as asked:
        by, over_http = indexes[BUCKETS][0], Both(asked, both.whole)
        over_http.say(BUCKETS, "top", by, 3)
        over_http.say(BUCKETS, "range", by=by)
        over_http.say(BUCKETS, "total", page="/")
        over_http.say(BUCKETS, "series", page="/", step="1 hour")
        over_http.say(SALTED, "scan")
        over_http.say(SALTED, "get", page="/")
        over_http.say(WINDOWS, "count")
        assert asked.tables() == both.whole.tables()
        for text in (
            f"SELECT page, sum(c0) FROM {BUCKETS} GROUP BY page ORDER BY page",
            f"SELECT c0 FROM {SALTED} WHERE page = '/'",
        ):
            answer, expected = asked.sql(text), both.whole.sql(text)
            assert (answer.rows(), [r.how for r in answer.reads]) == (expected.rows(), [r.how for r in expected.reads])
        for text, condition in (("SELECT * FROM nothing", "UNKNOWN_TABLE"), ("SELECT * FROM read_csv('x')", "INVALID_STATEMENT")):
            with pytest.raises(MillpondError) as refused:
                asked.sql(text)
            assert refused.value.condition == condition
        with pytest.raises(MillpondError) as refused:
            asked.sql(f"SELECT count(*) FROM {SALTED}", at=0)
        assert refused.value.condition == "HISTORY_GONE"
        (too_long,) = [
            httpx.get(f"{url}/tables/{BUCKETS}/rows", params={"_limit": 1, "_by": ",".join(by), "_token": "x"}, timeout=60).json()
        ]
        assert too_long["error"]["condition"] == "INVALID_TOKEN"


def test_questions_for_stored_rows_are_bounded(urls: list[str]) -> None:
    path, own = f"{urls[1]}/tables/{SALTED}/rows:stored", {"bounds": {"shard": SHARDS[1]}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"span": {"keys": ["no base64!"]}}, "INVALID_REQUEST"),
        ({"span": {"keys": [""]}}, "INVALID_REQUEST"),
        ({"span": {"keys": ["eHg="] * 4097}}, "INVALID_REQUEST"),
        ({"span": {"low": "eHh4" * 300}}, "INVALID_REQUEST"),
        ({"span": {"limit": 0}}, "INVALID_REQUEST"),
        ({"span": {"limit": -5}}, "INVALID_REQUEST"),
        ({"span": {"limit": "x"}}, "INVALID_REQUEST"),
        ({"span": {"by": ["c0"]}}, "NO_INDEX"),
        ({"span": 5}, "INVALID_REQUEST"),
        ({"span": {"more": 1}}, "INVALID_REQUEST"),
        ({"nothing": 1}, "INVALID_REQUEST"),
        ({"cut": "x"}, "INVALID_TOKEN"),
    ]
    for question, condition in wrong:
        answer = httpx.post(path, json={**question, **own}, timeout=60)
        assert (answer.status_code < 500, answer.json()["error"]["condition"]) == (True, condition), str(question)[:80]
    whole = httpx.post(path, json={"span": {"limit": 10**9}, **own}, timeout=60).json()
    assert 0 < len(whole["rows"]) <= 4096
    assert httpx.post(path, json={}, timeout=60).json()["error"]["condition"] == "ONLY_A_SHARD"
    assert httpx.post(path, json={"bounds": {"shard": SHARDS[0]}}, timeout=60).json()["error"]["condition"] == "OTHER_SHARD"


def test_while_a_copy_is_there_no_read_is_refused_and_without_one_none_is_answered(tmp_path: Path) -> None:
    draw, folder = random.Random(3), tmp_path / "pond"
    shutil.copytree(GOLDEN / "merged", folder)
    kept = ("--index", f"{BUCKETS}=c1", "--history", f"{BUCKETS}=forever")
    reads: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
        (BUCKETS, "top", ("c1", 20), {}),
        (BUCKETS, "total", (), {"page": "/"}),
        (BUCKETS, "series", (), {"page": "/", "step": "1 hour"}),
        (SALTED, "scan", (), {}),
        (SALTED, "get", (), {"page": "/a"}),
        (WINDOWS, "count", (), {}),
    ]
    counted = f"SELECT page, sum(c0), count(*) FROM {BUCKETS} GROUP BY page ORDER BY page"
    with (
        shard_servers(folder, ["1/2", "2/2"], tmp_path / "homes", *kept, copies=2) as servers,
        millpond.connect_shards([server.url for server in servers], settings=SETTINGS) as sharded,
        millpond.connect_shards([server.url for server in servers], settings=HASTY) as hasty,
        millpond.open(folder, replica_dir=MEMORY, indexes={BUCKETS: ["c1"]}) as whole,
    ):
        both, expected = Both(sharded, whole), whole.sql(counted).rows()
        answered, until = 0, threading.Event()
        problems: list[BaseException] = []

        def ask(seed: int) -> None:
            nonlocal answered
            own = random.Random(seed)
            try:
                while not until.is_set():
                    name, method, words, more = own.choice(reads)
                    both.say(name, method, *words, **more)
                    assert sharded.sql(counted).rows() == expected
                    answered += 1
            except BaseException as problem:
                problems.append(problem)
                raise

        threads = [threading.Thread(target=ask, args=(seed,), daemon=True) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                server = draw.choice(servers)
                time.sleep(1)
                server.kill()
                time.sleep(1)
                server.start()
                with httpx.Client(base_url=server.url, timeout=60) as client:
                    wait_until_ready(client)  # two copies of a half are never down together
            wait_until(lambda: answered > 10 or problems, "eleven answers")
        finally:
            until.set()
            for thread in threads:
                thread.join()
        assert not problems
        assert answered > 10
        wait_until(lambda: hasty.sql(counted).rows() == expected, "an answer", ignoring=(MillpondError,))
        for server in servers[:2]:  # both copies of the first half
            server.kill()
        gone = {"SERVER_UNAVAILABLE", "SHARDS_INCOMPLETE"}
        for name, method, words, more in reads[1:4:2]:
            assert said(hasty[name], method, *words, **more) in gone
        with pytest.raises(MillpondError) as refused:
            hasty.sql(counted)
        assert refused.value.condition in gone


def test_shards_of_two_batches_give_no_answer_until_they_have_one(tmp_path: Path) -> None:
    ahead, lags = tmp_path / "ahead", tmp_path / "lags"
    for folder in (ahead, lags):
        shutil.copytree(GOLDEN / "merged", folder)
    hidden = [commit for commit in lags.glob("jobs/*/checkpoint/commits/*") if int(commit.name) > 1]
    for commit in hidden:
        commit.unlink()
    settings = RouterSettings(client=ClientSettings(tries=1), common_batch_seconds=0.5)
    statement = f"SELECT page, sum(c0) FROM {BUCKETS} GROUP BY page ORDER BY page"
    with (
        shard_servers(ahead, ["0-2"], tmp_path / "one", f"--index={BUCKETS}=c1") as one,
        shard_servers(lags, ["3-4"], tmp_path / "two", f"--index={BUCKETS}=c1") as two,
        millpond.connect_shards([one[0].url, two[0].url], settings=settings) as sharded,
        millpond.open(ahead, replica_dir=MEMORY, indexes={BUCKETS: ["c1"]}) as whole,
    ):
        for name, method, words, more in (
            (BUCKETS, "top", ("c1",), {}),
            (BUCKETS, "total", (), {"page": "/"}),
            (BUCKETS, "changes", (), {}),
            (SALTED, "get", (), {"page": "/"}),
        ):
            assert said(sharded[name], method, *words, **more) == "NO_COMMON_BATCH"
        with pytest.raises(MillpondError) as refused:
            sharded.sql(statement)
        assert refused.value.condition == "NO_COMMON_BATCH"
        for commit in hidden:
            shutil.copyfile(ahead / commit.relative_to(lags), commit)
        bounds = millpond.Bounds(min_batch=5, wait_seconds=20)
        found, expected = sharded[BUCKETS].top("c1", 9, bounds=bounds), whole[BUCKETS].top("c1", 9)
        # When a row changed is known only to who followed the job meanwhile.
        assert ([*map(repr, found)], found.batch) == ([*map(repr, expected)], expected.batch)
        Both(sharded, whole).say(BUCKETS, "total", page="/")
        assert sharded.sql(statement).rows() == whole.sql(statement).rows()


def test_a_shard_alone_gives_no_merged_row(pond: Path) -> None:
    with millpond.open(pond, replica_dir=MEMORY, shard=SHARDS[0]) as shard:
        here = shard[SALTED].here
        for name in (SALTED, WINDOWS):
            for read in ("scan", "count", "changes", "to_arrow"):
                assert said(shard[name], read) == said(shard[name], read, bounds=here) == "ONLY_A_SHARD"
        assert said(shard[BUCKETS], "total", page="/") == said(shard[BUCKETS], "total", page="/", bounds=here) == "ONLY_A_SHARD"
        assert said(shard[SALTED], "get", page="/") == "ONLY_A_SHARD"
        assert said(shard[SALTED], "stored_rows", None) == "ONLY_A_SHARD"
        assert said(shard[SALTED], "stored_rows", None, bounds=millpond.Bounds(shard=SHARDS[1])) == "OTHER_SHARD"
        for wrong in (
            StoredSpan(keys=[b""]),
            StoredSpan(keys=[b"x" * 512]),
            StoredSpan(keys=[b"x"] * 5000),
            StoredSpan(low=b"x" * 600),
            StoredSpan(high=b"x" * 600, reverse=True),
        ):
            assert said(shard[SALTED], "stored_rows", wrong, bounds=here) == "INVALID_REQUEST"
        assert said(shard[SALTED], "stored_rows", StoredSpan(by=("c0",)), bounds=here) == "NO_INDEX"
