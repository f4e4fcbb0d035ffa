"""Fixtures that all tests may use."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from live_jobs.quick_java import QUICK_JAVA, RENAMES_WITHOUT_PROCESSES
from millpond.checkpoint.operators import anchored
from millpond.storage.names import hadoop_uri, local_uri
from servers.serving import Serve, serving
from spark_files.golden import GOLDEN, load_script
from suite.programs import started
from suite.sizes import IS_LONG

pytest_plugins = ["suite.report"]
# A busy machine draws examples slowly: that is no failure.
settings.register_profile(
    "millpond", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("millpond")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that takes the Spark session, so that the fast part can leave them out by `-m "not spark"`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Thousands of collected tests live to the end of the run: Python's collector need not visit them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(params=["compiled", "python"])
def either_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the compiled library, which then takes small inputs too, and again without it."""
    from millpond.native import library

    if request.param == "compiled" and library.library() is None:
        pytest.skip("the compiled library isn't built: python hatch_build.py")
    with library.small_too() if request.param == "compiled" else library.switched_off():
        yield request.param


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One live Spark session for all tests of a run: two cores, two shuffle partitions, no user interface."""
    from millpond.spark.session import session

    # Spark's Python workers import what tests import.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        # Once the JVM of all tests ended itself (exit code 56) after ten minutes of failed heartbeats from itself to itself.
        "spark.executor.heartbeat.maxFailures": "1000000",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        # What the status pages would show of jobs that have ended: nobody looks.
        **dict.fromkeys(("spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs", "spark.ui.retainedStages"), "20"),
        **({} if IS_LONG else RENAMES_WITHOUT_PROCESSES),
        **QUICK_JAVA,
    }
    running = session("millpond tests", **conf)
    running.sparkContext.setLogLevel("OFF")
    yield running
    for query in running.streams.active:
        query.stop()
    running.stop()


@pytest.fixture
def metadata_service() -> Iterator[tuple[str, list[str]]]:
    """A stand-in for a cloud's credentials service: its address, and the paths that were asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve a folder with these options: yields the address and the process, and ends the process."""
    return partial(serving, home=tmp_path / "home")


class GoldenCell:
    """A copy of a golden checkpoint whose batches can be committed one after the other."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.checkpoint = target
        self._kept = target.with_name(target.name + "-kept")
        # The copy has new file times: those of a checkout say when git wrote the files, in no order.
        shutil.copytree(source / "checkpoint", target, copy_function=shutil.copy)
        for path in target.glob("state/*/_metadata/v2/*"):  # else they name the place where Spark wrote them
            path.write_bytes(anchored(path.read_bytes(), hadoop_uri(local_uri(target))))
        self.last = max(int(p.name) for p in (target / "commits").iterdir())

    def read(self, name: str) -> Any:
        """One of the cell's JSON files."""
        return json.loads((self.source / f"{name}.json").read_text())

    def uncommit(self) -> None:
        """Remove all commits, and leave the state files."""
        (self.checkpoint / "commits").rename(self._kept)
        (self.checkpoint / "commits").mkdir()

    def commit(self, batch: int) -> None:
        """Commit a batch as Spark does, by a rename."""
        (self._kept / str(batch)).rename(self.checkpoint / "commits" / str(batch))


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], GoldenCell]:
    """`golden("counts-hdfs")` is a private copy of that golden checkpoint."""

    def copy(cell: str) -> GoldenCell:
        return GoldenCell(GOLDEN / cell, tmp_path / cell.replace("/", "-"))

    return copy


@pytest.fixture(scope="session")
def type_cases() -> ModuleType:
    """The script behind golden/types: CASES has the values in each form, NULL is in every table."""
    return load_script("make_types")


@pytest.fixture(scope="session")
def types_pond(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pond that Spark wrote, with one table for each type: `k` of that type is the key, `n` counts, `again` is `k`."""
    pond = tmp_path_factory.mktemp("doors") / "types"
    shutil.copytree(GOLDEN / "types", pond)
    return pond


@pytest.fixture(scope="session")
def door_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of the door tests keep their replicas.  They share them, as programs on one machine do."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def http_door(types_pond: Path, door_home: Path) -> Iterator[str]:
    """The address of `millpond serve` on types_pond, a process of its own."""
    command = [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", "--json"]
    with started(command, stdout=subprocess.PIPE, env={**os.environ, "MILLPOND_HOME": str(door_home)}) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
        server.terminate()
        assert server.wait(30) == 0
