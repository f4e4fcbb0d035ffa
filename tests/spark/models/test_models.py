"""Models are swapped while a job runs: every result is of the version in its row, and a bad model or record stops nothing.

The test computes a model's results from its weights.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

import millpond
from inputs.event_file import write_event_file
from inputs.small_models import by_name, doubled, linear, logarithm, two_numbers
from millpond.errors import CheckpointError, DefinitionError, RequestError
from millpond.spark.models.formats import Onnx
from millpond.spark.models.scoring import _Counted, _scores, row_hashes
from millpond.spark.models.store import ModelStore
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
RECORD = "id long, kind string, a double, b double"


class ModelJob:
    """A job that serves models; each call is one batch."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.spark, self.folder = spark, folder
        self.options = {"inputs": ["a", "b"], "type_column": "kind", "shards": 2, **options}
        self.models = folder / "published"
        self.written = 0
        (folder / "records").mkdir()
        self.models.mkdir()

    def batch(self, records: list[dict[str, Any]]) -> dict[int, Any]:
        """Run one batch; returns its rows by id."""
        self.written += 1
        if records:
            write_event_file(self.folder / "records", self.written, records)
        out: list[Any] = []

        def collect(frame: DataFrame, _: int) -> None:
            out.extend(frame.collect())

        scored = millpond.serve_models(
            self.spark.readStream.schema(RECORD).json(str(self.folder / "records")),
            millpond.read_models(self.spark, self.models),
            pond=self.folder / "pond",
            partitions=2,
            **self.options,
        )
        with millpond.start(
            scored,
            table="wine",
            pond=self.folder / "pond",
            trigger="available-now",
            output_mode="append",
            sink=collect,
            partitions=2,
        ) as job:
            assert job.wait_for_end(120)
        assert len({r.id for r in out}) == len(out)
        return {r.id: r for r in out}


def records(first: int, kinds: str = "rw") -> list[dict[str, Any]]:
    return [{"id": first + i, "kind": kinds[i % len(kinds)], "a": i * 0.5, "b": -1.0 * i} for i in range(20)]


def close(found: float | None, wanted: float) -> bool:
    return found is not None and math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-6)


def test_models_are_swapped_and_gone_back_to(spark: SparkSession, tmp_path: Path) -> None:
    run = ModelJob(spark, tmp_path)
    scored = run.batch(records(0))
    assert all(r.result is None and r.model is None and "no model serves" in r.error for r in scored.values())
    first = millpond.publish_model(run.models, linear([2.0, 1.0], 0.5), name="first", type="r", description="the first one").sha256
    scored = run.batch(records(100))
    for r in scored.values():
        if r.kind == "r":
            assert (r.model, r.model_version, r.error) == ("first", 1, None)
            assert close(r.result, 2 * r.a + r.b + 0.5)
            assert r.duration_seconds > 0
        else:
            assert (r.model, r.model_version, r.result) == (None, None, None)
    second = millpond.publish_model(run.models, linear([0.0, 3.0], 0.0), name="second", type="r").sha256
    millpond.publish_model(run.models, by_name("a", "b"), name="product", type="w")
    for r in run.batch(records(200)).values():
        assert (r.model, r.model_version) == (("second", 2) if r.kind == "r" else ("product", 3))
        assert close(r.result, 3 * r.b if r.kind == "r" else r.a * r.b)
    millpond.roll_back_model(run.models, 1, type="r")
    millpond.remove_model(run.models, type="w")
    for r in run.batch(records(300)).values():
        assert (r.model, r.model_version) == (("first", 4) if r.kind == "r" else (None, None))
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        (running,) = pond["wine_models"].scan()
        assert (running["type"], running["name"], running["version"], running["sha256"]) == ("r", "first", 4, first)
        versions = {r["version"]: r for r in pond["wine_versions"].scan()}
        assert [(v, r["name"], r["action"]) for v, r in versions.items()] == [
            (1, "first", "put"),
            (2, "second", "put"),
            (3, "product", "put"),
            (4, "first", "rollback"),
            (5, None, "remove"),
        ]
        assert versions[2]["sha256"] == second
        statistics = {(r["type"], r["name"], r["version"]): r for r in pond["wine_statistics"].scan()}
        assert {key: (r["usage"], r["errors"]) for key, r in statistics.items()} == {
            ("r", "first", 1): (10, 0),
            ("r", "second", 2): (10, 0),
            ("w", "product", 3): (10, 0),
            ("r", "first", 4): (10, 0),
        }
        one = statistics["r", "first", 1]
        assert one["description"] == "the first one"
        assert 0 < one["fastest"] <= one["average"] <= one["slowest"]
        assert one["average"] == one["seconds"] / one["usage"]
        assert one["since"] == versions[1]["since"]
        assert pond["wine_statistics"].get(type="w", name="product", version=3) == statistics["w", "product", 3]
    # Three models were published, and their equal bytes are stored once.
    assert len(list((tmp_path / "pond" / "models").iterdir())) == 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["a%20b c", "a?b#c"])
