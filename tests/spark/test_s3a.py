"""A real job writes its checkpoint through S3A, and Millpond follows it over S3: every answer equals a recomputation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.checkpoint.log import committed_batches
from millpond.errors import MillpondError
from millpond.storage import open_storage
from servers.s3 import BUCKET, moto_server, use
from servers.s3a import fetched_s3a_jars
from spark.s3a_job import UNTIL
from suite.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long]

BATCHES = 8


@pytest.fixture(scope="session")
def s3a_jars() -> Path:
    """See `servers.s3a`."""
    return fetched_s3a_jars()


def recomputed(offsets: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """k -> (n, total) of exactly the committed numbers."""
    counts: dict[int, tuple[int, int]] = {}
    for value in range(offsets["0"]["offset"]):
        n, total = counts.get(value % 97, (0, 0))
        counts[value % 97] = (n + 1, total + value)
    return counts


def wait_for_table(checkpoint: str, job: subprocess.Popen[bytes], log: Path) -> Sequence[int]:
    """The first batches; `publish` writes the folder beside the checkpoint once the query is there."""

    def found() -> Sequence[int]:
        is_published = open_storage(f"{checkpoint}.millpond").stamp("tables/counts.json") is not None
        return committed_batches(open_storage(checkpoint)) if is_published else ()

    ended = lambda: job.poll() is not None and (log.read_text()[-3000:] or "nothing said")  # noqa: E731
    return wait_until(found, "the first batch of a published job", seconds=240, unless=ended)


def test_every_answer_is_the_recomputation_of_the_committed_input(
    s3a_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, moto_server())
    checkpoint = f"s3a://{BUCKET}/{uuid.uuid4().hex}/counts"
    storage = open_storage(checkpoint)
    program = [sys.executable, str(Path(__file__).with_name("s3a_job.py")), str(s3a_jars), moto_server(), checkpoint, str(BATCHES)]
    log, enough = tmp_path / "job.log", tmp_path / "enough"
    environment = {**os.environ, UNTIL: str(enough)}
    with (
        log.open("w") as out,
        subprocess.Popen(["timeout", "-k", "5", "900", *program], stdout=out, stderr=out, env=environment) as job,
    ):
        try:
            wait_for_table(checkpoint, job, log)
            seen: set[int] = set()
            with millpond.open(checkpoint, replica_dir=tmp_path / "home") as pond:
                ended = False
                while True:
                    try:
                        rows = pond["counts"].scan()
                    except MillpondError as error:
                        assert error.condition in ("REPLICA_BUILDING", "UNKNOWN_TABLE")
                        continue
                    position = rows.cut.position
                    assert {r["k"]: (r["n"], r["total"]) for r in rows} == recomputed(position.offsets)
                    seen.add(position.batch)
                    if len(seen) >= BATCHES // 2:
                        enough.touch()
                    if ended:
                        break
                    time.sleep(0.05)
                    if job.poll() is not None:
                        pond.catch_up(60)
                        ended = True
                assert job.returncode == 0, log.read_text()[-3000:]
                assert position.batch == committed_batches(storage)[-1] >= BATCHES
                assert len(seen) >= BATCHES // 2
                (statistics,) = pond.statistics().values()
                assert statistics["bootstraps"] == 1
                assert statistics["error"] is None
        finally:
            job.terminate()


def test_a_job_goes_on_from_a_savepoint_within_the_bucket(s3a_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that runs; under another number of partitions as well.  The numbers that were counted say what each must have."""
    use(monkeypatch, moto_server())
    root = f"s3a://{BUCKET}/{uuid.uuid4().hex}"

    enough = tmp_path / "enough"

    def start(checkpoint: str, batches: int) -> subprocess.Popen[bytes]:
        program = [
            sys.executable,
            str(Path(__file__).with_name("s3a_job.py")),
            str(s3a_jars),
            moto_server(),
            checkpoint,
            str(batches),
        ]
        with (tmp_path / "job.log").open("a") as out:
            environment = {**os.environ, UNTIL: str(enough)}
            return subprocess.Popen(["timeout", "-k", "5", "900", *program], stdout=out, stderr=out, env=environment)

    def state(checkpoint: str) -> tuple[int, dict[int, tuple[int, int]], dict[int, tuple[int, int]]]:
        """The newest batch, what it has, and what its offsets say that it must have."""
        last = millpond.plan_savepoint(checkpoint, f"s{uuid.uuid4().hex}", job=None).run().manifest
        rows = millpond.read_arrow(checkpoint, "counts").to_pylist()
        return last.batch, {r["k"]: (r["n"], r["total"]) for r in rows}, recomputed(last.offsets)

    with start(f"{root}/counts", 5) as job:
        try:
            batches = wait_for_table(f"{root}/counts", job, tmp_path / "job.log")
            saved = millpond.plan_savepoint(f"{root}/counts", "meanwhile").run()
            assert job.poll() is None
            enough.touch()
        finally:
            if sys.exc_info()[0] is not None:
                job.terminate()
    assert job.returncode == 0, (tmp_path / "job.log").read_text()[-3000:]
    assert batches[0] <= saved.manifest.batch <= committed_batches(open_storage(f"{root}/counts"))[-1]
    assert millpond.verify_savepoint(saved).problems == ()
    for name, form in (("restored", {}), ("in-five", {"partitions": 5})):
        checkpoint = f"{root}/{name}"
        millpond.plan_restore(f"{root}/counts", "meanwhile", checkpoint, **form).run()  # type: ignore[arg-type]
        batch, rows, expected = state(checkpoint)
        assert (batch, rows) == (saved.manifest.batch, expected)
        with start(checkpoint, saved.manifest.batch + 2) as job:
            pass
        assert job.returncode == 0, (tmp_path / "job.log").read_text()[-3000:]
        batch, rows, expected = state(checkpoint)
        assert batch >= saved.manifest.batch + 2
        assert rows == expected
