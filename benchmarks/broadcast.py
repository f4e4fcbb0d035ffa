"""Broadcast state beside Spark's stream-static join, and models served as state beside a pandas UDF with a fixed model, in one run.

    python benchmarks/broadcast.py [--rows 100000 1000000] [--batches 10] [--rounds 3] [--shards 64] [--write]

One Spark session on two cores; each side is a query of its own over the same generated events (16 rules by number, or 11 inputs of
a model), as fast as batches go, with no sink; by turns:

    join        stream-static join with a table of 16 rules, which can't change while it runs
    fixed       the broadcast's function by mapInPandas, with the rules as they were when it started: what Python itself costs
    broadcast   `millpond.broadcast` with the same rules as control records, 2 shards
    udf         a pandas UDF (iterator of series) that scores with one ONNX session, the same for ever
    models      `millpond.serve_models` with that model, 2 shards, and the columns that say which model, how long and why not

and once, at the fewest rows, broadcast with `--shards`, each in a partition of its own.

Fairness: both sides of a pair give the same columns of the event, and the same result, which is compared before anything is
measured.  Rates are rows by the time that a batch took from its begin to its commit; the first batches don't count.  Ratios are
medians of the rounds' own.  `swap` is how long it takes from a model's publication to the end of the first batch that was scored by
it, in milliseconds and in batches that ended meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import write_result

import millpond
from millpond.spark.broadcast.control import Control, Draft

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

RULES = [{"rule": n, "factor": n * 0.5 + 1, "seq": n} for n in range(16)]
INPUTS = [f"x{n}" for n in range(11)]
MATCHED = "value long, rule long, amount long, result double"
WARM_BATCHES = 3
SHARDS = 2
SIDES = ("join", "fixed", "udf", "broadcast", "models")
PAIRS = (("broadcast", "join"), ("broadcast", "fixed"), ("models", "udf"))


def forest(seed: int) -> bytes:
    """A model of 20 trees of depth 6, of random numbers."""
    import numpy as np
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.ensemble import RandomForestRegressor

    numbers = np.random.default_rng(seed).random((2000, len(INPUTS) + 1), np.float32)
    model = RandomForestRegressor(20, max_depth=6, random_state=seed).fit(numbers[:, :-1] * 14, numbers[:, -1])
    converted = convert_sklearn(model, initial_types=[("x", FloatTensorType([None, len(INPUTS)]))], target_opset=17)
    content: bytes = converted.SerializeToString()
    return content


def events(spark: SparkSession, rows: int) -> DataFrame:
    """Generated events, so many a batch."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    return stream.selectExpr("value", f"pmod(value, {len(RULES)}) AS rule", "value * 3 AS amount")


def measures(spark: SparkSession, rows: int) -> DataFrame:
    """The same with a model's inputs."""
    inputs = [f"cast(pmod(value * {n + 7}, 97) AS double) / 7 AS {name}" for n, name in enumerate(INPUTS)]
    return events(spark, rows).selectExpr("value", *inputs)


def match(chunk: pd.DataFrame, control: Control) -> pd.DataFrame:
    """The amount by the factor of its rule."""
    factors = {rule: row["factor"] for rule, row in control.items()}
    return chunk.assign(result=chunk["amount"] * chunk["rule"].map(factors))


