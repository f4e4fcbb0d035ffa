"""A job on a standalone cluster of two workers, its checkpoint on S3, and three shards that follow from there.

Each answer of the shards is the recomputation of the input of its batch.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from pathlib import Path

import pytest

import millpond
from millpond.checkpoint.log import committed_batches
from millpond.errors import MillpondError
from millpond.settings import RouterSettings
from millpond.storage import open_storage
from servers.s3 import BUCKET, environment, moto_server, use
from servers.shards import shard_servers
from servers.spark_cluster import spark_cluster
from spark.s3a_job import UNTIL
from spark.test_s3a import recomputed, s3a_jars, wait_for_table  # noqa: F401 - a fixture
from suite.programs import started

pytestmark = [pytest.mark.spark, pytest.mark.long]
BATCHES, PARTITIONS, WORKERS = 8, 6, 2
# Reads that come before a first build has ended, or while batches come faster than a bucket shows them.
_PASSING = ("UNKNOWN_TABLE", "REPLICA_BUILDING", "SHARDS_INCOMPLETE", "NO_COMMON_BATCH", "SERVER_UNAVAILABLE")


def test_three_shards_of_a_job_on_a_cluster_answer_as_one(
    s3a_jars: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = moto_server()
    use(monkeypatch, endpoint)
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)
    checkpoint = f"s3a://{BUCKET}/{uuid.uuid4().hex}/counts"
    storage, log, enough, draw = open_storage(checkpoint), tmp_path / "job.log", tmp_path / "enough", random.Random(1)
    job_py = str(Path(__file__).with_name("s3a_job.py"))
    with spark_cluster(tmp_path / "cluster", WORKERS) as master, log.open("w") as out:
        program = [sys.executable, job_py, str(s3a_jars), endpoint, checkpoint, str(BATCHES), master, str(PARTITIONS)]
        variables = {**os.environ, UNTIL: str(enough)}
        with started(["timeout", "-k", "5", "900", *program], stdout=out, stderr=out, env=variables) as job:
            try:
                wait_for_table(checkpoint, job, log)
                with shard_servers(checkpoint, ["1/3", "2/3", "3/3"], tmp_path / "homes") as servers:
                    urls = [server.url for server in servers]
                    batches: set[int] = set()
                    with millpond.connect_shards(urls, settings=RouterSettings(common_batch_seconds=20)) as pond:
                        ended = False
                        while True:
                            try:
                                rows = pond["counts"].scan()
                                row = pond["counts"].get(k=draw.randrange(97))
                            except MillpondError as error:
                                assert error.condition in _PASSING, error
                                continue
                            expected = recomputed(rows.position.offsets)
                            assert {r["k"]: (r["n"], r["total"]) for r in rows} == expected
                            assert [r["k"] for r in rows] == sorted(expected)
                            assert (row["n"], row["total"]) == recomputed(row.position.offsets)[row["k"]]
                            batches.add(rows.batch)
                            if len(batches) > 2:
                                enough.touch()
                            if ended:
                                break
                            ended = job.poll() is not None and rows.batch == committed_batches(storage)[-1]
            finally:
                job.terminate()
                job.wait(60)
        workers_used = [p for p in (tmp_path / "cluster" / "work").glob("*/*") if p.is_dir()]
    assert len(workers_used) == WORKERS  # an executor of each
    assert len(batches) > 2
    assert max(batches) >= BATCHES
