"""Time zones by the rules of the job's own Java.

The definition has the rules, since the data of time zones differs between machines: a reader with
newer data would show another hour than the job did.

Shape:   {"id": "America/New_York", "at": [each change, in seconds since 1970], "to": [the offset
         before all and after each, in seconds], "rules": [[month, day, weekday, second, clock,
         standard, before, after], …]}; a zone without changes has only its id and "to"
Source:  java.time.zone.ZoneRules and ZoneOffsetTransitionRule, JDK 17.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import Any

from millpond.scalar.time.calendar import DAY_SECONDS, MICROS, civil, days_of, month_length, weekday
from millpond.schema.definition.expression import Expression

Json = Any


class Zone:
    """Offsets from UTC, in seconds.

    at:     when the offset changes, in seconds since 1970, ascending
    to:     the offset before all of these, then after each
    rules:  the changes of each year after the last of these
    """

    def __init__(self, name: str, at: list[int], to: list[int], rules: list[list[Any]]) -> None:
        self.name = name
        self._at, self._to, self._rules = at, to, rules
        # From here on, in local time, the later offset applies; times in a gap or an overlap use
        # the earlier one.
        self._local = [t + max(a, b) for t, a, b in zip(at, to, to[1:], strict=False)]
        self._ruled_from = civil(at[-1] // DAY_SECONDS)[0] + 1 if rules else None

    def offset(self, seconds: int) -> int:
        """The offset at an instant."""
        if self._rules and seconds > self._at[-1]:
            found = self._to[-1]
            for at, _, after in self._near(seconds):
                if seconds >= at:
                    found = after
            return found
        return self._to[bisect_right(self._at, seconds)]

    def offset_of_local(self, seconds: int) -> int:
        """The offset of a local time, given as seconds as if it were UTC."""
        if self._rules and seconds > self._local[-1]:
            found = self._to[-1]
            for at, before, after in self._near(seconds):
                if seconds >= at + max(before, after):
                    found = after
            return found
        return self._to[bisect_right(self._local, seconds)]

    def start_of_day(self, days: int) -> int:
        """The first instant of a local day, in microseconds."""
        local = days * DAY_SECONDS
        at = local - self.offset_of_local(local)
        # If there is a gap, the day begins with the change itself.
        for change, before, after in self._changes_about(local):
            if change + before <= local < change + after:
                at = change
        return at * MICROS

    def to_local(self, micros: int) -> int:
        """Local time of an instant, in microseconds as if it were UTC."""
        return micros + self.offset(micros // MICROS) * MICROS

    def from_local(self, micros: int) -> int:
        """The instant of a local time."""
        return micros - self.offset_of_local(micros // MICROS) * MICROS

    def _changes_about(self, local: int) -> list[tuple[int, int, int]]:
        if self._rules and local > self._local[-1]:
            return self._near(local)
        place = bisect_right(self._at, local)
        near = range(max(0, place - 1), min(len(self._at), place + 1))
        return [(self._at[n], self._to[n], self._to[n + 1]) for n in near]

    def _near(self, seconds: int) -> list[tuple[int, int, int]]:
        """Offset changes of the years around a time after the last listed one: instant, old and new offset."""
        year = civil(seconds // DAY_SECONDS)[0]
        first = self._ruled_from
        assert first is not None
        years = range(max(first, year - 1), year + 2)
        return sorted(_change(rule, y) for y in years for rule in self._rules)


def _change(rule: list[Any], year: int) -> tuple[int, int, int]:
    """When a rule changes the offset in a year."""
    month, day, wanted, second, clock, standard, before, after = rule
    if day < 0:
        days = days_of(year, month, month_length(year, month) + 1 + day)
        days -= (weekday(days) - wanted) % 7 if wanted is not None else 0
    else:
        days = days_of(year, month, day)
        days += (wanted - weekday(days)) % 7 if wanted is not None else 0
    offset = {"UTC": 0, "WALL": before, "STANDARD": standard}[clock]
    return days * DAY_SECONDS + second - offset, before, after


def resolve(zone: Zone, local: int, preferred: int) -> int:
    """The instant of a local time, with this offset if it is valid for that time."""
    near = local - preferred * MICROS
    return near if zone.offset(near // MICROS) == preferred else zone.from_local(local)


def zone_of(e: Expression) -> Zone:
    """The time zone of an expression."""
    return parse_zone(e.options["zone"])


def parse_zone(data: Json) -> Zone:
    """The zone of its JSON form."""
    rules = tuple(tuple(rule) for rule in data.get("rules", ()))
    return _zone(data["id"], tuple(data.get("at", ())), tuple(data["to"]), rules)


@lru_cache(maxsize=64)
def _zone(name: str, at: tuple[int, ...], to: tuple[int, ...], rules: tuple[tuple[Any, ...], ...]) -> Zone:
    return Zone(name, list(at), list(to), [list(rule) for rule in rules])
