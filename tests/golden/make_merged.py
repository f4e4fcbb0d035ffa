"""Write `merged/`: a pond of tables whose rows are merged of several, in several partitions.

    python tests/golden/make_merged.py

views     a declared aggregate: buckets, with every function that can be merged
salted    a salted aggregation with the same functions
windows   a salted aggregation of windows, which a watermark closes
rules_*   what a broadcast keeps in each of its instances
"""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millpond

sys.path.insert(0, str(Path(__file__).parents[1]))
from inputs.merged_functions import AGGREGATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES, PARTITIONS = 5, 5
BEGIN = dt.datetime(2026, 3, 6, 22, tzinfo=dt.UTC)
SCHEMA = "page string, n long, x double, price decimal(9,2), big decimal(38,0), word string, at timestamp"
RULES = "rule string, least long, action string, seq long"


def write_batch(folder: Path, batch: int) -> None:
    """One page has half of the rows, others come in few batches; events are up to two days late."""
    draw, rows = random.Random(batch), []
    for i in range(40):
        at = BEGIN + dt.timedelta(hours=7 * batch, seconds=draw.randrange(3600) - draw.choice((0, 0, 600, 40_000, 170_000)))
        row: dict[str, Any] = {
            "page": "/" if i % 2 else draw.choice(["/a", "/ü", f"/only-{batch}"]),
            "n": draw.randrange(-50, 50),
            "x": draw.choice([0.0, -0.0, 1e9, draw.random()]),
            "price": f"{draw.randrange(-99999, 99999) / 100:.2f}",
            "big": "9" * 37,
            "word": draw.choice(["", "a", "ab", "ä", "z" * 40]),
            "at": at.isoformat(),
        }
        rows.append({name: value for name, value in row.items() if name in ("page", "at") or draw.random() < 0.9})
    _write(folder, batch, rows)


def write_rules(folder: Path, batch: int) -> None:
    """Rules that are put, changed and removed, and one without a name."""
    rows = [{"rule": f"r{(batch + i) % 4}", "least": 10 * batch + i, "seq": 10 * batch + i} for i in range(2)]
    refused = {"least": batch, "seq": 10 * batch + 8}
    removed = {"rule": f"r{batch % 3}", "action": "remove", "seq": 10 * batch + 9}
    _write(folder, batch, [*rows, refused, *([removed] if batch % 2 else [])])


def _write(folder: Path, batch: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{batch}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def match(events: Any, control: Any) -> Any:
    """How many rules each event meets."""
    return events.assign(rules=[sum(amount >= row["least"] for row in control.values()) for amount in events["n"].fillna(0)])


def write(spark: SparkSession, pond: Path) -> None:
    """Run the queries, a file a batch, so that all are in the same batches."""
    from pyspark.sql import functions as F

    with tempfile.TemporaryDirectory() as place:
        folder, rules_folder = Path(place) / "events", Path(place) / "rules"
        for batch in range(BATCHES):
            write_batch(folder, batch)
            write_rules(rules_folder, batch)
        events: DataFrame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
        rules: DataFrame = spark.readStream.schema(RULES).option("maxFilesPerTrigger", 1).json(str(rules_folder))
        values = {f"c{number}": F.expr(text) for number, text in enumerate(AGGREGATES)}
        keeps = {"1 minute": "6 hours", "1 hour": "2 days", "1 day": None}
        aggregate = millpond.Aggregate("views", key=["page"], event_time="at", values=values, resolutions=keeps)
        aggregated = [value.alias(name) for name, value in values.items()]
        window = F.window("at", "2 hours")
        windowed = millpond.salted(events.withWatermark("at", "3 hours"), by=["page", window], salts=3)
        how: dict[str, Any] = {"pond": pond, "trigger": "available-now", "partitions": PARTITIONS}
        numbers = events.select("page", "n")
        matched = millpond.broadcast(
            numbers,
            rules,
            match,
            output="page string, n long, rules long",
            key="rule",
            order="seq",
            shards=3,
            partitions=PARTITIONS,
        )
        for job in (
            aggregate.start(events, **how),
            millpond.start(millpond.salted(events, by=["page"], salts=4).agg(*aggregated), table="salted", **how),
            millpond.start(windowed.agg(F.count("*").alias("hits"), F.avg("n").alias("mean")), table="windows", **how),
            millpond.start(matched, table="rules", output_mode="append", sink=lambda frame, _batch: frame.collect(), **how),
        ):
            with job:
                job.wait_for_end(240)


if __name__ == "__main__":
    from packing import made, pack

    target = made("merged")
    shutil.rmtree(target, ignore_errors=True)
    provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": provider}
    running = millpond.session("golden merged", **conf)
    try:
        write(running, target)
    finally:
        running.stop()
    for checksum in target.rglob(".*.crc"):
        checksum.unlink()
    pack("merged", target)
