"""What an audit found: counts by part of the input, counts by resolution, and what differs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from millpond.spark.audit.steps import Part

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCount:
    """What became of the events of one part of the input.

    batches:    that read it, as `batch 3`
    part:       the part
    records:    that the source has there
    events:     that the stream made of them: others were filtered by its query
    duplicates: of these, those whose id was remembered
    letters:    of these, dead letters that are in no bucket, by reason; and by resolution those
                that came too late for it
    unsure:     of these, those of which the recount can't be sure
    """

    batches: str
    part: Part
    records: int
    events: int
    duplicates: int
    letters: Mapping[str, int]
    unsure: int

    @property
    def lost_offsets(self) -> int:
        """Offsets without a record, such as those of compacted topics."""
        return 0 if self.part.end is None or self.part.first is None else self.part.end - self.part.first - self.records


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOf:
    """The rows of one resolution, or the dead letters of one reason.

    name:      of the resolution or the reason
    counted:   events that the recount has there
    expired:   of these, those whose row has expired by now
    least, most:  the others: how many events the table should have gained
    held:      how many it has gained
    rows:      its rows
    differ:    of these, how many differ
    """

    name: str
    counted: int
    expired: int
    least: int
    most: int
    held: int
    rows: int
    differ: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """The events of one part that belong to a row that differs.

    batches, part:  that read them
    events:       how many
    first, last:  their first and last offset; None of a file
    """

    batches: str
    part: Part
    events: int
    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that differs.

    key:         its key, without `expires_at`
    least, most: how many events it should have gained
    held:        how many it has gained
    batches:     in which of them that happened
    parts:       from where its events of these batches are
    """

    key: Mapping[str, Any]
    least: int
    most: int
    held: int
    batches: str
    parts: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A gap or a double.

    kind:    `gap`: no event of the part is in any row; `double`: each is there once more than it
             should; `part of a gap` and `part of a double`: rows lack events or have too many, and
             these are the parts of which some are concerned; `double or gone`: rows have events for
             which a compacted topic has no record, or has one too few
    batches, parts:  where
    events:  how many events are concerned
    """

    kind: Literal["gap", "double", "part of a gap", "part of a double", "double or gone"]
    batches: str
    parts: tuple[Part, ...]
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an aggregate has of its input.

    table:         its name
    first, batch:  the batches
    watermark_ms:  by which rows have expired
    counts_events: whether the table has a value that counts events; else only rows are compared
    parts:         of the input
    rows:          of the table, by resolution and reason
    findings:      gaps and doubles
    differences:   the first rows that differ
    differ:        how many differ
    """

    table: str
    first: int
    batch: int
    watermark_ms: int
    counts_events: bool
    parts: tuple[PartCount, ...]
    rows: tuple[RowsOf, ...]
    findings: tuple[Finding, ...]
    differences: tuple[Difference, ...]
    differ: int

    @property
    def is_balanced(self) -> bool:
        """Whether each event is where it should be, once."""
        return not self.differ

    @property
    def unsure(self) -> int:
        """Events of which the recount can't be sure."""
        return sum(part.unsure for part in self.parts)

    def describe(self, *, parts: bool = False) -> str:
        """The same for people.

        parts:  also a line for each part of the input
        """
        events, records = sum(p.events for p in self.parts), sum(p.records for p in self.parts)
        lines = [
            f"audit       {self.table}, batches {self.first} to {self.batch}",
            f"input       {_n(records, 'record')} in {_n(len(self.parts), 'part')}; {_n(events, 'event')} after the stream's query",
        ]
        if parts:
            lines += [f"            {line}" for each in self.parts for line in _part_lines(each)]
        if duplicates := sum(p.duplicates for p in self.parts):
            lines.append(f"duplicates  {_n(duplicates, 'event')}")
        if self.unsure:
            lines.append(f"unsure      {_n(self.unsure, 'event')}: of these there is more than one possibility")
        width = max([11, *(len(r.name) for r in self.rows)])
        for r in self.rows:
            should = f"{r.least:,}" if r.least == r.most else f"{r.least:,} to {r.most:,}"
            has = f"has {r.held:,} in {_n(r.rows, 'row')}" if self.counts_events else f"has {_n(r.rows, 'row')}"
            line = f"{r.name:<{width}} {should} to be there, {has}"
            lines.append(
                line
                + (f"; {r.expired:,} expired" if r.expired else "")
                + (f"; {_n(r.differ, 'row')} {'differs' if r.differ == 1 else 'differ'}" if r.differ else "")
            )
        for f in self.findings:
            where = ", ".join(p.words() for p in f.parts[:_SHOWN]) + (
                f" and {len(f.parts) - _SHOWN} more" if f.parts[_SHOWN:] else ""
            )
            lines.append(f"{f.kind.upper():<11} {_n(f.events, 'event')} of {f.batches}: {where or 'no part of the input'}")
        for d in self.differences[:_SHOWN]:
            should = f"{d.least:,}" if d.least == d.most else f"{d.least:,} to {d.most:,}"
            lines.append(f"differs     {_key(d.key)}: {should} to be there, {d.held:,} are; {d.batches}")
            lines += [f"            {_n(c.events, 'event')} of it from {_range(c)}" for c in d.parts[:_SHOWN]]
        if self.differ > _SHOWN:
            lines.append(f"            and {self.differ - min(_SHOWN, len(self.differences)):,} rows more")
        if not self.counts_events:
            lines.append("note        no value counts all events, so only whether rows are there was compared")
        verdict = "balanced" if self.is_balanced else "NOT BALANCED"
        lines.append(f"verdict     {verdict}" + (", as far as it is sure" if self.is_balanced and self.unsure else ""))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        facts = asdict(self)
        for part in facts["parts"]:
            part["letters"] = dict(part["letters"])
        for difference in facts["differences"]:
            difference["key"] = {name: _json(value) for name, value in difference["key"].items()}
        return {"table": self.table, "balanced": self.is_balanced, "unsure": self.unsure, **facts}


def _part_lines(count: PartCount) -> list[str]:
    said = [f"{count.events:,} events"]
    if count.records != count.events:
        said.insert(0, f"{count.records:,} records")
    if count.lost_offsets:
        said.append(f"{count.lost_offsets:,} offsets without a record")
    if count.duplicates:
        said.append(f"{count.duplicates:,} duplicates")
    said += [f"{n:,} {reason}" for reason, n in count.letters.items()]
    return [f"{count.batches}, {count.part.words()}: {', '.join(said)}"]


def _range(c: Contribution) -> str:
    offsets = "" if c.first is None else f", offsets {c.first} to {c.last}"
    return f"{c.part.words()}{offsets}, {c.batches}"


def _key(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_json(value)}" for name, value in key.items() if value is not None)


def _json(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _n(count: int, what: str) -> str:
    return f"{count:,} {what if count == 1 else what + 's'}"
