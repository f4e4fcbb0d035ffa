"""Each event is in its buckets once, or a dead letter with the reason: random events against a recount."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import RequestError
from spark.aggregate.events import SCHEMA, counted, declare_views, draw_events, recount, shown
from suite.sizes import examples


@pytest.mark.parametrize("dedupe", [pytest.param(None, marks=pytest.mark.long), ("id", "2 days")])
def test_each_event_counts_once_or_is_a_dead_letter(spark, tmp_path: Path, dedupe) -> None:
    draw = random.Random(str(dedupe))
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    files = examples(24, fewest=4, one_of=6)
    written = draw_events(draw, begin, files)
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    aggregate = declare_views(dedupe=dedupe)
    for part in (written[: files // 2], written[files // 2 :]):  # the job is started again in between
        for rows in part:
            write_event_file(folder, len(list(folder.iterdir())), rows)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
        with millpond.start(aggregate, source, pond=pond, trigger="available-now") as job:
            assert job.wait_for_end(300)
    kept, letters = recount([*written[: files // 2], None, *written[files // 2 :], None], dedupe=dedupe is not None)
    with millpond.open(pond, wait_seconds=60) as opened:
        found, listed = shown(opened["views"])
        assert found == counted(kept)
        assert listed == letters
        assert {reason.partition(":")[0] for reason, _ in listed} >= {"late", "future", "no time"}
        total = opened["views"].total(page="/a")
        assert total["hits"] == sum(ids.total() for (page, name, _), ids in kept.items() if (page, name) == ("/a", "1 day"))
        assert "dead_letter" not in total


@pytest.mark.long
def test_an_id_is_forgotten_after_its_horizon(spark, tmp_path: Path) -> None:
    """Events of the past are remembered until events reach the clock; then by the horizon."""
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    now = dt.datetime.now(dt.UTC)
    aggregate = declare_views(dedupe=("id", "2 hours"), future_skew="1 hour")
    at = [now - dt.timedelta(days=20), now - dt.timedelta(days=2), now + dt.timedelta(minutes=50)]
    for number, time in enumerate(at):
        write_event_file(folder, number, [{"id": f"{number}", "at": time.isoformat(), "page": "/"}])
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    with millpond.start(aggregate, source, pond=pond, trigger="available-now") as job:
        assert job.wait_for_end(120)
    dedupe = spark.read.format("statestore").option("operatorId", 1).load(str(job.checkpoint))
    rows = {r.id: r.micros for r in dedupe.select("key.id", "value.expiresAtMicros").toDF("id", "micros").collect()}
    assert rows.keys() == {"0", "1", "2"}  # no event is two hours newer than the clock
    assert all(abs(micros / 10**6 - now.timestamp() - 7200) < 300 for micros in rows.values())


def test_what_cant_be_right_is_refused(spark, tmp_path: Path) -> None:
    wrong_dedupes = [("id", "5 minutes"), "id", ("id", None), (1, "2 days")]
    wrong = [{"dedupe": dedupe} for dedupe in wrong_dedupes]
    wrong += [{"dedupe": ("id", "2 days"), "future_skew": None}, {"key": ["dead_letter"]}]
    wrong += [{"dead_letters": "1 minute"}, {"dead_letters": "never"}]
    for options in wrong:
        with pytest.raises(RequestError) as error:
            declare_views(**options)
        assert error.value.condition == "INVALID_REQUEST"
    source = spark.readStream.schema(SCHEMA).json(str(tmp_path))
    for bad in (source.withWatermark("at", "1 hour"), source.drop("id"), source.withColumn("dead_letter", source.id)):
        with pytest.raises(RequestError) as error:
            declare_views(dedupe=("id", "2 days")).on(bad)
        assert error.value.condition == "INVALID_REQUEST"
    assert "each id for 2 days" in declare_views(dedupe=("id", "2 days")).describe_state()
    assert "1 minute: 362 rows at most, each kept for 6 hours" in declare_views().describe_state()
