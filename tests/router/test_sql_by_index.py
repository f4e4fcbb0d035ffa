"""Statements over shards that use indexes have the answers of one server of all partitions, now and as of earlier batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.replica.replica import MEMORY
from millpond.router.pond import ShardedPond
from millpond.schema.definition.indexes import has_order
from millpond.settings import ClientSettings, Retention, RouterSettings
from servers.shard_jobs import SHARDS, Job, catch_up
from servers.shards import routing, shard_servers
from spark_files.golden import TYPES
from sql.test_indexes import first_rows
from sql.test_pushdown import NOT_IN_SQL, ask
from suite.sizes import a_few, examples

pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
SETTINGS = RouterSettings(client=ClientSettings(tries=3), common_batch_seconds=60)
ASKED_TYPES = ["long", "price", "timestamp", "binary", "double", "struct", *(t for t in TYPES if t not in NOT_IN_SQL)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(tmp_path_factory.mktemp("indexed") / "job", seed=3)
    for _ in range(6):
        job.commit()
    return job


@pytest.fixture(scope="module")
def urls(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    kept = ("--history", f"{job.table}=forever", "--index", f"{job.table}=v", "--index", f"{job.table}=v,k")
    with shard_servers(job.checkpoint.path, SHARDS, tmp_path_factory.mktemp("homes"), *kept) as servers:
        yield [server.url for server in servers]


@pytest.fixture(scope="module")
def whole(job: Job) -> Iterator[millpond.Pond]:
    indexes = {job.table: ["v", ("v", "k")]}
    with millpond.open(
        job.checkpoint.path, replica_dir=MEMORY, indexes=indexes, retention=Retention(history_batches=None)
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def sharded(urls: list[str], whole: millpond.Pond, job: Job) -> Iterator[ShardedPond]:
    with millpond.connect_shards(urls, settings=SETTINGS) as opened:
        catch_up(opened[job.table], whole[job.table])
        for _ in range(4):
            job.commit()
            catch_up(opened[job.table], whole[job.table])
        yield opened


def statement(draw: random.Random, table: str) -> tuple[str, list[Any]]:
    """A statement whose answer has one order, if it has LIMIT."""
    values: list[Any] = []

    def condition() -> str:
        kind = draw.randrange(6)
        if kind == 0:
            values.append(f"k{draw.randrange(30)}")
            return f"k {draw.choice(('=', '>=', '<', '<>'))} ?"
        if kind == 1:
            values.extend(sorted((draw.randrange(100), draw.randrange(100))))
            return "v BETWEEN ? AND ?"
        if kind == 2:
            values.extend(draw.sample(range(100), 3))
            return "v IN (?, ?, ?)"
        values.append(draw.choice([draw.randrange(100), -1, 100, 10**18]))
        return f"v {draw.choice(('=', '<', '<=', '>', '>=', '<>'))} ?"

    where = " AND ".join(condition() for _ in range(draw.choice((0, 0, 1, 1, 2))))
    text = f'FROM "{table}"' + (f" WHERE {where}" if where else "")
    kind = draw.randrange(4)
    if kind == 0:
        return f"SELECT count(*) AS n, sum(v) AS s, max(k) AS m {text}", values
    if kind == 1:
        return f"SELECT {draw.choice(('*', 'v', 'k'))} {text}", values
    way, other = draw.choice((("", " DESC"), (" DESC", "")))
    nulls = draw.choice(("", "", " NULLS FIRST", " NULLS LAST"))
    order = f"v{way}{nulls}, k{draw.choice((way, way, other))}"
    return f"SELECT * {text} ORDER BY {order} LIMIT {draw.randrange(1, 20)}", values


def compare(sharded: Any, whole: millpond.Pond, text: str, values: list[Any], **more: Any) -> list[str]:
    """How the shards' answer was read, which is that of the whole.  A server also keeps columns in memory, and reads these."""
    found, expected = sharded.sql(text, values, **more), whole.sql(text, values, **more)
    rows, there = ([tuple(row.items()) for row in each.rows()] for each in (found, expected))
    assert (rows if "LIMIT" in text else sorted(rows)) == (there if "LIMIT" in text else sorted(there)), (text, values, more)
    assert [cut.position.batch for cut in found.cuts] == [cut.position.batch for cut in expected.cuts]
    return [read.how for read in found.reads]


@pytest.mark.long
def test_conditions_and_orders_of_an_index_are_those_of_the_whole(sharded: ShardedPond, whole: millpond.Pond, job: Job) -> None:
    draw, hows = random.Random(1), Counter[str]()
    newest = catch_up(sharded[job.table], whole[job.table])
    for number in range(examples(200, 60)):
        text, values = statement(draw, job.table)
        hows.update(compare(sharded, whole, text, values))
        if number % 4 == 0:
            at = draw.randrange(newest - 4, newest + 1)
            early = text.replace(f'"{job.table}"', f'"{job.table}" AT (VERSION => {at})')
            compare(sharded, whole, early, values)
            compare(sharded, whole, text, values, at=at)
        if number % 20 == 0:
            job.commit()
            newest = catch_up(sharded[job.table], whole[job.table])
    of_index = [how for how in hows if how.startswith("index")]
    assert "index by v" in of_index
    assert all(any(way in how for how in of_index) for way in ("in its order until LIMIT", "against its order until LIMIT"))


@pytest.mark.long
def test_a_router_answers_by_an_index_as_a_server(urls: list[str], whole: millpond.Pond, sharded: ShardedPond, job: Job) -> None:
    draw, hows = random.Random(2), Counter[str]()
    catch_up(sharded[job.table], whole[job.table])
    with routing(*urls) as url, millpond.connect(url) as asked:
        for _ in range(examples(40, 12)):
            hows.update(compare(asked, whole, *statement(draw, job.table)))
    assert any(how.startswith("index") for how in hows)


@pytest.fixture(scope="module")
def typed(types_pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShardedPond, dict[str, Any]]]:
    with millpond.open(types_pond, replica_dir=MEMORY) as pond:
        sorted_by = {name for name in TYPES if has_order(pond[name].definition.types["k"])}
    of_key: list[tuple[str, ...]] = [("k",), ("n",), ("again", "n"), ("n", "k")]
    indexes = {name: of_key if name in sorted_by else [("n",)] for name in TYPES}
    options = [f"--index={name}={','.join(index)}" for name, some in indexes.items() for index in some]
    with (
        shard_servers(types_pond, ["1/3", "2/3", "3/3"], tmp_path_factory.mktemp("typed"), *options) as servers,
        millpond.connect_shards([server.url for server in servers], settings=SETTINGS) as pond,
    ):
        yield pond, indexes


@pytest.mark.parametrize("name", a_few(dict.fromkeys(ASKED_TYPES), 0))
def test_values_of_every_type_are_found(typed: tuple[ShardedPond, dict[str, Any]], name: str) -> None:
    pond, indexes = typed
    assert ask(pond, name, examples(24, 6))  # type: ignore[arg-type]
    first_rows(pond, name, indexes[name], random.Random(name), examples(24, 6))  # type: ignore[arg-type]
