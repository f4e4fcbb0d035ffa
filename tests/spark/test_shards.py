"""Every shard has a partition of its own, as Spark itself counts."""

from __future__ import annotations

import pytest

from millpond.errors import RequestError
from millpond.spark.shards import shard_values


@pytest.mark.parametrize(("shards", "partitions"), [(1, 1), (2, 2), (3, 7), (8, 8), (64, 64), (64, 200)])
def test_no_two_shards_meet(shards: int, partitions: int) -> None:
    values = shard_values(shards, partitions)
    assert len(values) == shards
    assert values == tuple(sorted(set(values)))
    assert values == shard_values(shards, partitions)


@pytest.mark.parametrize(("shards", "partitions"), [(0, 4), (-1, 4), (5, 4)])
def test_shards_that_cant_be(shards: int, partitions: int) -> None:
    with pytest.raises(RequestError) as refused:
        shard_values(shards, partitions)
    assert refused.value.condition == "INVALID_REQUEST"
