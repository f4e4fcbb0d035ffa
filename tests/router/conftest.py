"""One job in shards that keep all of their history, and a replica of all of its partitions beside them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from millpond.replica.replica import MEMORY
from millpond.settings import Retention
from servers.shard_jobs import SHARDS, Job
from servers.shards import ShardServer, shard_servers
from spark_files.golden import FEW_TYPES


@pytest.fixture(scope="session")
def types_pond(types_pond: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Where no long test runs, a pond of a few types: a server that follows all of them takes three times as long to start."""
    if any(item.get_closest_marker("long") for item in request.session.items):
        return types_pond
    pond = tmp_path_factory.mktemp("few") / "types"
    for name in FEW_TYPES:
        shutil.copytree(types_pond / "jobs" / name, pond / "jobs" / name)
    shutil.copy(types_pond / "pond.json", pond)
    return pond


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Of the module's SEED."""
    return Job(tmp_path_factory.mktemp("pond") / "job", request.module.SEED)


@pytest.fixture(scope="module")
def servers(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardServer]]:
    homes = tmp_path_factory.mktemp("homes")
    with shard_servers(job.checkpoint.path, SHARDS, homes, "--history", f"{job.table}=forever") as started:
        yield started


@pytest.fixture(scope="module")
def whole(job: Job) -> Iterator[millpond.Pond]:
    with millpond.open(job.checkpoint.path, replica_dir=MEMORY, retention=Retention(history_batches=None)) as pond:
        yield pond
