"""The example of a backend of one's own, installed as a package: it keeps a backend's promises, and replicas equal LMDB's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.backends import Backend
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.replica.backends.choice import choose_backend
from millpond.replica.replica import MEMORY
from millpond.schema.definition.table import parse_definition
from millpond.settings import Retention
from millpond.testing import BackendContract
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import CELLS
from suite.programs import started

pytestmark = pytest.mark.long

PACKAGE = Path(__file__).parents[2] / "examples" / "rocksdict_backend"
CELLS_OF_NOW = [cell for cell in CELLS if "/" not in cell or cell.startswith("spark-4.3")]
ALL = Retention(closed_seconds=None, history_batches=100)


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package in a folder of its own, from which Python imports it."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(PACKAGE)], check=True)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


class TestRocksdict(BackendContract):
    def open(self, path: Path) -> Backend:
        return choose_backend("rocksdict").open(path, self.settings)


@pytest.mark.parametrize("cell", CELLS_OF_NOW)
def test_a_replica_in_it_equals_one_in_memory_at_every_batch(golden: Callable[[str], Any], tmp_path: Path, cell: str) -> None:
    copy = golden(cell)
    if (copy.source / "definition.json").exists():
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    copy.uncommit()
    copy.commit(0)
    kept = {"retention": ALL, "replica_dir": tmp_path / "home"}
    with millpond.open(copy.checkpoint, replica_dir=MEMORY, retention=ALL) as there:
        for batch in range(copy.last + 1):
            if batch:
                copy.commit(batch)
            there.catch_up(60)
            with millpond.open(copy.checkpoint, backend="rocksdict", **kept) as pond:  # opened again for each batch
                assert pond.tables() == there.tables()
                for name in there.tables():
                    table, expected = pond[name], there[name]
                    for reverse in (False, True):
                        assert repr(list(table.scan(reverse=reverse))) == repr(list(expected.scan(reverse=reverse)))
                    assert table.count() == expected.count()
                    assert repr(changes_of(table)) == repr(changes_of(expected))


def changes_of(table: millpond.Table) -> Any:
    """All changes that are kept, or why there are none."""
    try:
        return list(table.changes(0))
    except MillpondError as error:
        return error.condition


def test_a_server_keeps_its_replicas_in_it_and_other_processes_are_told(tmp_path: Path, installed: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("a", 1), ("b", 2)], snapshot=False)
    job.commit()
    environment = {**os.environ, "PYTHONPATH": str(installed), "MILLPOND_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "millpond.cli", "serve", str(job.path), "--port", "0", "--json", "--backend", "rocksdict"]
    with started(command, stdout=subprocess.PIPE, env=environment) as server:
        try:
            assert server.stdout is not None
            with millpond.connect(json.loads(server.stdout.readline())["url"]) as asked:
                table = asked.wait_for_table("job.aggregate_0")
                assert [row["v"] for row in table.scan()] == [1, 2]
                job.plan([("a", 5)], snapshot=False)
                job.commit()
                assert table.get(k="a", bounds=millpond.Bounds(min_batch=1, wait_seconds=30))["v"] == 5
            pond = millpond.open(job.path, replica_dir=tmp_path / "home", backend="rocksdict", wait_seconds=0)
            with pond, pytest.raises(MillpondError) as refused:
                pond.wait_for_table("job.aggregate_0", 1)
            assert refused.value.condition in ("REPLICA_NOT_SHARED", "UNKNOWN_TABLE")
        finally:
            server.terminate()
            server.wait(60)
    several = subprocess.run([*command, "--workers", "2"], env=environment, capture_output=True, text=True, check=False)
    assert (several.returncode, "keeps a replica for one process" in several.stdout + several.stderr) == (2, True)
    unknown = subprocess.run([*command[:-1], "nothing"], env=environment, capture_output=True, text=True, check=False)
    assert (unknown.returncode, "rocksdict" in unknown.stdout + unknown.stderr) == (2, True)
