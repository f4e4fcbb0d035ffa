"""Checkpoints on a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from millpond.storage import open_storage
from servers.s3 import BUCKET, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> str:
    """A URI where nothing lies yet; this process uses the server directly."""
    use(monkeypatch, moto_server())
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/ck"


@pytest.fixture
def upload_job(place: str) -> Callable[[], UploadedCheckpoint]:
    """Call it to upload a job with one batch."""

    def write(job_id: str = "job-1") -> UploadedCheckpoint:
        job = UploadedCheckpoint(open_storage(place), job_id)
        job.batch([("a", 0), ("bb", 0)])
        return job

    return write


@pytest.fixture
def job(upload_job: Callable[[], UploadedCheckpoint]) -> UploadedCheckpoint:
    return upload_job()
