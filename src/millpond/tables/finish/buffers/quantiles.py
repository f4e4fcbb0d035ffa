"""Samples with their ranks: the buffers of percentile_approx (Greenwald and Khanna).

    buffer  int threshold, double relative error, long count, int samples; then each: double value, long g, long delta

`g` is the distance from the least rank of the previous sample to that of this one; `delta` is how
far its rank may lie above that.

Source:  ApproximatePercentile and org.apache.spark.sql.catalyst.util.QuantileSummaries, Spark 4.3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from millpond.scalar.casts import Casting, compile_cast
from millpond.schema.definition.expression import Expression
from millpond.schema.types import atomic, parse_type
from millpond.tables.finish.buffers.buffer_bytes import BufferReader

Stored = Any
_Sample = tuple[float, int, int]
_HEAD = struct.Struct(">idqi")
_SAMPLE = struct.Struct(">dqq")
# Buffers hold doubles: times as their numbers, all others by Spark's casts.
AS_NUMBER = {
    "date": "integer",
    "year_month_interval": "integer",
    **dict.fromkeys(("timestamp", "timestamp_ntz", "day_time_interval", "time"), "long"),
}


class Summary(NamedTuple):
    """One buffer.

    total:  how many values there were
    """

    threshold: int
    relative_error: float
    total: int
    samples: list[_Sample]


def read_summary(data: bytes) -> Summary:
    """Raises CORRUPT_FILE."""
    reader = BufferReader("percentile_approx", data)
    threshold, relative_error, count, size = reader.numbers(_HEAD)
    samples = reader.many(size, _SAMPLE)
    if count and not samples:
        raise reader.damage("has values without samples")
    return Summary(threshold, relative_error, count, samples)


def write_summary(summary: Summary) -> bytes:
    head = _HEAD.pack(summary.threshold, summary.relative_error, summary.total, len(summary.samples))
    return head + b"".join(_SAMPLE.pack(*sample) for sample in summary.samples)


def compile_quantiles(expression: Expression) -> Callable[[bytes | None], Stored]:
    """The function from a buffer to the final value."""
    percentages, as_list = expression.options["percentages"], expression.type.kind == "array"
    of = parse_type(expression.options["of"])
    target = atomic(AS_NUMBER.get(of.kind, of.name))
    convert = compile_cast(atomic("double"), target, Casting("legacy", expression.options.get("java")))

    def finish(data: bytes | None) -> Stored:
        summary = read_summary(data) if data else None
        if summary is None or not summary.total or not percentages:
            return None
        found = [convert(value) for value in query(summary, percentages)]
        return found if as_list else found[0]

    return finish


def query(summary: Summary, percentages: Sequence[float]) -> list[float]:
    """The value at each percentage; like Spark, each search begins where the one before ended."""
    samples, error = summary.samples, summary.relative_error
    target_error = max(delta + g for _, g, delta in samples) // 2
    found = [0.0] * len(percentages)
    at, rank_at = 0, samples[0][1]
    for place in sorted(range(len(percentages)), key=lambda i: percentages[i]):
        percentage = percentages[place]
        if percentage <= error:
            found[place] = samples[0][0]
        elif percentage >= 1.0 - error:
            found[place] = samples[-1][0]
        else:
            at, rank_at, found[place] = _find(summary, at, rank_at, target_error, percentage)
    return found


def _find(summary: Summary, at: int, least: int, target_error: int, percentage: float) -> tuple[int, int, float]:
    samples = summary.samples
    rank = math.ceil(percentage * summary.total)
    value, _, delta = samples[at]
    while at < len(samples) - 1:
        if least + delta - target_error <= rank <= least + target_error:
            return at, least, value
        at += 1
        value, g, delta = samples[at]
        least += g
    return len(samples) - 1, 0, samples[-1][0]


# ---------------------------------------------------------------- merging


def merge_quantiles(parts: Sequence[Sequence[Stored]]) -> list[Stored]:
    """The buffer of all parts, merged one after the other, as Spark merges partial ones."""
    whole: Summary | None = None
    for (data,) in parts:
        other = read_summary(data) if data else None
        if other is not None:
            whole = other if whole is None or not whole.total else _merged(whole, other) if other.total else whole
    return [None if whole is None else write_summary(whole)]


def _merged(one: Summary, other: Summary) -> Summary:
    relative_error, count = max(one.relative_error, other.relative_error), one.total + other.total
    more_of_one = math.floor(2 * other.relative_error * other.total)
    more_of_other = math.floor(2 * one.relative_error * one.total)
    samples: list[_Sample] = []
    i = j = 0
    while i < len(one.samples) and j < len(other.samples):
        if one.samples[i][0] < other.samples[j][0]:
            (value, g, delta), i = one.samples[i], i + 1
            samples.append((value, g, delta + (more_of_one if j > 0 else 0)))
        else:
            (value, g, delta), j = other.samples[j], j + 1
            samples.append((value, g, delta + (more_of_other if i > 0 else 0)))
    samples += one.samples[i:]
    samples += other.samples[j:]
    return Summary(other.threshold, relative_error, count, _compressed(samples, 2 * relative_error * count))


def _compressed(samples: list[_Sample], threshold: float) -> list[_Sample]:
    """The samples, with neighbours joined if they may be; the last sample always stays alone."""
    out: list[_Sample] = []
    head = samples[-1]
    for i in range(len(samples) - 2, 0, -1):
        value, g, delta = samples[i]
        if g + head[1] + head[2] < threshold:
            head = (head[0], head[1] + g, head[2])
        else:
            out.append(head)
            head = (value, g, delta)
    out.append(head)
    if len(samples) > 1 and samples[0][0] <= head[0]:
        out.append(samples[0])
    return out[::-1]
