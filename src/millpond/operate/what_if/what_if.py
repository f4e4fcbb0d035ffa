"""What would be if a job had another TTL, retention, provider, codec, trigger or number of partitions.

1. Rows and bytes are measured: the state is really written so, in a temporary folder (`written`), of
   a large state a sample.
2. Change files are packed anew (`repack`).
3. Files, requests and batches a month follow from what was counted in the checkpoint and in the
   samples; these are estimates, and so is all of another trigger.
4. The cost is that of both, by the same prices.

Nothing of the job is changed, and it may run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from millpond.catalogue import JobFolder, find_job
from millpond.checkpoint.log import CommittedBatch, committed_batches, read_batch
from millpond.errors import MillpondError, RequestError
from millpond.operate.cost.cost import bill
from millpond.operate.cost.facts import MONTH_SECONDS, Fact, Known, fact
from millpond.operate.cost.files import StateFiles
from millpond.operate.cost.prices import read_prices
from millpond.operate.cost.requests import requests_of_batch
from millpond.operate.cost.usage import Measured, Usage
from millpond.operate.measure import JobMeter
from millpond.operate.units import seconds_text
from millpond.operate.what_if.answer import Figure, PartitionSizes, WhatIf
from millpond.operate.what_if.repack import Repacked, repack_changes
from millpond.operate.what_if.written import Edits, Size, Written, write_both
from millpond.operate.what_if.younger import edits_of_ttl
from millpond.savepoint.rewrite.form import AS_IT_WAS, StateForm, check_can_rewrite
from millpond.savepoint.rewrite.row_edit import RowEdit
from millpond.settings import parse_length
from millpond.storage import Storage
from millpond.tables.buckets.retention import plan_retention

_TRIES = 3
_TIMED_BATCHES = 20
MOST_BYTES = 256 << 20
_IN_ORDER = "Snapshots that Spark writes later: rows from RocksDB come in key order, and pack better so than in Spark's."
_FOLLOWS = "all state files, each kind in proportion to what was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What would be otherwise; None: as it is.

    ttl_seconds:      of state variables, and of delays of watermarks
    retention:        resolution -> how long its buckets are kept, as `30 days`; None for ever
    trigger_seconds:  between two batches
    form:             partitions, provider and codec
    """

    ttl_seconds: float | None = None
    retention: Mapping[str, str | None] | None = None
    trigger_seconds: float | None = None
    form: StateForm = AS_IT_WAS

    @property
    def writes(self) -> bool:
        """Whether the state would have other bytes."""
        return self.form.is_new or self.ttl_seconds is not None or self.retention is not None


def what_if(
    place: str | Path,
    job: str | None = None,
    *,
    ttl: str | None = None,
    retention: Mapping[str, str | None] | None = None,
    provider: str | None = None,
    codec: str | None = None,
    trigger: str | None = None,
    partitions: int | None = None,
    prices: str | Path | None = None,
    storage: str | None = None,
    last: str = "7d",
    most_bytes: int = MOST_BYTES,
    replica_dir: str | Path | None = None,
    allow: Iterable[str | Path] = (),
) -> WhatIf:
    """What rows, bytes, files and cost of a job would be; several changes at once are one.

    place, job:  a pond or a checkpoint; None for the only job there
    ttl:         of state variables, and how far the watermark is behind the latest event, as 7d
    retention:   of declared aggregates: resolution -> how long its buckets are kept, as `30 days`,
                 None for ever; the key `""` means all resolutions
    provider:    hdfs or rocksdb
    codec:       lz4, zstd or snappy
    trigger:     between two batches, as 30s
    partitions:  of the job's state
    most_bytes:  of state files that are read; a larger state is read in part
    prices, storage, last, replica_dir, allow:  as in `read_cost`
    Raises:      INVALID_REQUEST; UNSUPPORTED for what the state can't become, or nothing tells; as
                 `read_cost`.
    """
    change = _change(ttl, retention, provider, codec, trigger, partitions)
    table, folder, seconds = read_prices(prices), find_job(place, job, allow=allow), parse_length("last", last)
    table.storage_of(folder.checkpoint, storage)
    for attempt in range(_TRIES):
        try:
            found = _Asked(place, folder, change, most_bytes, seconds, replica_dir, allow)
            break
        except MillpondError as error:
            if error.condition != "FILE_GONE" or attempt == _TRIES - 1:
                raise
    now = found.measured.usage()
    then = found.then(now)
    return WhatIf(
        job=folder.job,
        batch=found.measured.batch.batch,
        change="; ".join(found.words),
        figures=tuple(found.figures(now, then)),
        partitions=tuple(found.partitions()),
        cost_now=bill(folder, now, table, storage),
        cost_then=bill(folder, then, table, storage),
        unknown=tuple(found.unknown),
    )


