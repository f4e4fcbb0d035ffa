"""The DataFrame of a case: its input, the aggregation, and the steps before and after."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from random_queries.case import Case, quoted


def plain_frame(spark: Any, case: Case) -> Any:
    """A DataFrame with the case's columns and no stream, for the analyzer only."""
    columns = ", ".join(f"CAST(NULL AS {type_}) AS {quoted(name)}" for name, type_ in case.columns.items())
    return spark.sql(f"SELECT {columns}")


def write_input(spark: Any, case: Case, folder: Path) -> Path:
    """Write one Parquet file for each batch, in order of file times; existing files stay."""
    text = repr((case.columns, case.batches))
    target = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    for number, rows in enumerate(case.batches):
        write_batch(spark, case, rows, target, number)
    return target


def write_batch(spark: Any, case: Case, rows: list[list[str]], target: Path, number: int) -> None:
    """Write one file."""
    file = target / f"{number:03}.parquet"
    if file.exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    names = ", ".join(f"col{n + 1} AS {quoted(name)}" for n, name in enumerate(case.columns))
    texts = ["(" + ", ".join(f"CAST({v} AS {t})" for v, t in zip(row, case.columns.values(), strict=True)) + ")" for row in rows]
    frame = spark.sql(f"SELECT {names} FROM VALUES {', '.join(texts)}")
    written = target / f".{number}"
    frame.coalesce(1).write.mode("overwrite").parquet(str(written))
    (part,) = written.glob("part-*.parquet")
    os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))
    part.rename(file)


def stream(spark: Any, case: Case, folder: Path) -> Any:
    """The input as a stream, one file in each batch."""
    schema = plain_frame(spark, case).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def whole_frame(spark: Any, case: Case, source: Any, after: list[list[Any]] | None = None) -> Any:
    """The whole DataFrame of a case over a source."""
    if case.watermark:
        source = source.withWatermark(*case.watermark)
    return after_frame(grouped_frame(after_frame(source, case.before), case), case.after if after is None else after)


def grouped_frame(frame: Any, case: Case) -> Any:
    """The aggregation; a case without aggregates has none."""
    from pyspark.sql import functions as F

    if not case.aggregates:
        return frame
    return frame.groupBy(*[F.expr(k) for k in case.keys]).agg(*[F.expr(a) for a in case.aggregates])


def after_frame(frame: Any, steps: list[list[Any]]) -> Any:
    """The steps one after the other."""
    from pyspark.sql import functions as F

    for word, *given in steps:
        if word == "select":
            frame = frame.selectExpr(*given[0])
        elif word == "where":
            frame = frame.where(given[0])
        elif word == "withColumn":
            frame = frame.withColumn(given[0], F.expr(given[1]))
        elif word == "withColumnRenamed":
            frame = frame.withColumnRenamed(*given)
        elif word == "drop":
            frame = frame.drop(given[0])
        elif word == "orderBy":
            column = F.expr(given[0].removesuffix(" DESC"))
            frame = frame.orderBy(column.desc() if given[0].endswith(" DESC") else column)
        elif word == "limit":
            frame = frame.limit(given[0])
        elif word == "join":
            frame = frame.join(frame.sparkSession.sql(given[0]), given[1], given[2])
        elif word == "groupBy":
            frame = frame.groupBy(*[F.expr(k) for k in given[0]]).agg(*[F.expr(a) for a in given[1]])
        elif word == "dropDuplicates":
            frame = frame.dropDuplicates(given[0])
        else:
            raise ValueError(word)
    return frame