def match_fixed(chunks: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The same with rules that don't change."""
    rules = Draft(1, 0, {rule["rule"]: (1, {"factor": rule["factor"]}) for rule in RULES}).freeze()
    for chunk in chunks:
        yield match(chunk, rules)


class Sides:
    """The queries of one run, over the same folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        for name in ("rules", "published"):
            (folder / name).mkdir()
        (folder / "rules" / "0.json").write_text("\n".join(json.dumps(rule) for rule in RULES))
        self.content = forest(1)
        millpond.publish_model(folder / "published", self.content, name="first")

    def stream(self, side: str, rows: int, shards: int = SHARDS) -> DataFrame:
        """One side's query."""
        if side == "fixed":
            return events(self.spark, rows).mapInPandas(match_fixed, MATCHED)
        if side == "join":
            table = self.spark.read.schema("rule long, factor double").json(str(self.folder / "rules"))
            return events(self.spark, rows).join(table, "rule").selectExpr("value", "rule", "amount", "amount * factor AS result")
        if side == "broadcast":
            rules = self.spark.readStream.schema("rule long, factor double, seq long").json(str(self.folder / "rules"))
            kept = events(self.spark, rows)
            return millpond.broadcast(kept, rules, match, output=MATCHED, key="rule", order="seq", shards=shards, partitions=shards)
        if side == "udf":
            return self._by_udf(measures(self.spark, rows))
        return millpond.serve_models(
            measures(self.spark, rows),
            millpond.read_models(self.spark, self.folder / "published"),
            pond=self.folder / "pond",
            inputs=INPUTS,
            shards=shards,
            partitions=shards,
        )

    def _by_udf(self, frame: DataFrame) -> DataFrame:
        import pandas as pd
        from pyspark.sql import functions as F

        content = self.content

        def score(chunks: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
            import numpy as np
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            (name,) = (i.name for i in session.get_inputs())
            for columns in chunks:
                matrix = np.column_stack([column.to_numpy(np.float32) for column in columns])
                yield pd.Series(session.run(None, {name: matrix})[0].reshape(-1).astype(np.float64))

        # Spark looks at the annotations themselves, which are texts here.
        score.__annotations__ = {"chunks": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
        return frame.withColumn("result", F.pandas_udf(score, "double")(*INPUTS))

    def run(self, side: str, rows: int, batches: int, folder: Path, shards: int = SHARDS) -> dict[str, Any]:
        """Rows a second of a side, once warm."""
        self.spark.conf.set("spark.sql.shuffle.partitions", shards)
        writer = self.stream(side, rows, shards).writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.outputMode("append").start()
        try:
            while (query.lastProgress or {"batchId": -1})["batchId"] < WARM_BATCHES + batches:
                if query.exception():
                    raise query.exception()
                time.sleep(0.1)
            progress = [p for p in query.recentProgress if WARM_BATCHES < p["batchId"] <= WARM_BATCHES + batches]
        finally:
            query.stop()
        seconds = [p["durationMs"]["triggerExecution"] / 1000 for p in progress]
        return {
            "rows_per_second": round(rows * len(progress) / sum(seconds)),
            "batch_ms": round(1000 * sum(seconds) / len(seconds)),
        }

    def check(self, pair: tuple[str, str], folder: Path) -> None:
        """Hold the results of a side against its peer's, for the events of the first batches."""
        found = []
        for name in pair:
            rows: dict[int, float] = {}

            def collect(frame: DataFrame, _: int, rows: dict[int, float] = rows) -> None:
                rows |= {r.value: round(r.result, 3) for r in frame.select("value", "result").collect() if r.result is not None}

            query = (
                self.stream(name, 1000).writeStream.foreachBatch(collect).option("checkpointLocation", str(folder / name)).start()
            )
            while (query.lastProgress or {"batchId": -1})["batchId"] < 3 and not query.exception():
                time.sleep(0.1)
            query.stop()
            found.append(rows)
        both = found[0].keys() & found[1].keys()
        assert len(both) >= 1000, len(both)
        assert all(found[0][value] == found[1][value] for value in both)

    def swap(self, folder: Path, times: int) -> dict[str, Any]:
        """From a publication to the end of the first batch that is scored by it."""
        seen: dict[int, tuple[int, float]] = {}

        def note(frame: DataFrame, batch: int) -> None:
            version = frame.agg({"model_version": "max"}).first()[0]
            seen[batch] = (version or 0, time.monotonic())

        writer = self.stream("models", 1000).writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        waited: list[tuple[float, int]] = []
        try:
            while not seen:
                time.sleep(0.05)
            swaps = [forest(n + 2) for n in range(times)]
            for n in range(times):
                time.sleep(2)
                before = max(v for v, _ in seen.values())
                last, began = max(seen), time.monotonic()
                millpond.publish_model(self.folder / "published", swaps[n], name=f"swap{n}")
                while not (by := [b for b, (version, _) in list(seen.items()) if version > before]):
                    time.sleep(0.005)
                waited.append((1000 * (seen[min(by)][1] - began), min(by) - last))
        finally:
            query.stop()
        return {
            "times": times,
            "median_ms": round(statistics.median(ms for ms, _ in waited)),
            "slowest_ms": round(max(ms for ms, _ in waited)),
            "most_batches": max(batches for _, batches in waited),
        }


def main() -> None:
    """All sides by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="of a batch")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=64, help="of one more run of broadcast")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/broadcast.json")
    options = parser.parse_args()
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(SHARDS),
        "spark.sql.streaming.stateStore.providerClass": rocksdb,
    }
    spark = millpond.session("broadcast", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    result: dict[str, Any] = {"what": "events through control state and through models, two cores"}
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        sides = Sides(spark, Path(scratch))
        for pair in PAIRS:
            sides.check(pair, Path(scratch, "check-" + "-".join(pair)))
        for number in range(options.rounds):
            for rows in options.rows:
                for side in SIDES:
                    measured = sides.run(side, rows, options.batches, Path(scratch, f"{side}-{rows}-{number}"))
                    print(rows, side, measured, flush=True)
                    rounds.append({"rows": rows, "side": side, **measured})
        many = sides.run("broadcast", min(options.rows), options.batches, Path(scratch, "many"), options.shards)
        result["many_shards"] = {"rows": min(options.rows), "shards": options.shards, **many}
        spark.conf.set("spark.sql.shuffle.partitions", SHARDS)
        result["swap"] = sides.swap(Path(scratch, "swap"), 10)
    spark.stop()
    result["ratio"] = {
        f"{side}/{peer}": {str(rows): _ratio(rounds, rows, side, peer) for rows in options.rows} for side, peer in PAIRS
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("broadcast", result, rounds)


def _ratio(rounds: list[dict[str, Any]], rows: int, side: str, peer: str) -> float:
    one, other = ([r["rows_per_second"] for r in rounds if (r["rows"], r["side"]) == (rows, name)] for name in (side, peer))
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 3)


if __name__ == "__main__":
    main()
