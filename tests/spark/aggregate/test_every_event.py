"""Each event is in its buckets once, or a dead letter with the reason: random events against a recount."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from pathlib import Path

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import RequestError
from suite.sizes import examples

SCHEMA = "id string, at timestamp, page string"
KEEPS = {"1 minute": 6 * 3600, "1 hour": 3 * 86_400, "1 day": None}
SECONDS = {"1 minute": 60, "1 hour": 3600, "1 day": 86_400}
NAMES = {None: None, 6 * 3600: "6 hours", 3 * 86_400: "3 days"}


def declare(**options) -> millpond.Aggregate:
    from pyspark.sql import functions as F

    return millpond.Aggregate(
        "views",
        **{
            "key": ["page"],
            "event_time": "at",
            "values": {"hits": F.count("*"), "ids": F.collect_set("id")},
            "resolutions": {name: NAMES[keep] for name, keep in KEEPS.items()},
            **options,
        },
    )


def draw_events(draw: random.Random, begin: dt.datetime, files: int) -> list[list[dict]]:
    """Files of events: late by up to weeks, of the future, without a time or an id, and sent twice."""
    sent: list[dict] = []
    written = []
    for number in range(files):
        now = begin + dt.timedelta(hours=5 * number)
        rows = []
        for _ in range(25):
            late = draw.choice((0, 0, 600, 20_000, 100_000, 400_000, 2_000_000)) * draw.random()
            at = (now - dt.timedelta(seconds=late, microseconds=draw.randrange(10**6))).isoformat()
            at = draw.choice((at,) * 18 + (None, "2999-01-01T00:00:00+00:00"))
            row = {"id": f"{number}-{draw.randrange(10**9)}", "at": at, "page": draw.choice(("/", "/a"))}
            if draw.random() < 0.05:
                row["id"] = None
            rows.append(row)
        again = [draw.choice(sent + rows) for _ in range(8)]
        rows += [{**row, "at": draw.choice((row["at"], row["at"], now.isoformat()))} for row in again if row["id"]]
        sent += rows
        written.append(rows)
    return written


def recount(written: list[list[dict] | None], *, dedupe: bool) -> tuple[dict, Counter]:
    """The buckets, and the dead letters by reason and event, batch by batch as Spark's rules are.

    written:  the rows of each batch; None where a run ended, which takes a batch without rows
    """
    buckets: dict[tuple, Counter] = {}
    letters: Counter = Counter()
    seen: set[str] = set()
    newest = [0.0, 0.0]  # what the batch before last saw, and the last: Spark rejects by the first
    for rows in written:
        most = newest[1]
        for row in rows or ():
            event = json.dumps({n: v for n, v in row.items() if v is not None}, sort_keys=True)
            identity = row["id"] or event
            if dedupe and identity in seen:
                continue
            seen.add(identity)
            if dedupe and row["id"] is None:
                letters["no id", event] += 1
                continue
            if row["at"] is None:
                letters["no time", event] += 1
                continue
            at = dt.datetime.fromisoformat(row["at"]).timestamp()
            if row["at"].startswith("2999"):
                letters["future", event] += 1
                continue
            most = max(most, at)
            for name, keep in KEEPS.items():
                start = at // SECONDS[name] * SECONDS[name]
                if keep is not None and start + SECONDS[name] + keep <= newest[0]:
                    letters[f"late: {name}", event] += 1
                else:
                    buckets.setdefault((row["page"], name, start), Counter())[row["id"]] += 1
        newest = [newest[1], int(most * 1000) / 1000]
    kept = {
        (page, name, start): ids
        for (page, name, start), ids in buckets.items()
        if KEEPS[name] is None or start + SECONDS[name] + KEEPS[name] > newest[1]
    }
    return kept, letters


@pytest.mark.parametrize("dedupe", [None, ("id", "2 days")])
def test_each_event_counts_once_or_is_a_dead_letter(spark, tmp_path: Path, dedupe) -> None:
    draw = random.Random(str(dedupe))
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    files = max(5, examples(24))
    written = draw_events(draw, begin, files)
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    aggregate = declare(dedupe=dedupe)
    for part in (written[: files // 2], written[files // 2 :]):  # the job is started again in between
        for rows in part:
            write_event_file(folder, len(list(folder.iterdir())), rows)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
        with millpond.start(aggregate, source, pond=pond, trigger="available-now") as job:
            assert job.wait_for_end(300)
    kept, letters = recount([*written[: files // 2], None, *written[files // 2 :], None], dedupe=dedupe is not None)
    with millpond.open(pond, wait_seconds=30) as opened:
        rows = opened["views"].scan()
        found = {
            (r["page"], r["resolution"], r["bucket_start"].timestamp()): (r["hits"], sorted(i for i in r["ids"]))
            for r in rows
            if r["dead_letter"] is None
            and (r["expires_at"] is None or r["expires_at"].timestamp() * 1000 > rows.position.watermark_ms)
        }
        assert found == {k: (ids.total(), sorted(i for i in ids if i is not None)) for k, ids in kept.items()}
        listed = Counter()
        for r in rows:
            if r["dead_letter"] is not None:
                event = json.loads(r["dead_letter"])
                if "at" in event:
                    event["at"] = dt.datetime.fromisoformat(event["at"]).isoformat()
                listed[r["resolution"], json.dumps(event, sort_keys=True)] += r["hits"]
        assert listed == letters
        assert {reason.partition(":")[0] for reason, _ in listed} >= {"late", "future", "no time"}
        total = opened["views"].total(page="/a")
        assert total["hits"] == sum(ids.total() for (page, name, _), ids in kept.items() if (page, name) == ("/a", "1 day"))
        assert "dead_letter" not in total


def test_an_id_is_forgotten_after_its_horizon(spark, tmp_path: Path) -> None:
    """Events of the past are remembered until events reach the clock; then by the horizon."""
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    now = dt.datetime.now(dt.UTC)
    aggregate = declare(dedupe=("id", "2 hours"), future_skew="1 hour")
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
            declare(**options)
        assert error.value.condition == "INVALID_REQUEST"
    source = spark.readStream.schema(SCHEMA).json(str(tmp_path))
    for bad in (source.withWatermark("at", "1 hour"), source.drop("id"), source.withColumn("dead_letter", source.id)):
        with pytest.raises(RequestError) as error:
            declare(dedupe=("id", "2 days")).on(bad)
        assert error.value.condition == "INVALID_REQUEST"
    assert "each id for 2 days" in declare(dedupe=("id", "2 days")).describe_state()
    assert "1 minute: 362 rows at most, each kept for 6 hours" in declare().describe_state()
