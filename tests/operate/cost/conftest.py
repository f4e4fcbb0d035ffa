"""A place in a bucket."""

from __future__ import annotations

import uuid

import pytest

from servers.s3 import BUCKET, moto_server, use


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> str:
    """A URI where nothing lies yet."""
    use(monkeypatch, moto_server())
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/ck"
