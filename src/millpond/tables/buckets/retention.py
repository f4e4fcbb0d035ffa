"""Another retention for a declared aggregate: what would go, what readers see meanwhile, and the change of the state.

A shorter retention can be one for readers first, while the job runs (`kept.shorter`).  In the
stopped job's state it is made so:

1. Make a savepoint of the last committed batch, in a folder for the time of the command.
2. Restore it as a copy, with another `expires_at` in the rows of the resolutions that change: that
   column is part of the key, so that the new code would otherwise begin a second row for each
   bucket.  Rows that have expired by the new retention are left out.  If a bucket has several rows
   all the same, their buffers are merged.
3. Copy the plan of the batch after it, if there is one that isn't committed.
4. Prepare the table's definition: with the new retention, and with the instant from which on the
   buckets of a resolution are all there.  What a shorter retention has removed doesn't come back.
5. Let the copy and the definition take their places together.  From then on readers see what the
   state has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from millpond.catalogue import JobFolder, read_catalogue
from millpond.checkpoint.log import CommittedBatch, committed_batches, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import CheckpointError, RequestError, SavepointError
from millpond.ownership.take_over import JOURNAL, TakeOver
from millpond.savepoint.in_place.exchange import Found, Replaced, find_stopped_job, savepoint_in, take_place
from millpond.savepoint.in_place.rescale import copy_plan
from millpond.savepoint.restore import restore_files
from millpond.savepoint.rewrite.rewrite import count_edited
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.threads import Progress
from millpond.scalar.time.calendar import DAY_MICROS
from millpond.scalar.time.zones import parse_zone
from millpond.schema.definition.meaning import Meaning
from millpond.schema.definition.resolutions import (
    BUCKET,
    EXPIRES,
    RESOLUTION,
    Resolution,
    Resolutions,
    parse_seconds,
    words_of_column,
    words_of_keep,
)
from millpond.schema.definition.table import TableDefinition
from millpond.storage import Storage, open_storage
from millpond.storage.places import Places
from millpond.tables.default_tables import unknown_table
from millpond.tables.finish.merge_rows import compile_shares
from millpond.tables.kept.calendar import Calendar
from millpond.tables.kept.shorter import FILE, Shorter, least, read_shorter, with_shorter, write_shorter
from millpond.versions import meant_table, words_of_meant

_WEEK = 7 * DAY_MICROS
_NOTHING: Mapping[str, str | None] = MappingProxyType({})


@dataclass(slots=True)
class Going:
    """What another retention does to the rows of one resolution; sizes are those of keys and values as Spark stores them.

    resolution:       its name
    before, after:    for how many seconds its buckets are kept; None for ever
    rows, size_bytes: that there are
    gone_rows, gone_bytes:  of these, those that go at once
    week_rows, week_bytes:  that go within the next week of event time besides, if as many buckets
                      come each day as on the last one; those that would go anyway aren't counted
    missing:          whether the new retention reaches further back than what is there
    seen:             for how many seconds readers see its buckets now, if that is shorter than `before`
    restated_rows:    that stay, and get another `expires_at`
    merged_rows:      that are merged with another row of the same bucket
    """

    resolution: str
    before: int | None
    after: int | None
    rows: int = 0
    size_bytes: int = 0
    gone_rows: int = 0
    gone_bytes: int = 0
    week_rows: int = 0
    week_bytes: int = 0
    missing: bool = False
    seen: int | None = None
    restated_rows: int = 0
    merged_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """Another retention that isn't applied yet.

    place:       the pond
    job:         the job's folder
    definition:  of the table
    resolutions: as they will be
    asked:       the name of the table that was asked for: its own, or one that means its version
    batch:       whose rows were counted
    going:       from the shortest resolution to the longest
    take_over:   whether to take the job's lease from whoever has it
    """

    place: str | Path
    job: JobFolder
    definition: TableDefinition
    resolutions: Resolutions
    asked: str
    batch: int
    going: tuple[Going, ...]
    take_over: bool = field(default=False, repr=False)

    @property
    def changes(self) -> bool:
        """Whether any resolution is kept for another time, or has rows that say another one."""
        return any(g.before != g.after or g.restated_rows or g.merged_rows for g in self.going)

    def edit(self) -> RowEdit:
        """What would be done to the rows."""
        batch = read_batch(self.job.open_checkpoint(), Batch(self.batch))
        return _Expiry(self.definition, self.resolutions, _watermark(batch))

    def describe(self) -> str:
        """What would be done, in a few lines."""
        lines = [f"retention   {self.definition.table}, after batch {self.batch} of {self.job.job}"]
        lines += words_of_meant(self.asked, self.definition.table)
        for g in self.going:
            before, after = words_of_keep(g.before), words_of_keep(g.after)
            kept = f"kept for {before}" if g.before == g.after else f"kept for {after} instead of {before}"
            lines.append(f"{g.resolution:<11} {kept}; {g.rows:,} rows, {g.size_bytes:,} bytes")
            if g.gone_rows:
                lines.append(f"            {g.gone_rows:,} rows go at once, {g.gone_bytes:,} bytes")
            if g.week_rows:
                lines.append(f"            {g.week_rows:,} rows more go within a week of event time, {g.week_bytes:,} bytes")
            if g.seen is not None:
                lines.append(f"            readers see them for {words_of_keep(g.seen)} already")
            if g.merged_rows:
                lines.append(f"            {g.merged_rows:,} rows are merged with another one of their bucket")
            if g.missing:
                lines.append("            older buckets are gone already: totals begin where all are there")
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> Replaced:
        """Change the state of the stopped job; then start it with the new retention in its declaration.

        Raises:  INVALID_REQUEST if nothing changes, or the job lies outside of the pond;
                 CHECKPOINT_IN_USE if it runs; NOT_WRITABLE, and what reading the checkpoint raises.
                 Then the job is as it was.
        """
        if not self.changes:
            raise _invalid(f"{self.definition.table} is kept for these times already.", "Name another time.")
        if not self.job.is_inside:
            raise _invalid(
                f"The checkpoint of {self.job.job} isn't in the pond.",
                "Only the state of jobs that millpond.start runs is changed.",
            )
        find_stopped_job(self.job.storage.uri, None, take_over=self.take_over)

        def make(over: TakeOver) -> None:
            source = over.folder.open_checkpoint()
            found = Found.of(source)
            number = found.committed[-1]
            batch = read_batch(source, Batch(number))
            made = savepoint_in(over.work, over.folder, number, progress, count=False)  # 1
            edit = _Expiry(self.definition, self.resolutions, _watermark(batch))

            def also() -> None:
                if found.unfinished is not None:
                    copy_plan(source, number, found.unfinished, over.copy)  # 3

            restore_files(made, over.copy, made.manifest.job_id, progress, edits=[edit], place=over.place, also=also)  # 2
            over.work.delete_all("savepoint")
            over.prepared.write_definition(_changed(self.definition, self.resolutions, _watermark(batch)))  # 4
            folder = over.folder.storage
            if read_shorter(folder, self.definition) != self._seen():
                raise _in_use(self.job, "Readers see its buckets for another time since the plan was made", "Plan it again.")
            over.prepared.storage.write(FILE, with_shorter(folder, self.definition, {}))

        return take_place(self.job, "retention", make, take_over=self.take_over)  # 5

    def hide(self) -> None:
        """Let readers see buckets for the new times, if these are shorter; the job may run.

        Every read that begins afterwards is as if older buckets had expired, in every process; on
        an object store within seconds.  The state still has them: with a longer time, up to that of
        the job, readers see them again.  `run` makes it so in the state.

        Raises:  INVALID_REQUEST if a time is longer than the job keeps buckets; CHECKPOINT_IN_USE
                 while another command changes the state; NOT_WRITABLE.
        """
        longer = next((g for g in self.going if least(g.before, g.after) != g.after), None)
        if longer is not None:
            raise _invalid(
                f"The job keeps buckets of {longer.resolution} for {words_of_keep(longer.before)}: readers can't see more.",
                "Stop the job, and change its state: leave out --hide.",
            )
        if self.job.storage.stamp(JOURNAL) is not None:
            raise _in_use(self.job, "A command changes its state, or was killed", "Wait for it, or start the job.")
        lower = {g.resolution: g.after for g in self.going if g.after is not None and g.after != g.before}
        write_shorter(self.job.storage, self.definition, lower)

    def _seen(self) -> dict[str, int]:
        return {g.resolution: g.seen for g in self.going if g.seen is not None}


def plan_retention(
    place: str | Path,
    table: str,
    keep: Mapping[str, str | None] = _NOTHING,
    *,
    take_over: bool = False,
    allow: Iterable[str | Path] = (),
) -> RetentionPlan:
    """Count what another retention would do to a declared aggregate; its job may run.

    place:      a pond
    table:      of buckets, or a name that means a version of it
    keep:       resolution -> how long its buckets are kept after their end, as `30 days`; None for
                ever.  Others have the times for which readers see them now
    take_over:  take the job's lease from whoever has it; only if that can't write any more
    Raises:     UNKNOWN_TABLE, NO_CHECKPOINT, NO_COMMITTED_BATCH; INVALID_REQUEST, also if the table
                isn't one of buckets; what reading the state raises.
    """
    asked, table = table, meant_table(open_storage(place), table)
    job, definition = _find(place, table, allow)
    before = definition.resolutions
    if before is None:
        raise _invalid(f"{table} has no resolutions.", "Name the table of a millpond.Aggregate.")
    seen = read_shorter(job.storage, definition)
    seen = {str(r): seen[str(r)] for r in before.each if least(r.keep_seconds, seen.get(str(r))) != r.keep_seconds}
    resolutions = replace(before, each=_each(definition, before, keep, seen))
    storage = job.open_checkpoint()
    committed = committed_batches(storage)
    if not committed:
        raise CheckpointError("NO_COMMITTED_BATCH", f"{storage.uri} has no committed batch.", hint="Start the job first.")
    batch = read_batch(storage, committed[-1])
    edit = _Expiry(definition, resolutions, _watermark(batch))
    _count(storage, batch, edit)
    return RetentionPlan(
        place=place,
        job=job,
        definition=definition,
        resolutions=resolutions,
        asked=asked,
        batch=batch.batch,
        going=tuple(replace(edit.going(r), seen=seen.get(str(r))) for r in before.each),
        take_over=take_over,
    )


def _find(place: str | Path, table: str, allow: Iterable[str | Path]) -> tuple[JobFolder, TableDefinition]:
    names: list[str] = []
    for folder in read_catalogue(place, Places.of(allow)).jobs:
        definitions = folder.definitions()
        if table in definitions:
            return folder, definitions[table]
        names += definitions
    raise unknown_table(table, str(place), names)


def _each(
    definition: TableDefinition, before: Resolutions, keep: Mapping[str, str | None], seen: Shorter
) -> tuple[Resolution, ...]:
    names = [str(r) for r in before.each]
    if unknown := next((name for name in keep if name not in names), None):
        raise _invalid(f"{definition.table} has no resolution {unknown!r:.40}.", f"It has {', '.join(names)}.")
    try:
        given = {name: None if length is None else parse_seconds(length) for name, length in keep.items()}
    except ValueError as wrong:
        raise _invalid(f"{wrong}.", "Write it as 30 days.") from None
    seconds: dict[str, int | None] = {**seen, **given}
    each = tuple(replace(r, keep_seconds=seconds.get(str(r), r.keep_seconds)) for r in before.each)
    short = next((r for r in each if r.keep_seconds is not None and r.keep_seconds < r.most_seconds), None)
    if short is not None:
        raise _invalid(f"Buckets of {short} can't be kept for {short.keep_words}, less than their length.", "Name a longer time.")
    return each


def _watermark(batch: CommittedBatch) -> int | None:
    return None if batch.watermark_ms is None else batch.watermark_ms * 1000


def _changed(definition: TableDefinition, resolutions: Resolutions, watermark: int | None) -> TableDefinition:
    """The definition with another retention, and from when on its buckets are complete."""
    before = definition.resolutions
    assert before is not None, "the caller has checked it"
    zone = parse_zone(before.zone)
    each = []
    for old, new in zip(before.each, resolutions.each, strict=True):
        there, wanted = (
            Calendar(old, zone).kept_from(watermark),
            Calendar(replace(new, complete_from=None), zone).kept_from(watermark),
        )
        lacks = there is not None and (wanted is None or wanted < there)
        each.append(replace(new, complete_from=there if lacks else None))
    meaning = definition.meaning
    if meaning is not None:
        words = list(meaning.grouping)
        for place, column in enumerate(definition.key_fields):
            if column.name == EXPIRES:
                words[place] = words_of_column(EXPIRES, each, None)
        meaning = Meaning(tuple(words), meaning.aggregates, meaning.buffers)
    return replace(definition, resolutions=replace(resolutions, each=tuple(each)), meaning=meaning)


def _reaches_before(calendar: Calendar, there: int | None, watermark: int | None) -> bool:
    """Whether buckets are kept from before an instant on; None if all are there."""
    wanted = calendar.kept_from(watermark)
    return there is not None and (wanted is None or wanted < there)


def _count(storage: Storage, batch: CommittedBatch, edit: _Expiry) -> None:
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            if (operator.operator, store.name) == (edit.operator, edit.store):
                count_edited(storage, batch, store, edit)


class _Expiry(RowEdit):
    """Gives buckets another `expires_at`.

    Those that have expired by it are left out.  Rows of one bucket are merged, and all are counted.
    """

    def __init__(self, definition: TableDefinition, after: Resolutions, watermark: int | None) -> None:
        before = definition.resolutions
        assert before is not None, "the caller has checked it"
        self.operator, self.store, _ = definition.store_id
        names = [field.name for field in definition.key_fields]
        self._resolution, self._bucket, self._expires = (names.index(name) for name in (RESOLUTION, BUCKET, EXPIRES))
        self._watermark, self._definition = watermark, definition
        zone = parse_zone(after.zone)
        self._old = {str(r): Calendar(r, zone) for r in before.each}
        self._new = {str(r): Calendar(r, zone) for r in after.each}
        self._going = {
            str(r): Going(str(r), old.keep_seconds, r.keep_seconds) for old, r in zip(before.each, after.each, strict=True)
        }
        # Rows and bytes of buckets that began within the last day.
        self._last_day = {name: [0, 0] for name in self._going}

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        family = codec.of(self.store)
        for key, value in rows:
            columns = list(family.read_key(key))
            name = columns[self._resolution]
            if name not in self._new:
                yield key, value  # a dead letter
                continue
            start, size = columns[self._bucket], len(key) + len(value)
            expires = self._new[name].expires(start)
            is_gone = expires is not None and self._watermark is not None and expires <= self._watermark
            self._note(name, start, columns[self._expires], expires, size, is_gone=is_gone)
            if is_gone:
                continue
            if expires == columns[self._expires]:
                yield key, value
            else:
                self._going[name].restated_rows += 1
                columns[self._expires] = expires
                yield family.write_key(tuple(columns)), value

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:
        family, resolutions = codec.of(self.store), self._definition.resolutions
        assert resolutions is not None, "the caller has checked it"
        self._going[family.read_key(rows[0][0])[self._resolution]].merged_rows += len(rows) - 1
        merge = compile_shares(self._definition.table, resolutions.merges, family.schema.value)
        return rows[0][0], family.write_row(merge([family.read_row(value) for _, value in rows]))

    def _note(self, name: str, start: int, before: int | None, after: int | None, size: int, *, is_gone: bool) -> None:
        going, watermark = self._going[name], self._watermark
        going.rows, going.size_bytes = going.rows + 1, going.size_bytes + size
        if is_gone:
            going.gone_rows, going.gone_bytes = going.gone_rows + 1, going.gone_bytes + size
        if watermark is None:
            return
        if start > watermark - DAY_MICROS:
            self._last_day[name][0] += 1
            self._last_day[name][1] += size
        within = watermark + _WEEK
        if not is_gone and after is not None and after <= within and (before is None or before > within):
            going.week_rows, going.week_bytes = going.week_rows + 1, going.week_bytes + size

    def going(self, resolution: Resolution) -> Going:
        """What happens to the rows that were read, of one resolution."""
        name = str(resolution)
        going, old, new = self._going[name], self._old[name], self._new[name]
        going.missing = _reaches_before(new, old.kept_from(self._watermark), self._watermark)
        # Buckets that are still to come, and gone in a week by the new retention alone.
        days = [7.0 if g is None else min(7.0, g / 86_400) for g in (going.before, going.after)]
        share = max(0.0, days[0] - days[1])
        rows, size = self._last_day[name]
        return replace(going, week_rows=going.week_rows + round(rows * share), week_bytes=going.week_bytes + round(size * share))


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", found, hint=hint)


def _in_use(job: JobFolder, found: str, hint: str) -> SavepointError:
    return SavepointError("CHECKPOINT_IN_USE", f"{found}: {job.job}.", hint=hint, job=job.job)
