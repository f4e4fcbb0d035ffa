"""The rows that a shorter time leaves: state variables with another TTL, keys with another delay of the watermark.

1. Spark writes a value with the time of its batch plus the TTL.  So the TTL that a variable has is
   what the newest changes say: their time of expiry less the time of their batch.
2. Under another TTL the same value expires earlier or later by the difference.  It is gone if that
   is up to the time of the newest batch.
3. A watermark is the latest event less its delay.  Under another delay it lies later or earlier by
   the difference.  A key is gone if its time, or the end of its window, is up to it.

Source:  StateTTL, WatermarkSupport, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import DELETE
from millpond.checkpoint.log import CommittedBatch, committed_batches, read_batch
from millpond.checkpoint.operators import read_each_operator, watermark_delays
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.errors import CheckpointError, MillpondError
from millpond.operate.units import seconds_text
from millpond.savepoint.rewrite.form import unsupported
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.rewrite.twins import family_beside, has_expiry, rows_beside
from millpond.schema.store import StoreSchema
from millpond.storage import Storage

_LOOKED_BATCHES = 20


class ShorterTtl(RowEdit):
    """A `RowEdit` for one store of transformWithState.

    moves:   variable -> by how many milliseconds its values expire earlier; negative: later
    now_ms:  when values are judged
    """

    def __init__(self, operator: int, store: str, moves: Mapping[str, int], now_ms: int) -> None:
        self.operator, self.store, self._moves, self._now_ms = operator, store, moves, now_ms

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:  # 2
        for key, value in rows:
            family = codec.family_of(key)
            variable = family_beside(family)
            if variable not in self._moves:
                yield key, value
            elif family == variable and has_expiry(codec, family):
                of = codec.of(family)
                move = self._moves[variable]
                moved = [(*element[:-1], element[-1] - move) for element in of.read_value(value)]
                left = [element for element in moved if element[-1] > self._now_ms]
                if left:
                    yield key, of.write_value(left)
                    yield from rows_beside(codec, family, of.read_key(key), left)


class ShorterDelay(RowEdit):
    """A `RowEdit` for a store whose key has the watermark's column.

    place:      of that column in the key
    last:       the watermark as it would be, microseconds; rows up to it are gone
    """

    def __init__(self, operator: int, store: str, place: int, last: int) -> None:
        self.operator, self.store, self._place, self._last = operator, store, place, last

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:  # 3
        read = codec.of(self.store).read_key
        for key, value in rows:
            time = read(key)[self._place]
            end = time[1] if isinstance(time, tuple) else time
            if end is None or end > self._last:
                yield key, value


def edits_of_ttl(storage: Storage, batch: CommittedBatch, seconds: float) -> tuple[list[RowEdit], list[str], list[str]]:
    """The edits for another TTL or delay of all that has one, what they are in words, and what they can't say.

    Raises:  UNSUPPORTED if nothing of the job has one, or nothing says how long it is; as the storage.
    """
    stores, broken = read_each_operator(storage, batch.batch)
    for unread in broken:
        raise unread.error
    edits: list[RowEdit] = []
    words, unknown = [], []
    wanted_ms = round(seconds * 1000)
    delays = watermark_delays(storage, batch.batch)
    moves: dict[tuple[int, str], dict[str, int]] = {}
    for store in stores:
        if store.ttl:
            had_ms = _ttl_ms(storage, batch, store)
            moves.setdefault((store.operator, store.store), {})[store.family] = had_ms - wanted_ms
            words.append(f"a TTL of {seconds_text(seconds)} of {store.family} instead of {seconds_text(had_ms / 1000)}")
        elif _has_time(store) and batch.watermark_ms is not None:
            had_ms = _delay_ms(store, delays.get(store.operator, set()))
            last = batch.watermark_ms + had_ms - wanted_ms
            edits.append(ShorterDelay(store.operator, store.store, store.watermarked[0], last * 1000))
            words.append(
                f"a watermark {seconds_text(seconds)} behind for operator {store.operator} instead of {seconds_text(had_ms / 1000)}"
            )
        else:
            continue
        if wanted_ms > had_ms:
            unknown.append(
                f"Rows that operator {store.operator} would have kept for longer are gone: there would be more than these."
            )
    edits += [ShorterTtl(operator, store, each, batch.started_ms) for (operator, store), each in moves.items()]
    if not edits:
        raise unsupported(
            "No state variable of this job has a TTL, and no key of an operator has the watermark's column: "
            "nothing says when a row was written.",
            "For a declared aggregate use --retention.",
        )
    return edits, words, unknown


def _has_time(store: StoreSchema) -> bool:
    """Whether Spark removes its rows by a time in the key."""
    if len(store.watermarked) != 1 or store.family or store.operator_name == "symmetricHashJoin":
        return False
    type_ = store.key[store.watermarked[0]].type
    kinds = [field.type.kind for field in type_.fields] if type_.kind == "struct" else [type_.kind]
    return len(kinds) <= 2 and kinds[-1] in ("timestamp", "timestamp_ntz")


def _delay_ms(store: StoreSchema, delays: set[int]) -> int:
    if len(delays) != 1:
        raise unsupported(
            f"Operator {store.operator} has {len(delays)} delays of watermarks, so which one its rows go by isn't known.",
            "Give the query one watermark.",
        )
    return next(iter(delays))


def _ttl_ms(storage: Storage, newest: CommittedBatch, store: StoreSchema) -> int:  # 1
    """The TTL that a variable has, by the newest batch that wrote it."""
    reader, read = StateReader(storage), decoder(store.value)
    for number in reversed(committed_batches(storage)[-_LOOKED_BATCHES:]):
        try:
            batch = newest if number == newest.batch else read_batch(storage, number)
            most = max(_expiries(reader, batch, store, read), default=None)
        except MillpondError as error:
            if error.condition != "FILE_GONE":
                raise
            break
        if most is not None:
            return most - batch.started_ms
    raise CheckpointError(
        "UNSUPPORTED",
        f"None of the newest batches wrote {store.family}, so its TTL isn't known.",
        hint="Ask again when a batch has written it.",
    )


def _expiries(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, read: Callable[[bytes], tuple[Any, ...]]
) -> Iterator[int]:
    for partition in partitions_of(batch, store):
        for kind, _, value in reader.iter_changes(batch, store, partition):
            if kind == DELETE:
                continue
            rows = iter_elements(value) if store.many else [value]
            yield from (read(row)[-1] for row in rows)
