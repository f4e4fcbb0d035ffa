"""Every event meets the control state of its batch: all records so far, in order, in every shard.

The oracle applies the same records to a dict, batch by batch.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import millpond
from inputs.event_file import write_event_file
from millpond.errors import DefinitionError, RequestError
from millpond.spark.broadcast.stream import broadcast

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from millpond.spark.broadcast.control import Control

pytestmark = pytest.mark.spark
EVENT = "id long, user string, amount long"
CONTROL = "rule string, least long, ratio double, label string, action string, version long, seq long"
OUTPUT = "id long, amount long, matches string, chunk_rows long"


def match(events: pd.DataFrame, control: Control) -> pd.DataFrame:
    """The rules that an amount meets, with their values, so that a wrong value shows."""
    met = {
        amount: json.dumps([[r, v["least"], v["ratio"], v["label"]] for r, v in sorted(control.items()) if amount >= v["least"]])
        for amount in set(events["amount"])
    }
    return events.assign(matches=events["amount"].map(met), chunk_rows=len(events))


class BroadcastJob:
    """A broadcast over files; each call is one batch."""

    def __init__(self, spark: SparkSession, folder: Path, *, shards: int = 2, partitions: int = 2, keep_versions: int = 1000):
        self.spark, self.folder = spark, folder
        self.shards, self.partitions, self.keep_versions = shards, partitions, keep_versions
        self.written = 0
        self.rows: list[Any] = []
        for name in ("events", "control"):
            (folder / name).mkdir()

    def stream(self) -> DataFrame:
        read = self.spark.readStream
        return broadcast(
            read.schema(EVENT).json(str(self.folder / "events")),
            read.schema(CONTROL).json(str(self.folder / "control")),
            match,
            output=OUTPUT,
            key="rule",
            order="seq",
            shards=self.shards,
            partitions=self.partitions,
            keep_versions=self.keep_versions,
        )

    def batch(self, events: list[dict[str, Any]], control: list[dict[str, Any]]) -> list[Any]:
        """Run one batch with these; returns the output."""
        self.written += 1
        for name, rows in (("events", events), ("control", control)):
            if rows:
                write_event_file(self.folder / name, self.written, rows)
        out: list[Any] = []

        def collect(frame: DataFrame, _: int) -> None:
            out.extend(frame.collect())

        with millpond.start(
            self.stream(),
            table="rules",
            pond=self.folder / "pond",
            trigger="available-now",
            output_mode="append",
            sink=collect,
            partitions=self.partitions,
        ) as job:
            assert job.wait_for_end(120)
        self.rows += out
        return out


def events_of(batch: int, rows: int = 50) -> list[dict[str, Any]]:
    big = 2**53 + 1  # a double would change it
    return [{"id": batch * 1000 + i, "user": f"u{i % 7}", "amount": big + i if i % 5 == 0 else i} for i in range(rows)]


def expected(events: list[dict[str, Any]], rules: dict[str, tuple[Any, ...]], version: int) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            e["id"],
            e["amount"],
            json.dumps([[rule, *values] for rule, values in sorted(rules.items()) if e["amount"] >= values[0]]),
            version,
        )
        for e in events
    )


def found(rows: list[Any]) -> Counter[tuple[Any, ...]]:
    return Counter((r.id, r.amount, r.matches, r.control_version) for r in rows)


@pytest.mark.long
def test_every_event_meets_the_control_state_of_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    run = BroadcastJob(spark, tmp_path)
    assert found(run.batch(events_of(0), [])) == expected(events_of(0), {}, 0)
    records = [  # in no order: only seq counts
        {"rule": "b", "least": 2**53 + 9, "ratio": 0.1, "label": "é", "seq": 2},
        {"rule": "a", "least": 10, "seq": 1},
        {"rule": "a", "least": 20, "ratio": 1e300, "seq": 3},
    ]
    rules: dict[str, tuple[Any, ...]] = {"a": (20, 1e300, None), "b": (2**53 + 9, 0.1, "é")}
    assert found(run.batch(events_of(1), records)) == expected(events_of(1), rules, 3)
    assert found(run.batch(events_of(2), [])) == expected(events_of(2), rules, 3)
    records = [
        {"rule": "b", "action": "remove", "seq": 4},
        {"rule": "a", "action": "rollback", "version": 2, "seq": 5},
        {"rule": "c", "action": "explode", "seq": 6},
        {"rule": None, "least": 5, "seq": 7},
        {"rule": "a", "action": "rollback", "version": 99, "seq": 8},
        {"rule": "zzz", "action": "remove", "seq": 9},
    ]
    rules = {"a": (10, None, None)}
    assert found(run.batch(events_of(3), records)) == expected(events_of(3), rules, 5)
    assert found(run.batch([], [{"rule": "b", "action": "rollback", "version": 3, "seq": 10}])) == Counter()
    rules["b"] = (2**53 + 9, 0.1, "é")
    assert found(run.batch(events_of(5), [])) == expected(events_of(5), rules, 6)
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        rows = {row["rule"]: row for row in pond["rules_control"].scan()}
        assert {rule: (row["least"], row["ratio"], row["label"]) for rule, row in rows.items()} == rules
        assert {rule: (row["version"], row["replaced"]) for rule, row in rows.items()} == {"a": (5, 3), "b": (6, None)}
        assert rows["a"]["since_batch"] == 3
        listed = [(r["version"], r["rule"], r["action"], r["removed"], r["replaced"]) for r in pond["rules_versions"].scan()]
        assert listed == [
            (1, "a", "put", False, None),
            (2, "b", "put", False, None),
            (3, "a", "put", False, 1),
            (4, "b", "remove", True, 2),
            (5, "a", "rollback", False, 3),
            (6, "b", "rollback", False, None),
        ]
        errors = list(pond["rules_errors"].scan())
        assert [(r["rule"], json.loads(r["record"]).get("version"), r["since_batch"]) for r in errors] == [
            ("c", None, 3),
            (None, None, 3),
            ("a", 99, 3),
            ("zzz", None, 3),
        ]
        assert pond["rules_control"].get(rule="a") == rows["a"]
        assert pond["rules_control"].count() == 2


@pytest.mark.long
def test_records_are_in_exact_order_beside_one_that_has_none(spark: SparkSession, tmp_path: Path) -> None:
    run = BroadcastJob(spark, tmp_path)
    late = 2**60  # as a double it equals the next number
    records: list[dict[str, Any]] = [{"rule": "a", "least": n, "label": "z" * (9 - n), "seq": late + n} for n in range(9)]
    records += [{"rule": "a", "least": 99}, {"rule": "b", "least": 1}]
    rules = {"a": (8, None, "z"), "b": (1, None, None)}
    assert found(run.batch(events_of(0), records)) == expected(events_of(0), rules, 11)
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        versions = [(row["version"], row["rule"], row["least"]) for row in pond["rules_versions"].scan()]
        assert [(rule, least) for _, rule, least in versions] == [("a", 99), ("b", 1), *(("a", n) for n in range(9))]


@pytest.mark.long
def test_each_shard_has_a_partition_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    from millpond.schema.shards import shard_values

    for shards, partitions in ((2, 2), (8, 8), (5, 16)):
        values = spark.createDataFrame([(v,) for v in shard_values(shards, partitions)], "shard int")
        placed = values.repartition(partitions, "shard").select(F.spark_partition_id().alias("p")).distinct().count()
        assert placed == shards


@pytest.mark.long
def test_old_versions_are_forgotten_and_cant_be_gone_back_to(spark: SparkSession, tmp_path: Path) -> None:
    run = BroadcastJob(spark, tmp_path, keep_versions=2)
    records = [{"rule": "a", "least": n, "seq": n} for n in range(1, 6)]
    run.batch(events_of(0, 2), records)
    run.batch(events_of(1, 2), [{"rule": "a", "action": "rollback", "version": 3, "seq": 6}])
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        assert [r["version"] for r in pond["rules_versions"].scan()] == [4, 5]
        (error,) = pond["rules_errors"].scan()
        assert "forgotten" in error["reason"]
        assert pond["rules_control"].get(rule="a")["least"] == 5


@pytest.mark.long
def test_where_fewer_versions_are_kept_the_rest_is_forgotten_at_the_next(spark: SparkSession, tmp_path: Path) -> None:
    run = BroadcastJob(spark, tmp_path, keep_versions=9)
    run.batch(events_of(0, 2), [{"rule": "a", "least": n, "seq": n} for n in range(1, 8)])
    run.keep_versions = 3
    run.batch(events_of(1, 2), [{"rule": "a", "least": 8, "seq": 8}])
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        assert [r["version"] for r in pond["rules_versions"].scan()] == [6, 7, 8]


@pytest.mark.long
def test_a_version_has_the_same_values_in_its_batch_and_in_later_ones(spark: SparkSession, tmp_path: Path) -> None:
    """A float has 32 bits, and fewer digits than its JSON; a decimal has all of its digits."""
    kinds = {"f": "float", "d": "double", "price": "decimal(38,18)", "n": "long", "raw": "binary", "flag": "boolean"}
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    values = {"f": 0.1, "d": 0.1, "price": "12345678901234567890.123456789012345678", "n": 2**53 + 1, "raw": "AP8=", "flag": True}
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "control" / "1.json").write_text(json.dumps({"rule": "a", "seq": 1, **values}))

    def with_rules(events: pd.DataFrame, control: Control) -> pd.DataFrame:
        return events.assign(met=repr(sorted(control["a"].items())))[["id", "met"]]

    def collect(frame: DataFrame, _: int) -> None:
        met.extend((r.id, r.met, r.control_version) for r in frame.collect())

    met: list[tuple[int, str, int]] = []
    for batch in range(2):
        write_event_file(tmp_path / "events", batch, [{"id": batch}])
        stream = broadcast(
            spark.readStream.schema(EVENT).json(str(tmp_path / "events")),
            spark.readStream.schema(f"rule string, seq long, {columns}").json(str(tmp_path / "control")),
            with_rules,
            output="id long, met string",
            key="rule",
            order="seq",
            shards=1,
            partitions=1,
        )
        options = {"trigger": "available-now", "output_mode": "append", "partitions": 1}
        with millpond.start(stream, table="told", pond=tmp_path / "pond", sink=collect, **options) as job:
            assert job.wait_for_end(120)
    assert [(batch, version) for batch, _, version in met] == [(0, 1), (1, 1)]
    assert met[0][1] == met[1][1]
    assert "0.10000000149011612" in met[0][1]


def change_all(control: Any) -> list[str]:
    """Try to change the control state in all ways of a dict of dicts; returns the ways that worked."""
    row = control["a"]
    ways: dict[str, Any] = {
        "row[...] =": lambda: row.__setitem__("least", 99),
        "row[...] +=": lambda: operator.setitem(row, "least", row["least"] + 1),
        "del row[...]": lambda: operator.delitem(row, "least"),
        "row |=": lambda: operator.ior(row, {"least": 99}).pop("least"),
        "row.update": lambda: row.update(least=99),
        "row.pop": lambda: row.pop("least"),
        "row.clear": lambda: row.clear(),
        "row.setdefault": lambda: row.setdefault("most", 1),
        "control[...] =": lambda: operator.setitem(control, "z", {}),
        "del control[...]": lambda: operator.delitem(control, "a"),
        "control.version =": lambda: setattr(control, "version", 99),
        "control.clear": lambda: control.clear(),
        "rows[...] =": lambda: operator.setitem(control._rows, "a", (99, {})),
    }
    passed = []
    for name, change in ways.items():
        try:
            change()
        except (TypeError, AttributeError):
            continue
        passed.append(name)
    return passed


@pytest.mark.long
def test_a_function_cant_change_the_control_state_that_later_events_meet(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "control" / "1.json").write_text(json.dumps({"rule": "a", "least": 10, "seq": 1}))

    def meddle(events: pd.DataFrame, control: Control) -> pd.DataFrame:
        passed = change_all(control)
        return events[["id"]].assign(met=json.dumps([passed, {k: dict(v) for k, v in control.items()}]))

    def collect(frame: DataFrame, _: int) -> None:
        met.extend((r.id, r.met, r.control_version) for r in frame.collect())

    met: list[tuple[int, str, int]] = []
    for batch in range(3):  # the first reads the record, the second the state, the third the copy in the worker
        write_event_file(tmp_path / "events", batch, [{"id": batch}])
        if batch == 1:
            continue
        stream = broadcast(
            spark.readStream.option("maxFilesPerTrigger", 1).schema("id long").json(str(tmp_path / "events")),
            spark.readStream.schema("rule string, least long, seq long").json(str(tmp_path / "control")),
            meddle,
            output="id long, met string",
            key="rule",
            order="seq",
            shards=1,
            partitions=1,
        )
        options = {"trigger": "available-now", "output_mode": "append", "partitions": 1}
        with millpond.start(stream, table="met", pond=tmp_path / "pond", sink=collect, **options) as job:
            assert job.wait_for_end(120)
    assert sorted(met) == [(batch, json.dumps([[], {"a": {"least": 10}}]), 1) for batch in range(3)]


def test_a_record_that_isnt_json_is_shown_with_its_text_and_file(spark: SparkSession, tmp_path: Path) -> None:
    """So is one with a value of a wrong type; the other records of the batch are taken."""
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    bad = ['{"rule": "b", "least": ', "no JSON at all", '{"rule": "c", "least": "many", "seq": 4}', '{"rule": null, "seq": 5}']
    good = json.dumps({"rule": "a", "least": 10, "seq": 1})
    (tmp_path / "control" / "1 of it.json").write_text("\n".join([*bad, good]))
    stream = broadcast(
        spark.readStream.schema("id long, amount long").json(str(tmp_path / "events")),
        spark.readStream.schema("rule string, least long, seq long, _corrupt_record string").json(str(tmp_path / "control")),
        match_nothing,
        output="id long",
        key="rule",
        order="seq",
        shards=2,
        partitions=2,
    )
    options = {"trigger": "available-now", "output_mode": "append", "partitions": 2}
    with millpond.start(stream, table="rules", pond=tmp_path / "pond", **options) as job:
        assert job.wait_for_end(120)
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        (row,) = pond["rules_control"].scan()
        assert set(row) == {"rule", "version", "least", "since", "since_batch", "replaced"}
        assert (row["rule"], row["least"], row["version"]) == ("a", 10, 1)
        errors = {row["record"]: row["reason"] for row in pond["rules_errors"].scan()}
    assert set(errors) == {*bad[:3], "{}"}
    assert errors["{}"] == "rule is NULL"
    assert all("1%20of%20it.json" in errors[text] for text in bad[:3])


def match_nothing(events: pd.DataFrame, control: Control) -> pd.DataFrame:
    return events[["id"]]


@pytest.mark.long
def test_another_number_of_shards_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run = BroadcastJob(spark, tmp_path)
    run.batch(events_of(0, 5), [{"rule": "a", "least": 1, "seq": 1}])
    run.shards = 1
    with pytest.raises(DefinitionError) as refused:
        run.batch(events_of(1, 5), [])
    assert refused.value.condition == "DEFINITION_CHANGED"
    run.shards = 2
    assert found(run.rows[-5:]) == expected(events_of(0, 5), {"a": (1, None, None)}, 1)
    assert len(run.batch([], [])) == 5  # the refused start has lost nothing


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"key": "nothing"}, "nothing"),
        ({"order": "label"}, "label"),
        ({"shards": 0}, "0 shards"),
        ({"shards": 3}, "3 shards"),
        ({"by": "nobody"}, "nobody"),
        ({"keep_versions": 0}, "keep_versions"),
        ({"output": "what is this"}, "schema"),
        ({"output": "id long, control_version long"}, "control_version"),
        ({"process": "no function"}, "process"),
        ({"process": StatefulProcessor}, "process"),
        ({"shards": 1.5}, "1.5 shards"),
        ({"shards": True}, "True shards"),
        ({"keep_versions": 1.5}, "keep_versions is 1.5"),
        ({"keep_versions": "many"}, "keep_versions is 'many'"),
        ({"control": "rule double, seq long"}, "control column rule is of type double"),
        ({"control": "rule float, seq long"}, "control column rule is of type float"),
        ({"control": "rule timestamp, seq long", "order": "rule"}, "control column rule is of type timestamp"),
        ({"control": "rule string, since long, seq long"}, "a column since"),
        ({"control": "rule string, Replaced long, seq long"}, "a column Replaced"),
        ({"control": "rule string, Action string, seq long"}, "a column Action"),
        ({"control": "rule string, action int, seq long"}, "control column action is of type int"),
        ({"control": "rule string, version string, seq long"}, "control column version is of type string"),
        ({"control": "rule string, version double, seq long"}, "control column version is of type double"),
        ({"control": "action string, seq long", "key": "action"}, "the key is called action"),
        ({"control": "reason string, seq long", "key": "reason"}, "the key is called reason"),
        ({"control": "rule string, list array<int>, seq long"}, "control column list is of type array<int>"),
        ({"drawn": True}, "change when a task runs again"),
    ],
)
def test_a_broadcast_that_cant_be(spark: SparkSession, tmp_path: Path, wrong: dict[str, Any], what: str) -> None:
    wrong = dict(wrong)
    events, control = tmp_path / "events", tmp_path / "control"
    events.mkdir()
    control.mkdir()
    given: dict[str, Any] = {
        "events": spark.readStream.schema(EVENT).json(str(events)),
        "control": spark.readStream.schema(CONTROL).json(str(control)),
        "process": match,
        "output": OUTPUT,
        "key": "rule",
        "order": "seq",
        "partitions": 2,
    }
    if "control" in wrong:
        wrong["control"] = spark.readStream.schema(wrong["control"]).json(str(control))
    if wrong.pop("drawn", False):
        given["events"] = given["events"].withColumn("drawn", sf.rand())
        assert broadcast(**given, by="id").isStreaming  # columns that nobody asks for don't count
    with pytest.raises(RequestError) as refused:
        broadcast(**{**given, **wrong})
    assert refused.value.condition == "INVALID_REQUEST"
    assert what in refused.value.message


@pytest.mark.long
def test_two_broadcasts_of_one_query_have_each_its_own_control_state(spark: SparkSession, tmp_path: Path) -> None:
    """They run in the same workers, at the same versions."""
    read = spark.readStream
    (tmp_path / "events").mkdir()
    events = read.schema(EVENT).option("maxFilesPerTrigger", 1).json(str(tmp_path / "events"))
    streams = []
    for number, rule in enumerate(("first", "second")):
        folder = tmp_path / rule
        folder.mkdir()
        (folder / "0.json").write_text(json.dumps({"rule": rule, "least": number, "ratio": 0.5, "label": rule, "seq": 1}))
        control = read.schema(CONTROL).json(str(folder))
        streams.append(
            broadcast(events, control, match, output=OUTPUT, key="rule", order="seq", shards=2, partitions=2).withColumn(
                "of", sf.lit(rule)
            )
        )
    out: list[Any] = []
    writer = streams[0].unionByName(streams[1]).writeStream.outputMode("append").trigger(availableNow=True)
    for batch in range(3):
        write_event_file(tmp_path / "events", batch, events_of(batch))
    with with_rocksdb(spark):
        query = (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda frame, _: out.extend(frame.collect()))
            .start()
        )
        assert query.awaitTermination(120)
    assert len(out) == 2 * 3 * 50
    for row in out:
        least = 0 if row.of == "first" else 1
        met = [[row.of, least, 0.5, row.of]] if row.amount >= least else []
        assert json.loads(row.matches) == met


@contextmanager
def with_rocksdb(spark: SparkSession) -> Iterator[None]:
    """Choose RocksDB, which transformWithState needs, for a query that `start` doesn't start."""
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        yield
    finally:
        spark.conf.set(provider, str(before))


@pytest.mark.parametrize("type_", ["map<string, string>", "variant"])
def test_events_that_cant_be_hashed_go_by_other_columns(spark: SparkSession, tmp_path: Path, type_: str) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    events = spark.readStream.schema(f"id long, tags {type_}").json(str(tmp_path / "events"))
    control = spark.readStream.schema(CONTROL).json(str(tmp_path / "control"))
    options: dict[str, Any] = {"output": "id long", "key": "rule", "order": "seq", "partitions": 2}
    with pytest.raises(RequestError) as refused:
        broadcast(events, control, match, **options)
    assert "tags" in refused.value.message
    assert broadcast(events, control, match, by="id", **options).columns == ["id", "control_version"]
