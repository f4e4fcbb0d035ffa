"""Random values of every type that Spark writes in Avro: we write its bytes, and it reads ours."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.streaming import StatefulProcessor

import millpond
from inputs.event_file import write_event_file
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.rewrite.rewrite import open_state
from millpond.storage import open_storage
from spark.savepoint.test_edit import PROVIDER, PROVIDERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
SCHEMA = (
    "flag boolean, i int, l long, f float, d double, s string, b binary, day date, at timestamp, local timestamp_ntz, "
    "small decimal(9,2), wide decimal(38,10), numbers array<long>, texts array<string>, scores map<string,double>, "
    "inner struct<x:int,y:array<struct<z:string,w:decimal(20,3)>>>, rows map<string,struct<n:long>>"
)


def value_of(some: random.Random) -> tuple[Any, ...]:
    """A value of each type; each may be NULL."""

    def text() -> str:
        return "".join(some.choices(["a", "ü", "☃", "𝄞", "\x00", "/", "b"], k=some.randint(0, 12)))

    def day() -> dt.datetime:
        return dt.datetime(1950, 1, 1) + dt.timedelta(seconds=some.randint(0, 3_000_000_000), microseconds=some.randint(0, 999_999))

    def whole(bits: int) -> int:
        return some.choice([-1, 1]) * some.getrandbits(some.randint(1, bits - 1))

    values = (
        some.random() < 0.5,
        whole(32),
        whole(64),
        float(some.randint(-(10**6), 10**6)) / 8,
        some.uniform(-1e300, 1e300),
        text(),
        some.randbytes(some.randint(0, 9)),
        day().date(),
        day(),
        day(),
        Decimal(some.randint(-999_999_999, 999_999_999)).scaleb(-2),
        Decimal(whole(90)).scaleb(-10),
        [whole(64) for _ in range(some.randint(0, 3))],
        [text() for _ in range(some.randint(0, 3))],
        {text(): some.random() for _ in range(some.randint(0, 4))},
        (whole(31), [(text(), Decimal(whole(50)).scaleb(-3)) for _ in range(some.randint(0, 2))]),
        {text(): (whole(64),) for _ in range(some.randint(0, 3))},
    )
    return tuple(None if some.random() < 0.1 else value for value in values)


class Draw(StatefulProcessor):
    """Each key's value, list and map are drawn by its number."""

    def init(self, handle: Any) -> None:
        self.one = handle.getValueState("one", SCHEMA)
        self.many = handle.getListState("many", SCHEMA)
        self.each = handle.getMapState("each", "k string, n long", SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
        some = random.Random(key[0])
        self.one.update(value_of(some))
        self.many.put([value_of(some) for _ in range(3)])
        for n in range(2):
            self.each.updateValue((f"k{n}", None if n else key[0]), value_of(some))
        yield pd.DataFrame({"n": [key[0]]})

    def close(self) -> None:
        pass


def drawn(spark: SparkSession, folder: Path) -> Path:
    """The checkpoint of one batch of sixty keys."""
    spark.conf.set(PROVIDER, PROVIDERS["rocksdb"])
    spark.conf.set(ENCODING, "avro")
    (folder / "in").mkdir()
    write_event_file(folder / "in", 0, [{"n": n} for n in range(60)])
    df = spark.readStream.schema("n long").json(str(folder / "in")).groupBy("n")
    out = df.transformWithStateInPandas(Draw(), outputStructType="n long", outputMode="Update", timeMode="None")

    def count(batch: DataFrame, _: int) -> None:
        assert batch.count() == 60

    writer = out.writeStream.outputMode("update").option("checkpointLocation", str(folder / "job"))
    writer.trigger(availableNow=True).foreachBatch(count).start().awaitTermination()
    return folder / "job"


@pytest.mark.long
def test_random_values_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    own = spark.newSession()
    job = drawn(own, tmp_path)
    batch = read_batch(open_storage(job), Batch(plan_savepoint(job, "first").run().manifest.batch))
    assert batch.settings.encoding == "avro"
    (operator,) = read_operator_files(open_storage(job), batch.batch)
    (store,) = read_whole_stores(open_storage(job), operator)
    state = open_state(open_storage(job), batch, store)
    codec = StoreCodec(store, batch.settings, state.numbers)
    rows = [row for partition in range(batch.settings.partitions) for row in state.iter_rows(partition)]
    assert len(rows) == 60 * (1 + 2 + 2)  # a value, a list with its count, two entries of the map
    for key, value in rows:
        of = codec.of(codec.family_of(key))
        assert of.write_key(of.read_key(key)) == key
        assert of.write_value(of.read_value(value)) == value

    # Key n gets the value of key n + 1, written from Python values.
    values: dict[Any, Any] = {}

    def note(row: millpond.StateRow) -> millpond.StateRow:
        values[row.table, repr(row.key)] = row.value
        return row

    millpond.plan_edit_savepoint(job, "first", "x", edit=note).preview()
    names = {table: [key for name, key in values if name == table] for table, _ in values}
    next_of = {(t, key): (t, keys[(i + 1) % len(keys)]) for t, keys in names.items() for i, key in enumerate(keys)}
    millpond.plan_edit_savepoint(
        job, "first", "next", edit=lambda row: millpond.StateRow(row.table, row.key, values[next_of[row.table, repr(row.key)]])
    ).run()
    plan_restore(job, "next", tmp_path / "next").run()
    for variable in ("one", "many", "each"):
        before, after = (read_variable(own, place, variable) for place in (job, tmp_path / "next"))
        assert sorted(before.values()) == sorted(after.values())
        assert len(before) == len(after) == (120 if variable == "each" else 60)
        assert sum(before[key] == after[key] for key in before) < 3


def read_variable(spark: SparkSession, place: Path, variable: str) -> dict[str, str]:
    """What Spark's own reader finds: key -> value."""
    df = spark.read.format("statestore").option("path", str(place)).option("stateVarName", variable)
    if variable != "one":
        df = df.option("flattenCollectionTypes", "false")
    found: dict[str, str] = {}
    for row in df.load().collect():
        if variable == "each":
            found |= {f"{row['key']} {user}": str(value) for user, value in row["map_value"].items()}
        else:
            found[str(row["key"])] = str(row["value" if variable == "one" else "list_value"])
    return found
