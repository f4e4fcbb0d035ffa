"""One level of jobs in a row, until it is killed: `python levels.py LEVEL FOLDER`.

pages   of events; HAVING hides pages and shows them again
sites   of the changes of pages, by signed updates
sizes   of the changes of sites, by state that holds their rows
joined  pages and sites, by the changes of both
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import millpond
from live_jobs.quick_java import QUICK_JAVA
from millpond.spark.job import run_until_stopped
from soak.orphans import end_with_parent

SCHEMA = "site string, page string, v int"
# The tables that a level reads.
READS = {"pages": [], "sites": ["pages"], "sizes": ["sites"], "joined": ["pages", "sites"]}


def level(spark: Any, name: str, folder: Path) -> Any:
    """The DataFrame of a level."""
    from pyspark.sql import functions as F

    if name == "pages":
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        pages = events.groupBy("site", "page").agg(F.count("*").alias("hits"), F.sum("v").alias("total"))
        return pages.where(F.col("total") % 3 != 0)
    if name == "sites":
        values = {"pages": F.count("*"), "hits": F.sum("hits")}
        return millpond.aggregate_changes(
            millpond.read_changes(spark, folder / "pond", "pages", maxBatchesPerTrigger=3), ["site"], values
        )
    if name == "joined":
        sides = [millpond.read_changes(spark, folder / "pond", table, maxBatchesPerTrigger=20) for table in READS[name]]
        return millpond.join_changes(*sides, ["site"], "left", suffixes=("", "_of_site"))
    values = {"sites": F.count("*"), "most": F.max("hits"), "best": millpond.top("site", by="hits", most=2)}
    return millpond.aggregate_changes(millpond.read_changes(spark, folder / "pond", "sites"), ["pages"], values)


def main(name: str, place: str) -> None:
    folder = Path(place)
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "600m",
        "spark.sql.streaming.minBatchesToRetain": "10000",
        **QUICK_JAVA,
    }
    spark = millpond.session(name, **conf)
    spark.sparkContext.setLogLevel("ERROR")
    for table in READS[name]:
        with millpond.open(str(folder / "pond"), replica_dir=folder / f"wait-{name}", wait_seconds=120) as pond:
            pond.wait_for_table(table, 120)
    run_until_stopped([millpond.start(level(spark, name, folder), table=name, pond=folder / "pond", partitions=2)])


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
