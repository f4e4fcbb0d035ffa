"""Sequences of dates and timestamps.

Source:  Sequence.TemporalSequenceImpl, Spark 4.3.
"""

from __future__ import annotations

from millpond.errors import RequestError
from millpond.scalar.function import Values, takes
from millpond.scalar.number.ranges import wrap
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.time.calendar import DAY_MICROS, MICROS, add_months
from millpond.scalar.time.zones import Zone, resolve, zone_of
from millpond.schema.definition.expression import Expression
from millpond.schema.types import SparkType

_LONGEST = 1_000_000
_SHORTEST_MONTH = 28
_LONG = SparkType("long", "long")
_INTEGER = SparkType("integer", "integer")


def sequence_of_times(e: Expression) -> Values:
    """From a start to an end by a step of days, months or microseconds: by default one day."""
    is_date = e.args[0].type.kind == "date"
    zone = zone_of(e) if e.options.get("zone") is not None else None

    def compute(start: int, stop: int, step: int | None = None) -> list[int]:
        months, days, micros = _parts(e, step, forward=start <= stop)
        if is_date and months == 0 and micros == 0 and days:
            return _even(start, stop, days)
        if is_date and months == 0 and days == 0:
            raise _refused("has a step of less than a day")
        if not is_date and months == 0 and days == 0:
            return _even(start, stop, micros)
        assert zone is not None
        first, last = (zone.start_of_day(start), zone.start_of_day(stop)) if is_date else (start, stop)
        found = _uneven(zone, first, last, (months, days, micros))
        return [zone.to_local(micros) // DAY_MICROS for micros in found] if is_date else found

    return compute


def _parts(e: Expression, step: int | None, *, forward: bool) -> tuple[int, int, int]:
    """Months, days and microseconds of a step."""
    if step is None:
        return 0, 1 if forward else -1, 0
    if e.args[2].type.kind == "year_month_interval":
        return step, 0, 0
    days = abs(step) // DAY_MICROS * (1 if step >= 0 else -1)
    return 0, days, step - days * DAY_MICROS


def _length(start: int, stop: int, step: int) -> int:
    """The length of a sequence with a step of this size."""
    if not ((step > 0 and start <= stop) or (step < 0 and start >= stop) or (step == 0 and start == stop)):
        raise _refused("doesn't lead to its end")
    count = 1 if start == stop else abs(stop - start) // abs(step) + 1
    if abs(stop - start) >= 1 << 63:
        raise _refused("is too long")
    if count > _LONGEST:
        raise RequestError("VALUE_OUT_OF_RANGE", "Its expression makes a sequence that is too long.", hint="Use a longer step.")
    return count


def _even(start: int, stop: int, step: int) -> list[int]:
    return [start + n * step for n in range(_length(start, stop, step))]


def _uneven(zone: Zone, start: int, stop: int, step: tuple[int, int, int]) -> list[int]:
    """Each element is computed from the start.

    Spark checks that the sequence leads to its end with months of 28 days and days of 24 hours.
    """
    months, days, micros = step
    size = micros + months * _SHORTEST_MONTH * DAY_MICROS + days * DAY_MICROS
    _length(start, stop, size)
    out: list[int] = []
    at = start
    while at <= stop if size > 0 else at >= stop:
        out.append(at)
        count = len(out)
        if any(wrap(n * count, _INTEGER, "try") is None for n in (months, days)):
            raise _refused("leaves the range of its type")
        at = _moved(zone, start, (months * count, days * count, micros * count))
    return out


def _moved(zone: Zone, start: int, step: tuple[int, int, int]) -> int:
    """A time plus an interval; the offset stays if it is valid for the local time.

    Source:  ZonedDateTime.plusMonths and plusDays of Java.
    """
    months, days, micros = step
    at = start
    for move_months, move_days in ((months, 0), (0, days)):
        if move_months or move_days:
            day, clock = divmod(zone.to_local(at), DAY_MICROS)
            moved = add_months(day, move_months) if move_months else day + move_days
            at = resolve(zone, moved * DAY_MICROS + clock, zone.offset(at // MICROS))
    found = wrap(at + micros, _LONG, "ansi")
    assert found is not None
    return found


def _refused(what: str) -> SparkFails:
    return SparkFails("VALUE_OUT_OF_RANGE", f"Its expression makes a sequence that {what}.", hint="Use another step in the job.")


def refuse_sequence_of_times(e: Expression) -> str | None:
    """Why a sequence of times isn't known here."""
    if len(e.args) > 2 and e.args[2].type.kind not in ("day_time_interval", "year_month_interval"):
        return f"sequence by {e.args[2].type} isn't known here"
    kind = e.args[0].type.kind
    return takes({kind}, {kind}, {"day_time_interval", "year_month_interval"})(e)
