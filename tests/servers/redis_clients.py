"""redis-py's client, without the pauses and further tries that it makes after a refused password."""

from __future__ import annotations

from typing import Any

import pytest


def redis_client(port: int, **options: Any) -> Any:
    """A client of a server of this machine.  Skips the test without redis-py."""
    redis = pytest.importorskip("redis")
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), **options)
