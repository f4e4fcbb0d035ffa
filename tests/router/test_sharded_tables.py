"""Tables of three servers that each follow a shard read as the table of one replica that follows all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.router.pond import ShardedPond
from millpond.settings import ClientSettings, RouterSettings
from servers.on_loop import on_loop
from servers.shards import ShardServer, shard_servers
from spark_files.golden import FEW_TYPES, TYPES
from suite.sizes import a_few_named
from suite.waiting import wait_until

SETTINGS = RouterSettings(client=ClientSettings(page_rows=7, tries=3), common_batch_seconds=60)


@pytest.fixture(scope="module")
def servers(types_pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardServer]]:
    with shard_servers(types_pond, ["1/3", "2/3", "3/3"], tmp_path_factory.mktemp("shards")) as started:
        yield started


@pytest.fixture(scope="module", params=["waiting", "awaited"])
def sharded(servers: list[ShardServer], request: pytest.FixtureRequest) -> Iterator[ShardedPond]:
    urls = [server.url for server in servers]
    if request.param == "awaited":
        with on_loop(millpond.connect_shards_async(urls, settings=SETTINGS)) as pond:
            yield pond
    else:
        with millpond.connect_shards(urls, settings=SETTINGS) as pond:
            yield pond


@pytest.fixture(scope="module")
def whole(types_pond: Path) -> Iterator[millpond.Pond]:
    with millpond.open(types_pond, replica_dir=MEMORY) as pond:
        yield pond


def test_the_servers_have_the_tables_of_the_pond(sharded: ShardedPond, whole: millpond.Pond, servers: list[ShardServer]) -> None:
    assert sharded.tables() == list(sharded) == whole.tables()

    def shards() -> list[tuple[str, set[str | None] | str]]:
        return [(url, {t.state.shard for t in said.values()} if isinstance(said, dict) else said) for url, said in sharded.shards()]

    expected = [(server.url, {server.shard}) for server in servers]
    # A server that has much to do may not answer the first time.
    wait_until(lambda: shards() == expected, f"the shards {expected}")
    assert condition_of(lambda: sharded["nothing"]) == "UNKNOWN_TABLE"


@pytest.mark.parametrize("name", a_few_named(TYPES, FEW_TYPES))
def test_every_read_of_every_type_equals_the_whole(sharded: ShardedPond, whole: millpond.Pond, name: str) -> None:
    table, there, draw = sharded[name], whole[name], random.Random(name)
    assert (table.columns, table.key_order, table.job) == (there.columns, there.key_order, there.job)
    rows = list(there.scan())
    for reverse in (False, True):
        assert same(table.scan(reverse=reverse), there.scan(reverse=reverse))
        limit = draw.randrange(1, len(rows) + 1)
        page = table.scan(limit=limit, reverse=reverse)
        assert (same(page, there.scan(limit=limit, reverse=reverse)), page.more) == (True, len(rows) > limit)
        assert same(pages_of(table, draw, reverse=reverse), there.scan(reverse=reverse))
    assert table.count() == len(rows)
    keys = [{column.name: row[column.name] for column in there.definition.key} for row in rows]
    asked = draw.sample(keys, min(5, len(keys)))
    for key in asked:
        assert same([table.get(key)], [there.get(key)])
    assert same(table.get_all(asked), there.get_all(asked))
    assert same(table.get_all([]), [])
    start = draw.choice(keys)
    try:
        expected = there.range(start=start)
    except MillpondError as error:
        assert condition_of(lambda: table.range(start=start)) == error.condition
    else:
        assert same(table.range(start=start), expected)
        assert same(table.range(end=start, limit=3), there.range(end=start, limit=3))
    arrow, expected = table.to_arrow(), there.to_arrow()
    assert arrow.equals(expected) or shown(arrow) == shown(expected)  # the second for NaN


def same(found: Any, expected: Any) -> bool:
    """Whether rows are equal, NaN and errors of values among them."""
    return list(map(repr, found)) == list(map(repr, expected))


def shown(arrow: Any) -> list[tuple[str, str]]:
    """The columns as texts: some dates have no Python value."""
    return [(field.name, arrow[field.name].combine_chunks().to_string(window=10**6)) for field in arrow.schema]


def pages_of(table: Any, draw: random.Random, *, reverse: bool) -> list[millpond.Row]:
    """All rows, in pages of different lengths."""
    page = table.scan(limit=draw.randrange(1, 6), reverse=reverse)
    found = list(page)
    while page.token is not None:
        assert page.more
        page = table.scan(limit=draw.randrange(1, 6), reverse=reverse, token=page.token)
        found += page
    assert not page.more
    return found


def test_what_isnt_a_key_is_refused_as_by_a_table(sharded: ShardedPond, whole: millpond.Pond) -> None:
    name = "string"
    for read in (
        lambda table: table.get(nothing=1),
        lambda table: table.get({}),
        lambda table: table.scan(limit=0),
        lambda table: table.get(n=1),
        lambda table: table.get_all("a"),
        lambda table: table.scan(token="x"),
        lambda table: table.windows(),
        lambda table: table.get(k="x", bounds=millpond.Bounds(min_batch=10**6)),
        lambda table: table.scan(bounds=millpond.Bounds(min_batch=10**6)),
    ):
        assert condition_of(lambda read=read: read(sharded[name])) == condition_of(lambda read=read: read(whole[name]))


def test_a_pages_token_is_of_its_question(sharded: ShardedPond) -> None:
    table = sharded["string"]
    token = table.scan(limit=1).token
    assert condition_of(lambda: table.scan(limit=1, reverse=True, token=token)) == "INVALID_TOKEN"
    assert condition_of(lambda: table.range(limit=1, token=token)) == "INVALID_TOKEN"


def test_without_a_shard_nothing_is_answered_but_what_lies_elsewhere(servers: list[ShardServer], whole: millpond.Pond) -> None:
    name = "string"
    two = millpond.connect_shards([server.url for server in servers[:2]], settings=SETTINGS)
    with two as pond, pytest.raises(MillpondError) as refused:
        pond[name]
    assert refused.value.condition == "SHARDS_INCOMPLETE"
    assert refused.value.context["missing"]
    assert whole[name].count() > 0


def condition_of(read: Callable[[], Any]) -> str:
    """The condition of the error that a read raises."""
    with pytest.raises(MillpondError) as refused:
        read()
    return refused.value.condition
