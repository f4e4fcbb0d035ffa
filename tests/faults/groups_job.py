"""Groups of three kinds over one stream, killed as one process group: `python -m faults.groups_job INPUT POND`."""

from __future__ import annotations

import sys
from pathlib import Path

from quick_java import QUICK_JAVA
from soak.orphans import end_with_parent

SALTS, PARTITIONS = 4, 2


def main(incoming: str, pond: str) -> None:
    """Run until killed: a salted aggregation that finds its hot keys, and distinct visitors by a map and by a list."""
    from pyspark.sql import functions as sf

    import millpond
    from millpond.spark.job import run_until_stopped

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import visitors
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(visitors)
    # A task may fail three times: its Python worker is killed as well.
    conf = {"spark.master": "local[2,4]", "spark.ui.enabled": "false", "spark.driver.memory": "1g", **QUICK_JAVA}
    spark = millpond.session("groups", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    events = spark.readStream.schema("n long, page string, host string").json(incoming)
    hot = millpond.HotKeys(pond, "views", share=0.2)
    aggregates = [sf.count("*").alias("hits"), sf.collect_set("host").alias("hosts")]
    views = millpond.salted(events, by=["page"], salts=SALTS, source=["n"], hot=hot).agg(*aggregates)
    jobs = [millpond.start(views, table="views", pond=pond, partitions=PARTITIONS)]
    jobs += [visitors.start(events, way, pond, partitions=PARTITIONS) for way in ("by_map", "by_list")]
    run_until_stopped(jobs)


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
