"""`connect_shards_async`: many reads at once, each with its own answer, also while others are cancelled; few threads; an end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.settings import ClientSettings, Retention, RouterSettings
from servers.shard_jobs import KEYS, SHARDS, Job, catch_up
from servers.shards import shard_servers
from suite.waiting import wait_until, wait_until_async

SETTINGS = RouterSettings(client=ClientSettings(tries=3), common_batch_seconds=60)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("awaited") / "job", seed=8)


@pytest.fixture(scope="module")
def urls(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    homes = tmp_path_factory.mktemp("homes")
    with shard_servers(job.checkpoint.path, SHARDS, homes, "--history", f"{job.table}=forever") as servers:
        yield [server.url for server in servers]


@pytest.fixture(scope="module")
def whole(job: Job, urls: list[str]) -> Iterator[millpond.Table]:
    kept = Retention(history_batches=None)
    with (
        millpond.open(job.checkpoint.path, replica_dir=MEMORY, retention=kept) as pond,
        millpond.connect_shards(urls, settings=SETTINGS) as sharded,
    ):
        catch_up(sharded[job.table], pond[job.table])
        for _ in range(5):
            job.commit()
            catch_up(sharded[job.table], pond[job.table])
        yield pond[job.table]


def threads() -> list[threading.Thread]:
    """Those that make awaited reads."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("millpond-awaited")]


@pytest.mark.long
def test_each_call_has_its_own_answer_while_others_are_cancelled(urls: list[str], whole: millpond.Table) -> None:
    draw, expected = random.Random(1), {key: whole.get(key) for key in KEYS}
    assert len({repr(row) for row in expected.values()}) > 10

    async def ask(table: Any, key: str) -> bool:
        row = await table.get(key)
        assert (dict(row), row.batch) == (dict(expected[key]), expected[key].batch), key
        return True

    async def run() -> tuple[int, int]:
        async with millpond.connect_shards_async(urls, settings=SETTINGS) as pond:
            table, answered, cancelled = pond[whole.name], 0, 0
            for _ in range(4):
                tasks = [asyncio.create_task(ask(table, draw.choice(KEYS))) for _ in range(150)]
                await asyncio.sleep(draw.random() * 0.05)
                for task in draw.sample(tasks, 60):
                    task.cancel()
                for found in await asyncio.gather(*tasks, return_exceptions=True):
                    assert found is True or isinstance(found, asyncio.CancelledError), found
                    answered += found is True
                    cancelled += found is not True
                assert 0 < len(threads()) <= 64
            assert list(await table.scan()) == list(whole.scan())  # cancelled reads keep no thread
            return answered, cancelled

    before = len(threads())
    answered, cancelled = asyncio.run(run())
    assert (answered >= 4 * 90, cancelled > 0) == (True, True)
    wait_until(lambda: len(threads()) == before, "the end of its threads")


@pytest.mark.long
def test_all_that_a_waiting_pond_has_is_awaited(urls: list[str], whole: millpond.Table, job: Job) -> None:
    name, newest = whole.name, whole.count().batch

    async def run() -> None:
        async with millpond.connect_shards_async(urls, settings=SETTINGS) as pond:
            table = pond[name]
            assert (await pond.tables(), [each async for each in pond]) == ([name], [name])
            assert (await pond.ready(60))[0]
            assert list(await table.changes(newest - 2)) == list(whole.changes(newest - 2))
            assert [repr(each) for each in await table.history()] == [repr(each) for each in whole.history()]
            earlier = await table.at(batch=newest - 1)
            assert list(await earlier.scan()) == list(whole.at(batch=newest - 1).scan())
            assert list(await table.live().scan()) == list(whole.live().scan())
            assert (await table.to_arrow()).equals(whole.to_arrow())
            text = f'SELECT sum(v) AS s, count(*) AS n FROM "{name}"'
            assert (await pond.sql(text)).rows() == [{"s": sum(row["v"] for row in whole.scan()), "n": whole.count()}]
            async with pond.cut(name) as cut:
                state = list(whole.scan())
                job.commit()
                whole.job_reads.replica.catch_up(30)  # type: ignore[attr-defined]
                await table.count(bounds=millpond.Bounds(min_batch=newest + 1, wait_seconds=20))
                assert (cut.batch, list(await cut[name].scan())) == (newest, state)
            with pytest.raises(MillpondError) as refused:
                cut[name]
            assert refused.value.condition == "CUT_EXPIRED"
            assert list(await table.scan()) == list(whole.scan()) != state
            async for changes in pond.subscribe(text):
                assert changes.answer.rows() == (await pond.sql(text)).rows()
                break
            with pytest.raises(MillpondError) as refused:
                await pond["nothing"].count()
            assert refused.value.condition == "UNKNOWN_TABLE"

    asyncio.run(run())


@pytest.mark.long
def test_a_closed_pond_answers_nothing_and_its_threads_end(urls: list[str], whole: millpond.Table) -> None:
    async def run() -> list[BaseException | int]:
        pond = millpond.connect_shards_async(urls, settings=SETTINGS)
        table = pond[whole.name]
        await table.count()
        bounds = millpond.Bounds(min_batch=10**6, wait_seconds=6)
        waiting = [asyncio.create_task(table.count(bounds=bounds)) for _ in range(100)]  # more than there are threads
        await wait_until_async(lambda: len(threads()) >= 64, "a wait in each thread")
        await pond.close()
        with pytest.raises(MillpondError) as refused:
            await table.count()
        assert refused.value.condition == "SERVER_UNAVAILABLE"
        return await asyncio.gather(*waiting, return_exceptions=True)

    before = len(threads())
    answers = asyncio.run(run())
    assert len(answers) == 100
    conditions = {each.condition if isinstance(each, MillpondError) else repr(each) for each in answers}
    assert "SERVER_UNAVAILABLE" in conditions <= {"SERVER_UNAVAILABLE", "NOT_UP_TO_BOUND"}
    wait_until(lambda: len(threads()) == before, "the end of its threads")


def test_what_is_no_address_is_refused_at_once() -> None:
    for urls in ([], ["ftp://nowhere"]):
        with pytest.raises(MillpondError) as refused:
            millpond.connect_shards_async(urls)
        assert refused.value.condition == "INVALID_REQUEST"
