"""Rules of what bounds a state: watermarks, TTLs, and how long Spark keeps its files."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.checkpoint.position import version_of
from millpond.checkpoint.state import partitions_of, rocksdb_name
from millpond.operate.doctor.growth import growth_in_samples
from millpond.operate.doctor.rules.rule import Found
from millpond.operate.doctor.state import StateFacts, StoreFacts, name_of
from millpond.operate.units import moment, seconds_text, size_text
from millpond.schema.store import StoreSchema

_DAY = 86_400
# Whether there is a change log is looked up in so many partitions, for so many batches.
_LOOKED_PARTITIONS, _LOOKED_BATCHES = 4, 3
# Operators that go by the watermark though no column of their schemas names it.
_BY_TIME = ("dedupeWithinWatermark", "applyInPandasWithState", "transformWithState")
# An aggregation that keeps its rows for the output mode `complete` keeps at least so many.
_FEWEST_EXPIRED = 100


def unbounded(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """Operators whose rows nothing removes, and which grow by at least so many bytes a day."""
    for operator, stores in facts.operators.items():
        why = _without_bound(facts, operator, stores)
        if why is None:
            continue
        measured = _growth(facts, operator, stores)
        if measured is None:
            continue
        a_day, least, how = measured
        if least <= threshold:
            continue
        yield Found(
            place=f"operator {operator} ({stores[0].store.operator_name})",
            evidence=f"{why}.  {how}",
            cost=f"about {size_text(a_day)} more state a day, at that rate",
            cost_bytes=int(a_day),
            change=_CHANGES.get(stores[0].store.operator_name, _ANY_CHANGE),
        )


_ANY_CHANGE = "Give its variables a TTL, or remove keys by a timer."
_CHANGES = {
    "stateStoreSave": "Group by a window of a column with a watermark, or declare an aggregate with a retention "
    "(docs/aggregates.md).",
    "dedupe": "Use dropDuplicatesWithinWatermark, or add the watermark's column to the columns that tell duplicates.",
    "symmetricHashJoin": "Give both sides a watermark, and the join a range of time between them.",
    "applyInPandasWithState": "Give the keys a time-out, and remove them when it comes.",
}


def _without_bound(facts: StateFacts, operator: int, stores: list[StoreFacts]) -> str | None:
    """Why nothing removes an operator's rows; None if something may."""
    name, schemas = stores[0].store.operator_name, [each.store for each in stores]
    if name in ("stateStoreSave", "dedupe"):
        if any(schema.watermarked or not schema.key for schema in schemas):
            return None
        return "No column of the key has a watermark"
    if name == "symmetricHashJoin":
        if facts.delays is None or facts.delays.get(operator):
            return None
        return "No column of either side has a watermark"
    if name == "applyInPandasWithState":
        if any(f.name == "timeoutTimestamp" for schema in schemas for f in schema.value):
            return None
        return "Its groups have no time-out"
    if name.startswith("transformWithState"):
        if any(schema.ttl or schema.variable == "timer" for schema in schemas):
            return None
        return "No variable has a TTL, and there are no timers"
    return None


def _growth(facts: StateFacts, operator: int, stores: list[StoreFacts]) -> tuple[float, float, str] | None:
    """(bytes a day, how many at least, how that was measured) of an operator that only grows; None if it doesn't.

    None as well if that isn't known.
    """
    grown = [(each.store, each.growth, each.rows) for each in stores if each.growth is not None and each.rows is not None]
    if not any(growth.added for _, growth, _ in grown) or any(growth.removed for _, growth, _ in grown):
        return None
    by_days = growth_in_samples(facts.samples, operator)
    if by_days is not None:
        return (
            by_days.a_day,
            by_days.least,
            (
                f"By the samples of the last {seconds_text(by_days.seconds)}, its files grow by {size_text(by_days.a_day)} a day, "
                f"and hardly by less than {size_text(max(0.0, by_days.least))}."
            ),
        )
    a_day, words = 0.0, []
    for store, growth, rows in grown:
        if not growth.only_grows or growth.seconds <= 0:
            continue
        a_day += growth.added_bytes * rows.partitions / growth.partitions / growth.seconds * _DAY
        looked = "" if growth.partitions == rows.partitions else f" in {growth.partitions} of {rows.partitions} partitions"
        words.append(
            f"From batch {growth.first} to {facts.batch.batch}, {growth.added} rows came{looked} and none went; "
            f"of these {growth.added_late} in the second half of that time ({seconds_text(growth.seconds)})."
        )
        if len(stores) > 1:
            words[-1] = f"Store {store.store}{f', {store.family}' if store.family else ''}: {words[-1][0].lower()}{words[-1][1:]}"
    return (a_day, a_day, "  ".join(words)) if words else None


