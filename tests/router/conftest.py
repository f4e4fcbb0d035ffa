"""One job in shards that keep all of their history, and a replica of all of its partitions beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import millpond
from millpond.replica.replica import MEMORY
from millpond.settings import Retention
from servers.shard_jobs import SHARDS, Job
from servers.shards import ShardServer, shard_servers


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
