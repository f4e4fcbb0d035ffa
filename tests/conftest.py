"""Fixtures that all tests may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that takes the Spark session, so that the fast part can leave them out by `-m "not spark"`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One live Spark session for all tests of a run: two cores, two shuffle partitions, no user interface."""
    from millpond.spark.session import session

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    running = session("millpond tests", **conf)
    running.sparkContext.setLogLevel("OFF")
    yield running
    for query in running.streams.active:
        query.stop()
    running.stop()