def watermark_unused(facts: StateFacts, _threshold: float) -> Iterator[Found]:
    """A watermark by which no operator removes rows."""
    if facts.batch.watermark_ms is None or facts.delays is None or not facts.stores:
        return
    names = {operator: stores[0].store.operator_name for operator, stores in facts.operators.items()}
    if facts.delays.keys() != names.keys():  # an operator that can't be read may use it
        return
    expired = list(_kept_though_expired(facts))
    yield from expired
    if any(facts.delays.values()) or any(name.startswith(_BY_TIME) or name == "globalLimit" for name in names.values()):
        return
    columns = ", ".join(sorted({f.name for each in facts.stores for f in each.store.key}))
    if not columns:  # one row
        return
    yield Found(
        place=", ".join(f"operator {operator} ({name})" for operator, name in names.items()),
        evidence=f"The job has a watermark, {moment(facts.batch.watermark_ms)}, and no column of the state does: its keys "
        f"are {columns}.",
        cost=f"all {size_text(_file_bytes(facts))} of state stay",
        cost_bytes=_file_bytes(facts),
        change="Use the column of withWatermark itself up to the stateful operator: a cast or another computation loses the "
        "watermark.  A join needs a range of time between both sides.",
    )


def _file_bytes(facts: StateFacts) -> int:
    return sum(size.state_bytes for size in facts.sizes.values())


def _kept_though_expired(facts: StateFacts) -> Iterator[Found]:
    """An aggregation whose windows have ended before the watermark, and are still there: output mode complete."""
    if len(facts.operators) != 1:  # the watermark of an operator above another is older
        return
    for each in facts.stores:
        rows, planned = each.rows, facts.batch.planned_watermark_ms
        if each.store.operator_name != "stateStoreSave" or rows is None or not planned:
            continue
        if rows.ended is None or rows.ended < _FEWEST_EXPIRED:
            continue
        size = rows.scaled(rows.row_bytes / rows.rows * rows.ended)
        yield Found(
            place=name_of(each.store),
            evidence=f"Of {rows.words}, {rows.ended} ended before the watermark with which batch {facts.batch.batch} was planned, "
            f"{moment(planned)}, and are still there, as in the output mode complete.",
            cost=f"about {size_text(size)} of rows that a watermark should have removed",
            cost_bytes=size,
            change="Use the output mode update or append: in complete mode nothing expires.",
        )


def retention_short(facts: StateFacts, _threshold: float) -> Iterator[Found]:
    """A log so short that whoever copies it, or reads it without putting batches aside, may be too late."""
    if facts.committed[0] == 0 or len(facts.batches) < 2:  # nothing has been cleaned up yet
        return
    read = [each.rows for each in facts.stores if each.rows is not None and each.rows.row_bytes]
    if not read:
        return
    needed = sum(rows.seconds * rows.partitions / rows.read for rows in read)
    kept = facts.retained_seconds
    if kept >= needed:
        return
    yield Found(
        place="the checkpoint's log",
        evidence=f"The log has {len(facts.committed)} batches, which are {seconds_text(kept)}.  Reading the whole state once takes "
        f"about {seconds_text(needed)}, measured now.",
        cost=f"an archive, savepoint or replica in memory that begins now is {seconds_text(needed - kept)} too late for its files",
        cost_ms=(needed - kept) * 1000,
        change="Let Spark keep more: spark.sql.streaming.minBatchesToRetain, 100 by default.",
    )


def snapshots_only(facts: StateFacts, _threshold: float) -> Iterator[Found]:
    """RocksDB that writes a snapshot with each batch."""
    if facts.batch.settings.provider != "rocksdb":
        return
    written = [_snapshots(facts, stores[0].store) for stores in facts.operators.values()]
    sizes = [size for size in written if size is not None]
    if not sizes or len(sizes) < len(written):
        return
    yield Found(
        place="the state's provider",
        evidence=f"The last {_LOOKED_BATCHES} batches wrote a snapshot for each partition, and no change log.",
        cost=f"about {size_text(sum(sizes))} of snapshots a batch, besides new SST files",
        cost_bytes=sum(sizes),
        change="Set spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled to true, which a checkpoint that "
        "exists takes too.",
    )


def _snapshots(facts: StateFacts, schema: StoreSchema) -> int | None:
    """The bytes of a batch's zips, if the newest batches wrote snapshots only."""
    partitions = partitions_of(facts.batch, schema)
    looked, newest, size = partitions[:_LOOKED_PARTITIONS], facts.batches[-_LOOKED_BATCHES:], 0
    if len(newest) < _LOOKED_BATCHES:
        return None
    for partition in looked:
        files = facts.reader.storage.sizes(schema.folder(partition))
        for batch in newest:
            name = rocksdb_name(batch, schema, partition, version_of(batch.batch))
            if f"{name}.changelog" in files or f"{name}.zip" not in files:
                return None
            size += files[f"{name}.zip"]
    return size // len(newest) * len(partitions) // len(looked)