def _change(
    ttl: str | None,
    retention: Mapping[str, str | None] | None,
    provider: str | None,
    codec: str | None,
    trigger: str | None,
    partitions: int | None,
) -> Change:
    if codec == "lzf":
        raise RequestError(
            "INVALID_REQUEST", "Millpond can't pack LZF, so it can't measure it.", hint="Choose lz4, zstd or snappy."
        )
    lengths = {name: None if text is None else parse_length(name, text) for name, text in (("ttl", ttl), ("trigger", trigger))}
    for name, text in (("ttl", ttl), ("trigger", trigger)):
        if text is not None and not lengths[name]:
            raise RequestError("INVALID_REQUEST", f"{name} is {text!r:.40}.", hint="Write a length of time like 30s, 24h or 7d.")
    change = Change(
        ttl_seconds=lengths["ttl"],
        retention=retention or None,
        trigger_seconds=lengths["trigger"],
        form=StateForm(provider=provider, codec=codec, partitions=partitions),
    )
    if not change.writes and change.trigger_seconds is None:
        raise RequestError(
            "INVALID_REQUEST",
            "Nothing is to change.",
            hint="Give one or more of ttl, retention, provider, codec, trigger and partitions.",
        )
    return change


class _Asked:
    """One question about one batch."""

    def __init__(
        self,
        place: str | Path,
        folder: JobFolder,
        change: Change,
        most_bytes: int,
        last_seconds: float | None,
        replica_dir: str | Path | None,
        allow: Iterable[str | Path],
    ) -> None:
        self.measured = Measured(folder, last_seconds, replica_dir)
        self._change, self._storage, self._batch = change, folder.open_checkpoint(), self.measured.batch
        self.words: list[str] = []
        self.unknown: list[str] = []
        check_can_rewrite(self._storage, self._batch.batch, change.form)
        if change.form.is_new:
            self.words.append(change.form.describe())
        if (self._batch.settings.provider, change.form.provider) == ("rocksdb", "hdfs"):
            self.unknown.append(_IN_ORDER)
        self._state = JobMeter(folder).partitions_at(self._batch)
        edits = self._edits(place, folder, allow)
        self._written: Written | None = None
        if change.writes:
            form = change.form
            is_whole = sum(sum(each.state.values()) for each in self._state.values()) <= most_bytes
            if not is_whole and form.partitions is not None:
                form = replace(form, partitions=None)
                self.unknown.append(
                    "Sizes of the new partitions: they need the whole state, and only a part was read; see --sample-mib."
                )
            self._written = write_both(self._storage, self._batch, self._state, form, edits, most_bytes)
        self._repacked: Repacked | None = None
        if change.form.codec is not None:  # 2
            self._repacked = repack_changes(self._storage, self._batch, change.form.codec, most_bytes)
        self._took = _batch_seconds(self._storage, self._batch)
        if change.trigger_seconds is not None:
            self.words.append(f"a batch every {seconds_text(change.trigger_seconds)}")
            self.unknown.append(
                "Bytes under another trigger: fewer batches have more rows each, and how many keys they share isn't known."
            )

    def _edits(self, place: str | Path, folder: JobFolder, allow: Iterable[str | Path]) -> Edits:
        change = self._change
        if change.ttl_seconds is not None and change.retention is not None:
            raise RequestError("INVALID_REQUEST", "A TTL and a retention can't be asked together.", hint="Ask one after the other.")
        if change.ttl_seconds is not None:
            edits, words, unknown = edits_of_ttl(self._storage, self._batch, change.ttl_seconds)
            self.words += words
            self.unknown += unknown
            return lambda: edits
        if change.retention is None:
            return lambda: ()
        plans = [
            plan_retention(
                place, definition.table, _kept(change.retention, [str(r) for r in definition.resolutions.each]), allow=allow
            )
            for definition in folder.definitions().values()
            if definition.resolutions is not None
        ]
        if not plans:
            raise RequestError(
                "INVALID_REQUEST", f"{folder.job} has no declared aggregate, so it has no retention.", hint="For a TTL use --ttl."
            )
        for plan in plans:
            for going in plan.going:
                if going.before != going.after:
                    then = "for ever" if going.after is None else f"for {seconds_text(going.after)}"
                    now = "for ever" if going.before is None else seconds_text(going.before)
                    self.words.append(f"{plan.definition.table}: buckets of {going.resolution} kept {then} instead of {now}")
                if going.missing:
                    self.unknown.append(f"Older buckets of {going.resolution} are gone: there would be more than these.")

        def fresh() -> list[RowEdit]:
            return [plan.edit() for plan in plans]

        return fresh

    # ------------------------------------------------------------ as it would be

    def then(self, now: Usage) -> Usage:
        """What the job would take, which now takes so much."""
        return self.measured.usage_of(self._batches_then(), self._files_then(), self._bytes_then(now.bytes))

    def _batches_then(self) -> Fact | None:  # 3
        now, trigger = self.measured.batches, self._change.trigger_seconds
        if trigger is None:
            return now
        took = self._took
        if took is None:
            return fact(MONTH_SECONDS / trigger, f"a batch every {seconds_text(trigger)}, if none takes longer", "estimate")
        source = f"a batch every {seconds_text(max(trigger, took))}; batches take {seconds_text(took)} now"
        return fact(MONTH_SECONDS / max(trigger, took), source, "estimate")

    def _files_then(self) -> StateFiles:
        form, files = self._change.form, self.measured.files
        if form.partitions is not None:
            files = files.over(self._batch.settings.partitions, form.partitions)
        provider = form.over(self._batch.settings).provider
        if provider != files.provider:
            ssts = files.snapshots if provider == "rocksdb" else 0.0
            files = replace(files, provider=provider, ssts=ssts, is_format_2=form.format_over(self._batch) == 2)
        return files

    def _bytes_then(self, now: Fact) -> Fact:
        files = self.measured.files
        if self._written is None or not files.bytes:
            return now
        changes = self._repacked.ratio if self._repacked is not None else 1.0
        share = files.change_bytes / files.bytes
        ratio = share * changes + (1 - share) * _ratio(self._written.pairs)
        return fact(now.value * ratio, _FOLLOWS, "estimate")

    # ------------------------------------------------------------ the answer

    def figures(self, now: Usage, then: Usage) -> Iterable[Figure]:
        """Each number, now and then."""
        measured = self.measured
        if self._written is not None:
            for what, unit, of in (("rows", "rows", _rows), ("state as snapshots", "B", _bytes)):
                yield self._written_figure(what, unit, of)
            yield Figure(what="all state files", unit="B", now=now.bytes, then=then.bytes)
        if self._repacked is not None:
            yield _repacked_figure(self._repacked)
        files = self._files_then()
        if self._change.form.partitions is not None or self._change.form.provider is not None:
            source = f"counted in {measured.files.versions:,} versions"
            yield Figure(
                what="files a batch",
                unit="files",
                now=fact(measured.files.a_batch, source),
                then=fact(files.a_batch, source, "estimate"),
            )
            yield Figure(
                what="requests a batch, if on an object store",
                unit="requests",
                now=fact(sum(requests_of_batch(measured.files)), "requests a file as measured", "estimate"),
                then=fact(sum(requests_of_batch(files)), "requests a file as measured", "estimate"),
            )
        if self._change.trigger_seconds is not None and now.batches is not None and then.batches is not None:
            yield Figure(what="batches a month", unit="batches", now=now.batches, then=then.batches)
            took, every = self._took, MONTH_SECONDS / now.batches.value
            if took is not None:
                source = f"half the time between batches, and {seconds_text(took)} for one"
                each = [fact(seconds / 2 + took, source, "estimate") for seconds in (every, MONTH_SECONDS / then.batches.value)]
                yield Figure(what="from a record's arrival to its commit, mean", unit="s", now=each[0], then=each[1])

    def _written_figure(self, what: str, unit: str, of: Callable[[Size], int]) -> Figure:
        written = self._written
        assert written is not None
        now, then = (sum(of(pair[side]) for pair in written.pairs) for side in (0, 1))
        if written.is_whole:
            return Figure(
                what=what, unit=unit, now=fact(now, "the whole state, written"), then=fact(then, "the whole state, written")
            )
        source = f"{len(written.pairs)} of {written.of} partitions, {written.share:.1%} of the bytes, written"
        whole = now / written.share
        ratios = [of(pair[1]) / of(pair[0]) for pair in written.pairs if of(pair[0])]
        return Figure(
            what=what,
            unit=unit,
            now=fact(whole, source, "sample"),
            then=fact(
                then / written.share, source, "sample", low=whole * min(ratios, default=1.0), high=whole * max(ratios, default=1.0)
            ),
        )

    def partitions(self) -> Iterable[PartitionSizes]:
        """Of each operator; nothing of a sample."""
        if self._written is None or not self._written.is_whole:
            return
        ((now, then),) = self._written.pairs
        for operator in sorted(then.bytes):
            yield PartitionSizes(
                operator=operator,
                name=self._state[operator].name,
                now_bytes=_by_partition(now.bytes[operator]),
                then_bytes=_by_partition(then.bytes[operator]),
                now_rows=_by_partition(now.rows.get(operator, {})),
                then_rows=_by_partition(then.rows.get(operator, {})),
            )


