"""Score wines by a model that is swapped while the job runs, and watch which one does it.

    python examples/serve_wine.py winequality_red.csv FOLDER [--seconds 60]

The file's rows come as a stream, again and again.  Two regressors are trained on its first half (scikit-learn) and converted to
ONNX (skl2onnx); they take turns every ten seconds, by records that this program publishes as any other could.  What is printed is
the table of statistics, read from outside the job.  From another terminal:

    millpond watch FOLDER/pond wine_statistics
    millpond scan FOLDER/pond wine_versions
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import millpond

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INPUTS = [
    *("fixed_acidity", "volatile_acidity", "citric_acid", "residual_sugar", "chlorides", "free_so2"),
    *("total_so2", "density", "ph", "sulphates", "alcohol"),
]
SCHEMA = ", ".join(f"{name} double" for name in INPUTS) + ", quality int"
TURN_SECONDS = 10


def read_wines(path: Path) -> Any:
    """The file's rows: an array of inputs and quality."""
    return np.loadtxt(path, delimiter=";")


def train(path: Path) -> dict[str, tuple[str, Any]]:
    """Two regressors by name, each with its description, trained on the first half of the file."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import LinearRegression

    rows = read_wines(path)
    half = rows[: len(rows) // 2]
    models = {
        "linear": ("least squares on eleven measurements", LinearRegression()),
        "forest": ("50 trees of depth 8", RandomForestRegressor(50, max_depth=8, random_state=1)),
    }
    for _, model in models.values():
        model.fit(half[:, :-1].astype(np.float32), half[:, -1])
    return models


def to_onnx(model: Any) -> bytes:
    """A regressor as ONNX: one matrix of the inputs in, a number a row out."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    converted = convert_sklearn(model, initial_types=[("wine", FloatTensorType([None, len(INPUTS)]))], target_opset=17)
    content: bytes = converted.SerializeToString()
    return content


def wines(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream of wines that lie in a folder, each with its place in the file."""
    from pyspark.sql import functions as F

    stream = spark.readStream.schema(f"place long, {SCHEMA}").option("sep", ";").csv(str(folder))
    return stream.withColumn("scored_at", F.current_timestamp())


def serve(spark: SparkSession, records: Path, published: Path, pond: Path) -> DataFrame:
    """The wines with their scores."""
    models = millpond.read_models(spark, published)
    return millpond.serve_models(wines(spark, records), models, pond=pond, inputs=INPUTS, shards=2, partitions=2)


def write_wines(path: Path, folder: Path, number: int) -> None:
    """Put all rows of the file into the stream's folder, at once."""
    target = folder / f".{number}"
    lines = path.read_text().splitlines()
    target.write_text("".join(f"{place};{line}\n" for place, line in enumerate(lines)))
    target.rename(folder / f"{number:06d}.csv")


def show(pond: millpond.Pond) -> None:
    """Print the statistics as they are now."""
    pond.catch_up(60)
    print(f"\n{'Name':10} {'Description':40} {'Since':20} {'Usage':>8} {'Average':>9} {'Min':>9} {'Max':>9} {'Errors':>6}")
    for row in sorted(pond["wine_statistics"].scan(), key=lambda row: row["version"]):
        since = f"{row['since']:%Y-%m-%d %H:%M:%S}"
        times = (row["average"], row["fastest"], row["slowest"])
        average, fastest, slowest = ("" if t is None else f"{t * 1e6:.1f} us" for t in times)
        what = f"{row['name']:10} {row['description']:40} {since:20} {row['usage']:8}"
        print(f"{what} {average:>9} {fastest:>9} {slowest:>9} {row['errors']:6}")


def main() -> None:
    """Run for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    records, published, pond = options.folder / "wines", options.folder / "published", options.folder / "pond"
    for folder in (records, published):
        folder.mkdir(parents=True, exist_ok=True)
    models = {name: (description, to_onnx(model)) for name, (description, model) in train(options.file).items()}
    spark = millpond.session("wines", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
    scored = serve(spark, records, published, pond)
    began, turn, number = time.monotonic(), 0, 0
    with (
        millpond.start(scored, table="wine", pond=pond, output_mode="append", partitions=2) as job,
        millpond.open(pond) as reader,
    ):
        while time.monotonic() - began < options.seconds and job.query.isActive:
            if time.monotonic() - began >= turn * TURN_SECONDS:
                name = list(models)[turn % len(models)]
                millpond.publish_model(published, models[name][1], name=name, description=models[name][0])
                turn += 1
            write_wines(options.file, records, number)
            if number == 0:
                job.wait_for_batch(0, timeout_seconds=120)
            number += 1
            time.sleep(2)
            show(reader)
    spark.stop()


if __name__ == "__main__":
    main()
