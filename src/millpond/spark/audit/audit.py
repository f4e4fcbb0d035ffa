"""Compares what an aggregate has with what it has read: each event is there once, or there is a reason.

1. Read from the checkpoint which batches there are, what each has read, and its time and watermark.
2. Read exactly that from the source once more, and compute what becomes of each event.
3. Compare the rows after the last batch, less those before the first one, with that.
4. If rows differ, halve the batches until the batch is found in which they do: Spark still has the
   state after each of its last batches.
5. Within a batch, a part of the input none of whose events is in any row is a gap; one whose events
   are all there once more is a double.  What is left can't be assigned to one part.  Of a compacted
   topic nobody can tell a double from an event whose record is gone by now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.errors import DefinitionError, RequestError
from millpond.schema.definition.resolutions import EXPIRES, LATE, LETTER, RESOLUTION
from millpond.schema.definition.table import TableDefinition
from millpond.spark.aggregate.declaration import Declaration
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.audit.compare import Table, compare, counted_values, differs, gained
from millpond.spark.audit.input import NAME, OFFSET, PART, SOURCE, Input, file_name
from millpond.spark.audit.records import Records, count_records
from millpond.spark.audit.recount import DUPLICATE, FIRST, LAST, STEP, SURE, recount
from millpond.spark.audit.report import Audit, Contribution, Difference, Finding, PartCount, RowsOf
from millpond.spark.audit.steps import Part, Step, read_steps
from millpond.storage import Storage
from millpond.tables.cold.table import ColdTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ZONE = "spark.sql.session.timeZone"
_MOST_ROWS = 10_000
Key = tuple[Any, ...]
# Where the resolution is in a key.
_RESOLUTION = -3


def audit(
    aggregate: Aggregate,
    source: DataFrame,
    *,
    pond: str | Path,
    since: int | None = None,
    until: int | None = None,
    allow: Iterable[str | Path] = (),
) -> Audit:
    """Compare what an aggregate has with what its job has read, event by event.

    Spark reads the input once more, in one batch, exactly as far as the checkpoint says.  The job
    may run.

    aggregate:  as it was declared
    source:     the stream that its job reads; nothing is started
    pond:       that has its table
    since:      the first batch; None for all that the job has read
    until:      the last batch; None for the newest
    allow:      places outside of a pond where its checkpoint may lie, as for `open`
    Raises:     UNKNOWN_TABLE, NO_COMMITTED_BATCH; BATCH_GONE if Spark no longer has these batches;
                DEFINITION_CHANGED if the table is of another declaration; INPUT_GONE if the source
                has lost what was read; UNSUPPORTED for sources other than files and Kafka, and for
                streams with state of their own; as `Aggregate.on`.
    """
    with auditing(aggregate, source, pond, since, until, allow) as going:
        return going.run()


@contextmanager
def auditing(
    aggregate: Aggregate,
    source: DataFrame,
    pond: str | Path,
    since: int | None,
    until: int | None,
    allow: Iterable[str | Path],
) -> Iterator[Auditing]:
    """An audit in the time zone of the job.  Raises as `audit`."""
    spark, places = source.sparkSession, tuple(map(str, allow))
    found = ColdTable(pond, aggregate.table, None, places)
    check_declared(aggregate.declared, found.definition)
    zone = spark.conf.get(_ZONE)
    aggregate.on(source)  # checks the columns
    try:
        spark.conf.set(_ZONE, zone_of(found.definition, str(zone)))
        steps = read_steps(found.storage, since, until)
        yield Auditing(aggregate.declared, source, str(pond), found.storage, steps, since, places)
    finally:
        spark.conf.set(_ZONE, zone)


def zone_of(definition: TableDefinition, otherwise: str) -> str:
    """The time zone of a table's buckets, as a setting of Spark."""
    assert definition.resolutions is not None, "it is checked"
    return str(definition.resolutions.zone.get("id", otherwise))


def check_declared(declared: Declaration, definition: TableDefinition) -> None:
    """Raise DEFINITION_CHANGED if a table isn't that of a declaration; INVALID_REQUEST if it has no buckets."""
    if definition.resolutions is None:
        raise RequestError(
            "INVALID_REQUEST", f"{definition.table} has no resolutions.", hint="Name the table of a millpond.Aggregate."
        )
    there = {str(r): r.keep_seconds for r in definition.resolutions.each}
    now = {str(r): r.keep_seconds for r in declared.resolutions}
    key = [c.name for c in definition.key if c.name not in (RESOLUTION, "bucket_start", EXPIRES, LETTER)]
    listed = any(c.name == LETTER for c in definition.key)
    why = None
    if there != now:
        why = f"its resolutions are {_words(there)}, and declared are {_words(now)}"
    elif key != list(declared.key):
        why = f"its key is {', '.join(key)}, and declared is {', '.join(declared.key)}"
    elif listed != (declared.letters_seconds is not None):
        why = (
            "it lists dead letters, and the declaration doesn't" if listed else "it lists no dead letters, and the declaration does"
        )
    elif missing := [name for name in declared.values if name not in definition.columns]:
        why = f"it has no column {', '.join(missing)}"
    if why is not None:
        raise DefinitionError(
            "DEFINITION_CHANGED",
            f"{definition.table} isn't of this declaration: {why}.",
            hint="Name the declaration with which its job was started.",
            table=definition.table,
        )


