"""Rules of how a state's size fits its provider and its number of partitions."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.operate.doctor.rules.rule import Found
from millpond.operate.doctor.state import StateFacts, StoreFacts
from millpond.operate.units import seconds_text, size_text

# An operator with fewer partitions has few files a batch.
_MANY = 16
# The state of a partition that Spark loads in seconds.
_GOOD_BYTES = 128 << 20
# Operators whose state only RocksDB can keep.
_ROCKSDB_ONLY = "transformWithState"


def memory_provider(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """Rows on the heap of executors that are too many for it."""
    if facts.batch.settings.provider != "hdfs":
        return
    size = _row_bytes(facts.stores)
    if size <= threshold:
        return
    yield Found(
        place="the state's provider",
        evidence=f"The HDFS-backed provider has all {size_text(size)} of rows in memory ({_read(facts.stores)}).",
        cost=f"over {size_text(size)} of heap in all executors, and as much written for each snapshot",
        cost_bytes=size,
        change="Move it to RocksDB: `millpond savepoint restore … --provider rocksdb` (docs/savepoints.md); a running job's "
        "checkpoint keeps its provider.",
    )


def rocksdb_small(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """RocksDB for a few rows that don't become more."""
    if facts.batch.settings.provider != "rocksdb" or any(
        each.store.operator_name.startswith(_ROCKSDB_ONLY) or each.store.family for each in facts.stores
    ):
        return
    size = _row_bytes(facts.stores)
    if not facts.stores or size > threshold or not _is_still(facts.stores) or facts.checkpoint_bytes is None:
        return
    instances = sum(each.rows.partitions for each in facts.stores if each.rows is not None)
    yield Found(
        place="the state's provider",
        evidence=f"{size_text(size)} of rows ({_read(facts.stores)}) lie in {instances} RocksDB instances, and don't become more.",
        cost=f"{size_text(facts.checkpoint_bytes)} of state files",
        cost_bytes=facts.checkpoint_bytes,
        change="Move it to the HDFS-backed provider: `millpond savepoint restore … --provider hdfs` (docs/savepoints.md).",
    )


def many_partitions(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """More partitions than a small state that doesn't grow needs."""
    for operator, stores in facts.operators.items():
        partitions = max((each.rows.partitions for each in stores if each.rows is not None), default=0)
        size = _row_bytes(stores)
        if partitions < _MANY or size / partitions > threshold or not _is_still(stores):
            continue
        files = sum(each.rows.partitions for each in stores if each.rows is not None)
        span = facts.written_ms.get(operator)
        took = "" if span is None else f", within {seconds_text(span / 1000)}"
        yield Found(
            place=f"operator {operator} ({stores[0].store.operator_name})",
            evidence=f"{partitions} partitions have {size_text(size)} of rows ({_read(stores)}), which don't become more; that is "
            f"{size_text(size / partitions)} each.",
            cost=f"{files} tasks and {files} files a batch{took}",
            cost_ms=span,
            change=f"Rescale it: `millpond rescale --partitions N`, with the number of cores, at least "
            f"{max(1, -(-size // _GOOD_BYTES))}.",
        )


def few_partitions(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """Partitions that are all large: one task loads and writes each."""
    for operator, size in facts.sizes.items():
        if size.median_bytes <= threshold:
            continue
        yield Found(
            place=f"operator {operator} ({size.name})",
            evidence=f"Half of its {size.partitions} partitions have files of {size_text(size.median_bytes)} or more that Spark "
            f"loads; the largest has {size_text(size.largest_bytes)}.",
            cost=f"{size_text(size.largest_bytes)} for one task after a restart",
            cost_bytes=size.largest_bytes,
            change=f"Rescale it: `millpond rescale --partitions {-(-size.state_bytes // _GOOD_BYTES)}`.",
        )


def _row_bytes(stores: list[StoreFacts] | tuple[StoreFacts, ...]) -> int:
    """Of all rows, by those that were read."""
    return sum(each.rows.scaled(each.rows.row_bytes) for each in stores if each.rows is not None)


def _read(stores: list[StoreFacts] | tuple[StoreFacts, ...]) -> str:
    parts = [each.rows for each in stores if each.rows is not None]
    read, there = sum(rows.read for rows in parts), sum(rows.partitions for rows in parts)
    return "all rows read" if read == there else f"by {read} of {there} partitions"


def _is_still(stores: list[StoreFacts] | tuple[StoreFacts, ...]) -> bool:
    """Whether it was measured of every store that there aren't more rows than before."""
    return all(each.rows is not None and each.growth is not None and each.growth.is_still for each in stores)