def test_models_are_found_whatever_their_folder_is_called(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    run = ModelJob(spark, tmp_path / name)
    published = millpond.publish_model(run.models, linear([2.0, 1.0], 0.5), name="first", type="r")
    scored = run.batch(records(0, "r"))
    assert all(r.model == "first" and close(r.result, 2 * r.a + r.b + 0.5) for r in scored.values())
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]
    with millpond.open(tmp_path / name / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        bounds = millpond.Bounds(contains_file=published.record, wait_seconds=60)
        assert pond["wine_models"].get(type="r", bounds=bounds)["name"] == "first"


@pytest.mark.long
def test_a_model_that_is_no_good_replaces_nothing(spark: SparkSession, tmp_path: Path) -> None:
    elsewhere, allowed = tmp_path / "elsewhere", tmp_path / "allowed"
    elsewhere.mkdir()
    allowed.mkdir()
    run = ModelJob(spark, tmp_path, max_bytes=10_000, sample=[1.0, 1.0], allow=[allowed])
    good = linear([1.0, 1.0], 0.0)
    millpond.publish_model(run.models, good, name="good", type="r")
    run.batch([])
    (elsewhere / "good.onnx").write_bytes(good)
    big = allowed / "big.onnx"
    with big.open("wb") as file:
        os.truncate(file.fileno(), 2 << 30)  # 2 GiB that take no disk
    bad: dict[str, dict[str, Any]] = {
        "no bytes": {"content": b""},
        "doesn't load": {"content": b"nonsense"},
        "doesn't load: ValueError: it takes a matrix": {"content": linear([1.0], 0.0)},
        "it takes the inputs": {"content": by_name("a", "c")},
        "doesn't score a sample": {"content": two_numbers()},
        "but the limit is": {"uri": str(big)},
        "doesn't exist": {"uri": str(allowed / "nobody.onnx")},
        "PLACE_NOT_ALLOWED": {"uri": str(elsewhere / "good.onnx")},
        "would run code": {"content": good, "format": "pickle"},
        "isn't known": {"content": good, "format": "myown"},
        "no name": {"content": good, "name": ""},
        "needs either a share or shadow": {"content": good, "type": "r/x"},
        "only a further one": {"content": good, "share": 0.5},
        "at most 1, not 2": {"content": good, "type": "r/x", "share": 2.0},
    }
    for number, (_, given) in enumerate(bad.items()):
        record = {"type": "r", "name": f"bad{number}", "published_ns": number, **given}
        if "content" in given:  # written by hand, because publish_model refuses some of these itself
            record["uri"] = str(allowed / f"bad{number}.onnx")
            Path(record["uri"]).write_bytes(record.pop("content"))
        (run.models / f"{number:020d}-x.json").write_text(json.dumps(record))
    (run.models / "0-broken.json").write_text("{this is no record")
    (run.models / "0-null.json").write_text(json.dumps({"name": "nobody's", "published_ns": 5}))
    for r in run.batch(records(0, "r")).values():
        assert (r.model, r.model_version) == ("good", 1)
        assert close(r.result, r.a + r.b)
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        errors = list(pond["wine_model_errors"].scan())
        reasons = [row["reason"] for row in errors]
        for what in bad:
            assert any(what in reason for reason in reasons), (what, reasons)
        assert sum("type is NULL" in reason for reason in reasons) == 1
        assert len(reasons) == len(bad) + 2
        (broken,) = [row for row in errors if row["record"] == "{this is no record"]
        assert "0-broken.json" in broken["reason"]


@pytest.mark.long
def test_models_share_a_type_and_others_run_in_their_shadow(spark: SparkSession, tmp_path: Path) -> None:
    run = ModelJob(spark, tmp_path, by="id", shards=1)
    for type_, weight, part in (
        ("r", 1.0, {}),
        ("r/b", 2.0, {"share": 0.3}),
        ("r/c", 3.0, {"share": 0.2}),
        ("r/s", 4.0, {"shadow": True}),
    ):
        millpond.publish_model(run.models, linear([weight, 0.0], 0.0), name=type_.replace("/", "-"), type=type_, **part)
    given = [{"id": n, "kind": "r", "a": 1.0, "b": 0.0} for n in range(1000)]
    first = run.batch(given)
    weights = {"r": 1.0, "r-b": 2.0, "r-c": 3.0}
    assert all(close(r.result, weights[r.model]) for r in first.values())
    owners = Counter(r.model for r in first.values())
    # Five standard deviations of so many coin tosses.
    assert all(abs(owners[name] - 1000 * share) < 75 for name, share in (("r", 0.5), ("r-b", 0.3), ("r-c", 0.2))), owners
    assert {n: r.model for n, r in run.batch(given).items()} == {n: r.model for n, r in first.items()}
    millpond.remove_model(run.models, type="r/c")
    after = run.batch(given)
    # Only records that must change their model do.
    assert all(r.model == ("r" if first[n].model == "r-c" else first[n].model) for n, r in after.items())
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        usage = {row["type"]: row["usage"] for row in pond["wine_statistics"].scan()}
        assert usage["r/s"] == 3000
        assert usage["r/b"] == 3 * owners["r-b"]
        assert usage["r/c"] == 2 * owners["r-c"]
        assert usage["r"] + usage["r/b"] + usage["r/c"] == 3000


@pytest.mark.long
def test_a_record_that_cant_be_scored_is_an_error_row(spark: SparkSession, tmp_path: Path) -> None:
    run = ModelJob(spark, tmp_path, inputs=["a"])
    millpond.publish_model(run.models, logarithm(), name="log", type="r")
    millpond.publish_model(run.models, logarithm(), name="beside", type="r/b", shadow=True)
    given = [
        {"id": 1, "kind": "r", "a": math.e},
        {"id": 2, "kind": "r", "a": -1.0},
        {"id": 3, "kind": "r", "a": None},
        {"id": 4, "kind": None, "a": 1.0},
        {"id": 5, "kind": "r", "a": 0.0},
        {"id": 6, "kind": "r/b", "a": 1.0},
    ]
    scored = run.batch(given)
    assert close(scored[1].result, 1.0)
    assert scored[1].error is None
    assert {i: r.error for i, r in scored.items() if r.error} == {
        2: "the result is nan",
        3: "a is NULL",
        4: "the record has no type",
        5: "the result is -inf",
        6: "a record's type can't have a '/': 'r/b'",
    }
    assert all(scored[i].result is None for i in (2, 3, 4, 5, 6))
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home", wait_seconds=60) as pond:
        row = pond["wine_statistics"].get(type="r", name="log", version=1)
        assert row["average"] > 0
        assert row["slowest"] == max(r.duration_seconds for r in scored.values() if r.result is not None)
        assert (row["usage"], row["errors"]) == (1, 3)


@pytest.mark.long
def test_a_record_comes_out_as_it_went_in(spark: SparkSession, tmp_path: Path) -> None:
    """Also values that pandas lacks, and times that a clock shows twice."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        kept = spark.sql(
            """
            select 1L as id, 1.0D as a, timestamp '2026-10-25 00:10:00Z' as at, array(timestamp '2026-07-01 00:00:00Z') as times,
              array(1L, null, 9007199254740993L) as whole, double('NaN') as x, 9007199254740993L as n,
              cast('12345678901234567890.5' as decimal(38,1)) as price, binary('\\0') as raw, date '0001-01-01' as day,
              timestamp_ntz '2026-10-25 02:10:00' as local, struct(1 as u, 'v' as v) as pair, map('k', 1L) as map, true as flag
            union all
            select 2L, 2.0D, timestamp '2026-10-25 01:10:00Z', null, null, null, null, null, null, null, null, null, null, null
            """
        )
        for number in (1, 2):  # each in its own chunk
            kept.where(f"id = {number}").coalesce(1).write.mode("append").parquet(str(tmp_path / "records"))
        millpond.publish_model(tmp_path / "published", linear([1.0, 0.0], 0.0), name="same")
        out: list[Any] = []
        # Spark's own texts, which don't depend on this machine's clock; they tell NaN from NULL.
        texts = ", ".join(f"cast({c} as string) as {c}" for c in kept.columns)

        def collect(frame: DataFrame, _: int) -> None:
            out.extend(frame.selectExpr("*", f"to_json(struct({texts})) as texts").collect())

        frame = spark.readStream.schema(kept.schema).parquet(str(tmp_path / "records")).withColumn("b", sf.lit(0.0))
        scored = millpond.serve_models(
            frame,
            millpond.read_models(spark, tmp_path / "published"),
            pond=tmp_path / "pond",
            inputs=["a", "b"],
            by="id",
            shards=1,
            partitions=1,
        )
        with millpond.start(
            scored, table="t", pond=tmp_path / "pond", trigger="available-now", output_mode="append", partitions=1, sink=collect
        ) as job:
            assert job.wait_for_end(120)
        wanted = kept.selectExpr("id", f"to_json(struct({texts})) as texts").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert {r.id: (r.texts, r.result) for r in out} == {r.id: (r.texts, float(r.id)) for r in wanted}


@pytest.mark.long
def test_other_inputs_on_a_checkpoint_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The running models were checked for these inputs, in this order."""
    run = ModelJob(spark, tmp_path)
    millpond.publish_model(run.models, linear([1.0, 10.0], 0.0), name="one", type="r")
    run.batch(records(0))
    for inputs in (["b", "a"], ["a"]):
        run.options["inputs"] = inputs
        with pytest.raises(DefinitionError) as refused:
            run.batch([])
        assert refused.value.condition == "DEFINITION_CHANGED"
        assert "inputs: a double, b double" in refused.value.message
    run.options["inputs"] = ["a", "b"]
    assert all(close(r.result, r.a + 10 * r.b) for r in run.batch(records(200)).values() if r.kind == "r")


class _LastDigit:
    """A model of whole numbers whose result shows each digit."""

    def score(self, columns: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        result: np.ndarray[Any, Any] = columns[0] % 10
        return result


def test_a_large_number_is_scored_alike_beside_a_null() -> None:
    """Beside a NULL, pandas turns whole numbers into floating-point ones."""
    large = 2**53 + 1
    for given in ([large], [large, None], [None, large, 12]):
        scores = _scores(_LastDigit(), {"a": pa.chunked_array([pa.array(given, pa.int64())])}, _Counted())
        assert [None if error else result for result, error in zip(scores.results, scores.errors, strict=True)] == [
            None if n is None else n % 10 for n in given
        ]


def test_a_records_time_is_its_share_of_the_call_whatever_the_others_gave() -> None:
    class Logarithm:
        def score(self, columns: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
            return np.log(columns[0])

    counted = _Counted()
    with np.errstate(all="ignore"):
        scores = _scores(Logarithm(), {"a": pa.chunked_array([pa.array([1.0] + [-1.0] * 999)])}, counted)
    (each,) = set(scores.seconds.tolist())
    assert (counted.usage, counted.errors, counted.slowest, counted.fastest) == (1, 999, each, each)
    assert counted.seconds == each


@pytest.mark.long
def test_a_model_that_was_lost_or_altered_ends_the_job_before_a_record_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    run = ModelJob(spark, tmp_path)
    content = linear([1.0, 2.0], 0.0)
    digest = millpond.publish_model(run.models, content, name="one", type="r").sha256
    assert digest is not None
    run.batch([])
    kept = tmp_path / "pond" / "models" / digest
    altered = bytearray(content)
    altered[-1] ^= 1
    for damage in (None, bytes(altered)):
        kept.unlink()
        if damage is not None:
            kept.write_bytes(damage)
        with pytest.raises(StreamingQueryException, match="MODEL_LOST"):
            run.batch(records(0, "r") if damage is None else [])
        kept.write_bytes(content)
    scored = run.batch([])
    assert len(scored) == 20
    assert all(close(r.result, r.a + 2 * r.b) for r in scored.values())


def touch(file: Path, content: bytes) -> None:
    os.utime(file, ns=(1, 1))


def delete(file: Path, content: bytes) -> None:
    file.unlink()


def cut(file: Path, content: bytes) -> None:
    file.write_bytes(content[:-1])


def alter(file: Path, content: bytes) -> None:
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def replace_by_another(file: Path, content: bytes) -> None:
    times = file.stat()
    beside = file.with_name("beside")
    alter(beside, content)
    os.utime(beside, ns=(times.st_atime_ns, times.st_mtime_ns))
    beside.replace(file)


@pytest.mark.parametrize("damage", [touch, delete, cut, alter, replace_by_another])
def test_a_models_file_is_read_again_if_it_is_another_one(tmp_path: Path, damage: Callable[[Path, bytes], None]) -> None:
    store, content = ModelStore(str(tmp_path)), b"a model"
    digest = store.keep(content)
    read = store.stamp(digest)
    assert store.check(digest, len(content), read) == read
    damage(tmp_path / "models" / digest, content)
    if damage is touch:
        assert store.check(digest, len(content), read) != read
        return
    with pytest.raises(CheckpointError) as lost:
        store.check(digest, len(content), read)
    assert lost.value.condition == "MODEL_LOST"


@pytest.mark.long
@pytest.mark.parametrize("damage", [touch, delete, replace_by_another])
def test_a_model_that_is_lost_under_a_running_job_ends_it_at_the_next_batch(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path, bytes], None]
) -> None:
    """The workers have the model in memory, but look at its file once in each batch."""
    from pyspark.errors import StreamingQueryException

    run = ModelJob(spark, tmp_path)
    content = linear([1.0, 2.0], 0.0)
    millpond.publish_model(run.models, content, name="one", type="r")
    for batch in range(3):
        write_event_file(tmp_path / "records", batch, records(100 * batch, "r"))
    out: Counter[int] = Counter()

    def collect(frame: DataFrame, batch: int) -> None:
        scored = frame.collect()
        assert all(close(r.result, r.a + 2 * r.b) for r in scored)
        out[batch] += len(scored)
        if batch == 0:
            (file,) = (tmp_path / "pond" / "models").iterdir()
            damage(file, content)

    scored = millpond.serve_models(
        spark.readStream.schema(RECORD).option("maxFilesPerTrigger", 1).json(str(tmp_path / "records")),
        millpond.read_models(spark, run.models),
        pond=tmp_path / "pond",
        partitions=2,
        **run.options,
    )
    options = {"trigger": "available-now", "output_mode": "append", "partitions": 2}
    with millpond.start(scored, table="wine", pond=tmp_path / "pond", sink=collect, **options) as job:
        if damage is touch:
            assert job.wait_for_end(120)
        else:
            with pytest.raises(StreamingQueryException, match="MODEL_LOST"):
                job.wait_for_end(120)
    assert out == ({0: 20, 1: 20, 2: 20} if damage is touch else {0: 20})


def test_bytes_are_kept_once(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    digest = store.keep(b"model")
    assert store.keep(b"model") == digest
    assert store.read(digest) == b"model"
    assert [p.name for p in (tmp_path / "models").iterdir()] == [digest]


@pytest.mark.parametrize(
    "wrong",
    a_few(
        [
            {"inputs": []},
            {"inputs": "a"},
            {"inputs": ["a", "nothing"]},
            {"inputs": ["kind"]},
            {"inputs": ["a", "a"]},
            {"type_column": "a"},
            {"sample": [1.0]},
            {"order": "name"},
            {"formats": {"pickle": Onnx()}},
            {"max_bytes": None},
            {"max_bytes": 0},
            {"by": "list"},
            {"by": "nobody"},
            {"shards": 3},
            {"keep_versions": 0},
            {"by": ["id", "place"]},
        ],
        6,
    ),
)
def test_models_that_cant_be_served(spark: SparkSession, tmp_path: Path, wrong: dict[str, Any]) -> None:
    for name in ("records", "models"):
        (tmp_path / name).mkdir()
    given: dict[str, Any] = {"inputs": ["a", "b"], "type_column": "kind", "pond": tmp_path / "pond", "partitions": 2, **wrong}
    with pytest.raises(RequestError) as refused:
        millpond.serve_models(
            spark.readStream.schema(f"{RECORD}, list array<long>, place struct<x: long>").json(str(tmp_path / "records")),
            millpond.read_models(spark, tmp_path / "models"),
            **given,
        )
    assert refused.value.condition == "INVALID_REQUEST"
    assert "The models can't be served" in refused.value.message or "shards" in wrong
    assert "broadcast" not in refused.value.message


def test_models_are_served_in_the_pond_that_keeps_them(spark: SparkSession, tmp_path: Path) -> None:
    run = ModelJob(spark, tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path / "pond")
    scored = millpond.serve_models(
        spark.readStream.schema(RECORD).json(str(tmp_path / "records")),
        millpond.read_models(spark, run.models),
        pond=tmp_path / "alias",
        partitions=2,
        **run.options,
    )
    options = {"table": "wine", "trigger": "available-now", "output_mode": "append", "partitions": 2}
    with pytest.raises(RequestError) as refused:
        millpond.start(scored, pond=tmp_path / "other", **options)
    assert refused.value.condition == "INVALID_REQUEST"
    assert "alias" in refused.value.message
    assert not (tmp_path / "other").exists()
    with millpond.start(scored, pond=tmp_path / "pond", **options) as job:
        assert job.wait_for_end(120)


DOUBLES = {"a": "double", "b": "double"}


def test_onnx_takes_columns_by_name_or_as_a_matrix() -> None:
    columns = [np.array([1.0, 2.0]), np.array([3.0, 5.0])]
    assert Onnx().load(by_name("b", "a"), DOUBLES).score(columns).tolist() == [3.0, 10.0]
    assert Onnx().load(linear([1.0, 10.0], 0.0), DOUBLES).score(columns).tolist() == [31.0, 52.0]


@pytest.mark.parametrize(
    ("taken", "kinds"), [("int64", ["byte", "short", "integer", "long"]), ("int32", ["byte", "short", "integer"])]
)
def test_a_model_of_whole_numbers_takes_no_others(taken: str, kinds: list[str]) -> None:
    """Otherwise 3.7 would become 3, and a long would be cut to an int."""
    for kind in ("byte", "short", "integer", "long", "float", "double"):
        for model in (doubled("x", taken), doubled("a", taken)):
            if kind in kinds:
                assert Onnx().load(model, {"a": kind}).score([np.array([3, -4])]).tolist() == [6.0, -8.0]
                continue
            with pytest.raises(ValueError, match=f"can't hold every {kind}"):
                Onnx().load(model, {"a": kind})


def test_a_record_is_answered_by_the_same_model_in_whatever_chunk_it_comes() -> None:
    """pandas gives a column with a NULL another type."""
    alone = [pd.Series([1, 2]), pd.Series([True, False]), pd.Series(["x", "y"]), pd.Series([0.5, 2.0])]
    beside = [
        pd.Series([1, 2, None], dtype="Int64"),
        pd.Series([True, False, None], dtype=object),
        pd.Series(["x", "y", None]),
        pd.Series([0.5, 2.0, None]),
    ]
    for some, more in zip(alone, beside, strict=True):
        assert row_hashes([some]).tolist() == row_hashes([more]).tolist()[:2]
    assert row_hashes(alone).tolist() == row_hashes(beside).tolist()[:2]
    nothing = [pd.Series([None], dtype=dtype) for dtype in ("Int64", object, "float64")]
    assert len({int(row_hashes([series])[0]) for series in nothing}) == 1
    assert len(set(row_hashes([pd.Series(range(1000))]).tolist())) == 1000
