"""Which buckets make up a span, against days, hours and months of Python's own time zones."""

from __future__ import annotations

import datetime as dt
import random
from zoneinfo import ZoneInfo

import pytest

from millpond.scalar.time.zones import Zone
from millpond.schema.definition.resolutions import parse_each
from millpond.tables.buckets.cover import Cover
from millpond.tables.kept.calendar import Calendar
from suite.sizes import examples

MICROS = 1_000_000
ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia")
BEGIN, END = (int(dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()) for year in (2005, 2030))


def zone_of(name: str) -> Zone:
    """The offsets of one of Python's zones, found by looking at every quarter of an hour."""
    zone, at, to = ZoneInfo(name), [], []
    for day in range(BEGIN - 400 * 86_400, END + 400 * 86_400, 86_400):
        if offset(zone, day) != offset(zone, day + 86_400):
            moment = next(s for s in range(day, day + 86_401, 900) if offset(zone, s) != offset(zone, day))
            at.append(moment)
            to.append(offset(zone, moment))
    return Zone(name, at, [offset(zone, BEGIN - 400 * 86_400), *to], [])


def offset(zone: ZoneInfo, seconds: int) -> int:
    return int(dt.datetime.fromtimestamp(seconds, zone).utcoffset().total_seconds())


def label(zone: ZoneInfo, unit: str, seconds: int) -> tuple[int, ...]:
    """What all instants of one local day, week, month, … have in common."""
    local = dt.datetime.fromtimestamp(seconds, zone)
    return {
        "day": (local.year, local.month, local.day),
        "week": tuple(local.isocalendar()[:2]),
        "month": (local.year, local.month),
        "quarter": (local.year, (local.month - 1) // 3),
        "year": (local.year,),
    }[unit]


ZONES_READ = {name: zone_of(name) for name in ZONES}


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("unit", ["day", "week", "month", "quarter", "year"])
def test_a_bucket_has_just_the_instants_of_its_local_day_or_month(name, unit):
    random_, zone = random.Random(f"{name} {unit}"), ZoneInfo(name)
    calendar = Calendar(parse_each([(f"1 {unit}", None)])[0], ZONES_READ[name])
    for _ in range(examples(1000)):
        seconds = random_.randrange(BEGIN, END)
        start = calendar.start(seconds * MICROS)
        end = calendar.end(start)
        assert start <= seconds * MICROS < end
        assert label(zone, unit, start // MICROS) == label(zone, unit, seconds) == label(zone, unit, end // MICROS - 1)
        assert label(zone, unit, start // MICROS - 1) != label(zone, unit, seconds) != label(zone, unit, end // MICROS)
        assert calendar.start(end) == end == calendar.up(end - 1) == calendar.up(end)


SETS = (
    ["1 minute", "1 hour", "1 day"],
    ["10 seconds", "1 minute", "1 hour", "1 day", "1 month", "1 year"],
    ["1 hour", "1 day", "1 week"],
    ["5 minutes", "1 day"],
    ["15 minutes", "1 quarter"],
    ["1 day"],
)


@pytest.mark.parametrize("name", ZONES)
def test_pieces_tile_a_span_with_whole_buckets_that_are_kept(name):
    random_, zone = random.Random(name), ZONES_READ[name]
    for _ in range(examples(1000)):
        lengths = random_.choice(SETS)
        each = parse_each([(n, random_.choice((None, 400 * 86_400, 3000 * 86_400))) for n in lengths])
        watermark = random_.choice((None, random_.randrange(BEGIN, END) * MICROS))
        near = [r.keep_seconds * MICROS for r in each if r.keep_seconds is not None]
        cover = Cover(each, zone, watermark)
        calendars = {r: Calendar(r, zone) for r in each}
        since = random_.randrange(BEGIN, END - 86_400) * MICROS
        if watermark is not None and near and random_.random() < 0.7:
            since = watermark - random_.choice(near) + int(random_.gauss(0, 86_400 * MICROS))
        until = since + random_.choice((1, 3600, 86_400, 40 * 86_400)) * random_.randrange(1, 20) * MICROS
        start, end = cover.down(since), cover.up(until)
        if start is None:
            assert watermark is not None
            assert all(expires(calendars[r], since) <= watermark for r in each)
            continue
        assert end is not None
        assert start <= since < until <= end
        pieces = cover.pieces(start, end)
        assert [p.start for p in pieces[1:]] == [p.end for p in pieces[:-1]]
        assert (pieces[0].start, pieces[-1].end) == (start, end)
        for piece in pieces:
            calendar = calendars[piece.resolution]
            assert calendar.start(piece.start) == piece.start < piece.end == calendar.start(piece.end)
            assert watermark is None or expires(calendar, piece.start) is None or expires(calendar, piece.start) > watermark
        # No longer bucket would fit into what shorter ones cover.
        for resolution, calendar in calendars.items():
            if resolution.keep_seconds is None or watermark is None:
                first = calendar.up(start)
                if first < calendar.start(end):
                    inside = [p for p in pieces if first <= p.start < calendar.start(end)]
                    assert all(p.resolution.most_seconds >= resolution.most_seconds for p in inside)


def expires(calendar: Calendar, micros: int) -> int | None:
    """As the job computes it: an hour has 60 minutes."""
    start, keep = calendar.start(micros), calendar.resolution.keep_seconds
    end = start + 3600 * MICROS if calendar.resolution.unit == "hour" else calendar.end(start)
    return None if keep is None else end + keep * MICROS


@pytest.mark.parametrize(
    ("each", "why"),
    [
        ([], "there are none"),
        ([("1 fortnight", None)], "isn't a length of buckets"),
        ([("7 minutes", None)], "divide"),
        ([("2 hours", None)], "divide"),
        ([("0 minutes", None)], "divide"),
        ([("1 hour", 3599)], "shorter than a bucket"),
        ([("1 hour", None), ("1 hours", 7200)], "twice"),
        ([("1 week", None), ("1 month", None)], "doesn't begin with a week"),
        ([("2 minutes", None), ("5 minutes", None)], "whole shorter ones"),
        ([("soon", None)], "isn't a length of time"),
    ],
)
def test_lengths_that_cannot_be_resolutions_say_why(each, why):
    with pytest.raises(ValueError, match=why):
        parse_each(each)