def _words(keeps: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} for {'ever' if keep is None else f'{keep} seconds'}" for name, keep in keeps.items())


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Steps that are compared together.

    begin:  the batch before them whose state is taken off; None for an empty state
    """

    begin: int | None
    steps: tuple[Step, ...]

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def batches(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        return (
            last.batches
            if first.first_batch == last.batch or len(self.steps) == 1
            else f"batches {first.first_batch} to {last.batch}"
        )


class _OfPart(NamedTuple):
    """The events of a row that are in one part of the input: at least and at most how many, their first and last offset."""

    least: int
    events: int
    first: int | None
    last: int | None


def _whole_parts(
    by_part: Mapping[tuple[int, Part], Mapping[Key, _OfPart]], left: Mapping[Key, int], side: int
) -> list[tuple[int, Part]]:
    """The parts all of whose events are missing (side 0), or are there once more (1), without a doubt.

    left:  row -> how many events it lacks or has too many
    If several parts fit, but not all of them together, nobody knows which of them it is.
    """
    needed = {
        place: {key: n for key, row in rows.items() if (n := row.events if side else row.least)} for place, rows in by_part.items()
    }
    fit = [place for place, rows in needed.items() if rows and all(left.get(key, 0) >= n for key, n in rows.items())]
    together: Counter[Key] = Counter()
    for place in fit:
        together.update(needed[place])
    return [place for place in fit if all(together[key] <= left[key] for key in needed[place])]


class Auditing:
    """One audit."""

    def __init__(
        self,
        declared: Declaration,
        source: DataFrame,
        pond: str,
        storage: Storage,
        steps: Sequence[Step],
        since: int | None,
        allow: tuple[str, ...],
    ) -> None:
        self.declared, self.source, self.storage, self.steps = declared, source, storage, list(steps)
        self._spark = source.sparkSession
        self.input = Input(source)
        self.counted = counted_values(declared, source)
        self.table = Table(self._spark, pond, declared.name, declared, self.counted, allow)
        begin = None if not since else since - 1
        if begin is not None and not self.table.is_readable(begin):
            raise RequestError(
                "INVALID_REQUEST",
                f"The state after batch {begin}, before the audit begins, can't be read any more.",
                hint="Name a later batch: --since.",
            )
        self.stretch = _Stretch(begin, tuple(self.steps))

    def rows_of(self, stretch: _Stretch, only: Column | None = None) -> DataFrame:
        """The recount of some steps; `only` chooses events, together with all that have their id."""
        events = self.input.read(p for step in stretch.steps for p in step.parts)
        if only is not None:
            events = events.where(only)
        ids = None if stretch.begin is None else self.table.remembered(stretch.begin)
        return recount(self.declared, events, stretch.steps, ids)

    def run(self) -> Audit:
        from pyspark.sql import functions as sf

        whole, counted = self.stretch, self.counted
        records = self.records = count_records(self.input, self.steps, files=True)
        watermark_ms = whole.last.watermark_ms[1]
        rows = self.rows_of(whole).persist()  # 2
        compared = (
            compare(self.table, rows, whole.begin, whole.last.batch, watermark_ms).withColumn("wrong", differs(counted)).persist()
        )
        try:
            parts = tuple(self._count_parts(rows, records))
            kinds = tuple(self._count_rows(rows, compared, watermark_ms))
            wrong = [r.asDict() for r in compared.where("wrong").limit(_MOST_ROWS).collect()]  # 3
            total = compared.where("wrong").agg(sf.count("*")).first()[0] if len(wrong) == _MOST_ROWS else len(wrong)
        finally:
            rows.unpersist()
            compared.unpersist()
        differences, findings = self._locate(whole, wrong) if wrong else ([], [])
        return Audit(
            table=self.declared.name,
            first=whole.steps[0].first_batch,
            batch=whole.last.batch,
            watermark_ms=watermark_ms,
            counts_events=counted.events is not None,
            parts=parts,
            rows=kinds,
            findings=tuple(findings),
            differences=tuple(differences),
            differ=total,
        )

    def _count_parts(self, rows: DataFrame, records: Records) -> Iterator[PartCount]:
        from pyspark.sql import functions as sf

        place = (sf.col(f"{PART}.{SOURCE}").alias("source"), sf.col(f"{PART}.{NAME}").alias("name"), sf.col(STEP).alias("step"))
        found = rows.groupBy(*place, RESOLUTION).agg(
            sf.count_if(FIRST).alias("events"),
            sf.count("*").alias("rows"),
            sf.count_if(sf.col(FIRST) & ~sf.col(SURE)).alias("unsure"),
        )
        counts: dict[tuple[int, str, int], dict[str, Counter[str]]] = {}
        for r in found.collect():
            each = counts.setdefault(
                (r["source"], r["name"], r["step"]), {"events": Counter(), "rows": Counter(), "unsure": Counter()}
            )
            for what, counter in each.items():
                counter[r[RESOLUTION]] += r[what]
        names = {str(r) for r in self.declared.resolutions}
        for step in self.steps:
            for part in step.parts:
                each = counts.get(
                    (part.source, file_name(part), step.number), {"events": Counter(), "rows": Counter(), "unsure": Counter()}
                )
                letters = {reason: n for reason, n in sorted(each["rows"].items()) if reason not in names and reason != DUPLICATE}
                yield PartCount(
                    batches=step.batches,
                    part=part,
                    records=records.of(step, part),
                    events=each["events"].total(),
                    duplicates=each["rows"][DUPLICATE],
                    letters=letters,
                    unsure=each["unsure"].total(),
                )

    def _count_rows(self, rows: DataFrame, compared: DataFrame, watermark_ms: int) -> Iterator[RowsOf]:
        from pyspark.sql import functions as sf

        mark = sf.timestamp_millis(sf.lit(watermark_ms))
        is_expired = sf.coalesce(sf.col(LAST) <= mark, sf.lit(False))
        all_rows = rows.where(sf.col(RESOLUTION) != DUPLICATE).groupBy(RESOLUTION)
        counts = {
            r[RESOLUTION]: (r["n"], r["gone"])
            for r in all_rows.agg(sf.count("*").alias("n"), sf.count_if(is_expired).alias("gone")).collect()
        }
        place = f"k{self.table.key_names.index(RESOLUTION)}"
        number = None if self.counted.events is None else self.counted.names.index(self.counted.events)
        least, most, held = ("least", "most", "rows") if number is None else (f"least{number}", f"most{number}", f"held{number}")
        if number is None:
            measured = [
                sf.count_if(sf.col(least) > 0),
                sf.count_if(sf.col(most) > 0),
                sf.sum(sf.col("rows") - sf.col("rows_before")),
            ]
        else:
            measured = [sf.sum(least), sf.sum(most), sf.sum(held)]
        found = {
            r["name"]: r
            for r in compared.groupBy(sf.col(place).alias("name"))
            .agg(
                *(column.alias(name) for column, name in zip(measured, ("least", "most", "held"), strict=True)),
                sf.sum("rows").alias("rows"),
                sf.count_if("wrong").alias("differ"),
            )
            .collect()
        }
        order = [str(r) for r in self.declared.resolutions]
        for name in [*order, *sorted((counts.keys() | found.keys()) - set(order))]:
            n, gone = counts.get(name, (0, 0))
            if self.declared.letters_seconds is None and name.startswith(LATE):
                yield RowsOf(name=name, counted=n, expired=n, least=0, most=0, held=0, rows=0, differ=0)
                continue
            r = found.get(name)
            values = {} if r is None else {what: int(r[what] or 0) for what in ("least", "most", "held", "rows", "differ")}
            yield RowsOf(name=name, counted=n, expired=gone, **{"least": 0, "most": 0, "held": 0, "rows": 0, "differ": 0, **values})

    # ------------------------------------------------------------ where rows differ

    def _locate(self, stretch: _Stretch, wrong: list[dict[str, Any]]) -> tuple[list[Difference], list[Finding]]:  # 4
        """The rows that differ, each with its batches, and what explains them."""
        cut = self._cut(stretch)
        if cut is None:
            return self._explain(stretch, wrong)
        differences: list[Difference] = []
        findings: list[Finding] = []
        for half in cut:
            found = self._wrong(half)
            if found:
                more, explained = self._locate(half, found)
                differences += more
                findings += explained
        return differences, findings

    def _cut(self, stretch: _Stretch) -> tuple[_Stretch, _Stretch] | None:
        """Two halves, the state between which can be read; None if there are none."""
        steps = stretch.steps
        places = [i for i in range(1, len(steps)) if steps[i].batch != steps[i - 1].batch]
        for i in sorted(places, key=lambda i: abs(i - len(steps) // 2)):
            if self.table.is_readable(steps[i - 1].batch):
                return _Stretch(stretch.begin, steps[:i]), _Stretch(steps[i - 1].batch, steps[i:])
        return None

    def _wrong(self, stretch: _Stretch) -> list[dict[str, Any]]:
        compared = compare(self.table, self.rows_of(stretch), stretch.begin, stretch.last.batch, stretch.last.watermark_ms[1])
        return [r.asDict() for r in compared.where(differs(self.counted)).limit(_MOST_ROWS).collect()]

    def _explain(self, stretch: _Stretch, wrong: list[dict[str, Any]]) -> tuple[list[Difference], list[Finding]]:  # 5
        size = len(self.table.key_names)
        differ = {tuple(row[f"k{i}"] for i in range(size)): gained(self.counted, row) for row in wrong}
        by_part = self._contributions(stretch)
        steps = {step.number: step for step in stretch.steps}
        left = {key: (least - held, held - most) for key, (least, most, held) in differ.items()}
        findings: list[Finding] = []
        compacted = [part for step in stretch.steps for part in step.parts if self._is_compacted(step, part)]
        for kind, side in (("gap", 0),) if compacted else (("gap", 0), ("double", 1)):
            for number, part in _whole_parts(by_part, {key: each[side] for key, each in left.items()}, side):
                events = by_part[number, part]
                for key, row in events.items():
                    missing, more = left.get(key, (0, 0))
                    left[key] = (missing - row.least, more) if side == 0 else (missing, more - row.events)
                of_rows: Counter[str] = Counter()
                for key, row in events.items():
                    of_rows[key[_RESOLUTION]] += row.events
                found = Finding(kind=kind, batches=steps[number].batches, parts=(part,), events=max(of_rows.values()))  # type: ignore[arg-type]
                findings.append(found)
        for kind, side in (("part of a gap", 0), ("double or gone" if compacted else "part of a double", 1)):
            rest = {key: each[side] for key, each in left.items() if each[side] > 0}
            if rest:
                parts = {part: None for (_, part), events in by_part.items() if rest.keys() & events.keys()}
                if side:
                    parts |= dict.fromkeys(compacted)
                of_rows = Counter()
                for key, n in rest.items():
                    of_rows[key[_RESOLUTION]] += n
                found = Finding(kind=kind, batches=stretch.batches, parts=tuple(parts), events=max(of_rows.values()))  # type: ignore[arg-type]
                findings.append(found)
        names = self.table.key_names
        differences = [
            Difference(
                key=dict(zip(names, key, strict=True)),
                least=least,
                most=most,
                held=held,
                batches=stretch.batches,
                parts=tuple(
                    Contribution(batches=steps[number].batches, part=part, events=mine.events, first=mine.first, last=mine.last)
                    for (number, part), events in by_part.items()
                    if (mine := events.get(key)) is not None
                ),
            )
            for key, (least, most, held) in differ.items()
        ]
        return differences, findings

    def _is_compacted(self, step: Step, part: Part) -> bool:
        """Whether records of a part may have gone since the job has read them."""
        if part.end is None or part.first is None or self.records.of(step, part) == part.end - part.first:
            return False
        return self.input.may_be_compacted(part)

    def _contributions(self, stretch: _Stretch) -> dict[tuple[int, Part], dict[Key, _OfPart]]:
        """Step and part -> row -> its events that the part has."""
        from pyspark.sql import functions as sf

        mark = sf.timestamp_millis(sf.lit(stretch.last.watermark_ms[1]))
        rows = self.rows_of(stretch)
        alive = rows.where((sf.col(LAST).isNull() | (sf.col(LAST) > mark)) & (sf.col(RESOLUTION) != DUPLICATE))
        if self.declared.letters_seconds is None:
            alive = alive.where(~sf.col(RESOLUTION).startswith(LATE))
        offset = sf.col(f"{PART}.{OFFSET}")
        grouped = self.table.comparable(alive).groupBy(
            *self.table.keys(),
            sf.col(STEP).alias("step"),
            sf.col(f"{PART}.{SOURCE}").alias("source"),
            sf.col(f"{PART}.{NAME}").alias("name"),
        )
        is_sure = sf.col(SURE) & (sf.col(EXPIRES).isNull() | (sf.col(EXPIRES) > mark))
        offsets = sf.min(offset).alias("first"), sf.max(offset).alias("last")
        found = grouped.agg(sf.count("*").alias("n"), sf.count_if(is_sure).alias("sure"), *offsets).collect()
        by_place = {
            (step.number, part.source, file_name(part)): (step.number, part) for step in stretch.steps for part in step.parts
        }
        size = len(self.table.key_names)
        result: dict[tuple[int, Part], dict[Key, _OfPart]] = {}
        for r in found:
            key = tuple(r[f"k{i}"] for i in range(size))
            most = r["n"] if self.counted.events is not None else 1
            row = _OfPart(min(r["sure"], most), most, r["first"], r["last"])
            result.setdefault(by_place[r["step"], r["source"], r["name"]], {})[key] = row
        return result