def _batch_seconds(storage: Storage, newest: CommittedBatch) -> float | None:
    """How long a batch takes, the median of the newest; None if that isn't known."""
    took = []
    for number in committed_batches(storage)[-_TIMED_BATCHES:]:
        try:
            batch = newest if number == newest.batch else read_batch(storage, number)
        except MillpondError as error:
            if error.condition != "FILE_GONE":
                raise
            continue  # the job has cleaned up
        if batch.took_seconds is not None:
            took.append(batch.took_seconds)
    return statistics.median(took) if took else None


def _kept(retention: Mapping[str, str | None], resolutions: list[str]) -> dict[str, str | None]:
    """Of one table, whose resolutions these are."""
    given = {name: length for name, length in retention.items() if name}
    return {**(dict.fromkeys(resolutions, retention[""]) if "" in retention else {}), **given}


def _repacked_figure(repacked: Repacked) -> Figure:
    known: Known = "measured" if repacked.files == repacked.of else "sample"
    source = f"{repacked.files:,} of {repacked.of:,} change files, packed with both"
    now = repacked.now / repacked.files * repacked.of
    return Figure(
        what="change files",
        unit="B",
        now=fact(now, source, known),
        then=fact(
            now * repacked.ratio,
            source,
            known,
            low=None if known == "measured" else now * repacked.low,
            high=None if known == "measured" else now * repacked.high,
        ),
    )


def _rows(size: Size) -> int:
    return size.all_rows


def _bytes(size: Size) -> int:
    return size.all_bytes


def _ratio(pairs: Iterable[tuple[Size, Size]]) -> float:
    now = then = 0
    for pair in pairs:
        now, then = now + pair[0].all_bytes, then + pair[1].all_bytes
    return then / now if now else 1.0


def _by_partition(found: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(found[number] for number in sorted(found))
