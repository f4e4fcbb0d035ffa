"""Aggregate functions: the buffers of several parts of a group -> those of the whole group.

Spark does the same to merge partial aggregates.  Sums and moments of floats depend on the order of
addends, in Spark too: their last digits may differ from those of a group in one part.

Source:  mergeExpressions of the classes in org.apache.spark.sql.catalyst.expressions.aggregate,
         Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial, reduce
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.replica.keys.codec import column_writer
from millpond.scalar.number.ranges import EXACT, wrap
from millpond.scalar.order import rank
from millpond.scalar.sketch.kll import merge_kll
from millpond.scalar.sketch.library import merge_hll, merge_theta
from millpond.schema.definition.expression import Expression
from millpond.schema.types import Field, SparkType, atomic, parse_type
from millpond.tables.finish.buffers.counted import COUNTED, Counted
from millpond.tables.finish.buffers.hllpp import REGISTERS_PER_WORD
from millpond.tables.finish.buffers.items import TopItems
from millpond.tables.finish.buffers.quantiles import merge_quantiles
from millpond.tables.finish.buffers.top_k import TOP, top

Stored = Any
Buffers = Sequence[Stored]
"""The function's own buffers, in its order"""
MergeBuffers = Callable[[Sequence[Buffers]], Buffers]

_REGISTER = 63
_REGISTER_BITS = 6
_WRAPS = frozenset({"byte", "short", "integer", "long", "year_month_interval", "day_time_interval"})


def compile_buffers(expression: Expression, types: list[SparkType]) -> MergeBuffers:
    """The function that merges the buffers of one `aggregate` expression.

    types:   of its buffers

    The caller has checked `why_not_merged`.
    """
    function, mode = expression.options["function"], expression.options.get("mode", "legacy")
    if function == "count":
        return lambda parts: [sum(part[0] for part in parts)]
    if function == "sum":
        return _sum(types, mode)
    if function == "avg":
        return _average(types, mode)
    if function in ("min", "max"):
        return _extreme(function, types[0])
    if function in ("min_by", "max_by"):
        return _extreme_by(function, types[1])
    if function in TOP:
        return top(expression).merge
    if function in _BITWISE:
        return _bitwise(_BITWISE[function])
    if function in _MOMENTS:
        return _moments(_MOMENTS[function])
    if function in ("regr_slope", "regr_intercept"):
        return _regression
    if function == "product":
        return _product
    if function == "approx_count_distinct":
        return _registers
    if function in COUNTED:
        return Counted(expression).merge
    if function == "percentile_approx":
        return merge_quantiles
    if function == "approx_top_k":
        return TopItems(expression).merge
    if function in _SKETCHES:
        return _sketch(_SKETCHES[function](expression))
    return _collection(expression)


# ---------------------------------------------------------------- sums


def _sum(types: list[SparkType], mode: str) -> MergeBuffers:
    """A sum alone, or with `isEmpty` if NULL can mean an overflow, which stays an overflow.

    That is so for decimals and try_sum.
    """
    add = _adder(types[0], mode)
    if len(types) == 1:

        def merge(parts: Sequence[Buffers]) -> Buffers:
            return [add([part[0] for part in parts if part[0] is not None])]

        return merge

    def merge_tracked(parts: Sequence[Buffers]) -> Buffers:
        filled = [total for total, is_empty in parts if not is_empty]
        if not filled:
            return parts[0]
        return [None if None in filled else add(filled), False]

    return merge_tracked


def _average(types: list[SparkType], mode: str) -> MergeBuffers:
    add = _adder(types[0], mode)

    def merge(parts: Sequence[Buffers]) -> Buffers:
        totals = [part[0] for part in parts]
        return [None if None in totals else add(totals), sum(part[1] for part in parts)]

    return merge


def _adder(type_: SparkType, mode: str) -> Callable[[list[Stored]], Stored]:
    """The sum of values that aren't NULL.

    NULL if there are none, or if a decimal sum has too many digits.
    """
    if type_.kind == "decimal":
        bound = Decimal(10) ** (type_.precision - type_.scale)

        def add_decimals(values: list[Decimal]) -> Decimal | None:
            if not values:
                return None
            total = reduce(EXACT.add, values)
            return total if total.copy_abs() < bound else None  # abs() would round it

        return add_decimals
    if type_.kind in _WRAPS:
        return lambda values: wrap(sum(values), type_, mode) if values else None
    return lambda values: reduce(lambda a, b: a + b, values) if values else None


# ---------------------------------------------------------------- extremes


def _extreme(function: str, type_: SparkType) -> MergeBuffers:
    order, choose = rank(type_), min if function == "min" else max

    def merge(parts: Sequence[Buffers]) -> Buffers:
        return [choose((part[0] for part in parts if part[0] is not None), key=order, default=None)]

    return merge


def _extreme_by(function: str, type_: SparkType) -> MergeBuffers:
    """A value and its sort key; any of the values with equal sort keys."""
    order, choose = rank(type_), min if function == "min_by" else max

    def merge(parts: Sequence[Buffers]) -> Buffers:
        ordered = [part for part in parts if part[1] is not None]
        return choose(ordered, key=lambda part: order(part[1]), default=parts[0])

    return merge


_BITWISE: dict[str, Callable[[int, int], int]] = {
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
}


def _bitwise(combine: Callable[[int, int], int]) -> MergeBuffers:
    def merge(parts: Sequence[Buffers]) -> Buffers:
        values = [part[0] for part in parts if part[0] is not None]
        return [reduce(combine, values) if values else None]

    return merge


# ---------------------------------------------------------------- moments

_Two = Callable[[Sequence[float], Sequence[float]], Sequence[float]]


def _moments(two: _Two) -> MergeBuffers:
    # Skip a part without values: if its mean is NaN, it would spoil the sum.
    def merge(parts: Sequence[Buffers]) -> Buffers:
        filled = [part for part in parts if part[0]]
        return reduce(two, filled) if filled else parts[0]

    return merge


def _central(a: Sequence[float], b: Sequence[float]) -> Sequence[float]:
    """n, mean, and the moments 2 to 4 that the function has (Chan and others, Pébay)."""
    n1, n2 = a[0], b[0]
    n = n1 + n2
    delta = b[1] - a[1]
    over = delta / n
    out = [n, a[1] + over * n2, a[2] + b[2] + delta * over * n1 * n2]
    if len(a) > 3:
        out.append(a[3] + b[3] + over * over * delta * n1 * n2 * (n1 - n2) + 3.0 * over * (n1 * b[2] - n2 * a[2]))
    if len(a) > 4:
        out.append(
            a[4]
            + b[4]
            + over * over * over * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
            + 6.0 * over * over * (n1 * n1 * b[2] + n2 * n2 * a[2])
            + 4.0 * over * (n1 * b[3] - n2 * a[3])
        )
    return out


def _joint(a: Sequence[float], b: Sequence[float]) -> Sequence[float]:
    """n, mean of x, mean of y, co-moment; for a correlation also the second moments of x and y."""
    n1, n2 = a[0], b[0]
    n = n1 + n2
    dx, dy = b[1] - a[1], b[2] - a[2]
    dx_over, dy_over = dx / n, dy / n
    out = [n, a[1] + dx_over * n2, a[2] + dy_over * n2, a[3] + b[3] + dx * dy_over * n1 * n2]
    if len(a) > 4:
        out += [a[4] + b[4] + dx * dx_over * n1 * n2, a[5] + b[5] + dy * dy_over * n1 * n2]
    return out


_MOMENTS: dict[str, _Two] = {
    **dict.fromkeys(("stddev_pop", "stddev_samp", "var_pop", "var_samp", "skewness", "kurtosis", "regr_sxx"), _central),
    **dict.fromkeys(("covar_pop", "covar_samp", "corr", "regr_sxy", "regr_r2"), _joint),
}
_JOINT_BUFFERS = 4
_merge_joint, _merge_central = _moments(_joint), _moments(_central)


def _regression(parts: Sequence[Buffers]) -> Buffers:
    """A covariance, then a variance."""
    joint, central = [part[:_JOINT_BUFFERS] for part in parts], [part[_JOINT_BUFFERS:] for part in parts]
    return [*_merge_joint(joint), *_merge_central(central)]


def _product(parts: Sequence[Buffers]) -> Buffers:
    values = [part[0] for part in parts if part[0] is not None]
    return [reduce(lambda a, b: a * b, values) if values else None]


# ---------------------------------------------------------------- sketches and collections


def _registers(parts: Sequence[Buffers]) -> Buffers:
    """The greatest value of each register."""
    return [reduce(_greater, words) for words in zip(*parts, strict=True)]


def _greater(a: int, b: int) -> int:
    if a == b or not a or not b:
        return a | b
    out = 0
    for place in range(0, REGISTERS_PER_WORD * _REGISTER_BITS, _REGISTER_BITS):
        out |= max(a >> place & _REGISTER, b >> place & _REGISTER) << place
    return out


_SKETCHES: dict[str, Callable[[Expression], Callable[[Sequence[bytes]], bytes]]] = {
    "hll_sketch": lambda _: merge_hll,
    "theta_sketch": lambda e: partial(merge_theta, lg_k=e.options["lg_k"]),
    "kll_sketch": lambda e: partial(merge_kll, kind=e.options["kind"]),
}


def _sketch(merge_bytes: Callable[[Sequence[bytes]], bytes]) -> MergeBuffers:
    return lambda parts: [merge_bytes([part[0] for part in parts])]


def _collection(expression: Expression) -> MergeBuffers:
    """An UnsafeRow with the arrays of all parts as one: for lists, sets and joined texts.

    A set has each element once.
    """
    is_set = expression.options["function"] == "collect_set"
    element = parse_type(expression.options["element"]) if "element" in expression.options else expression.type.element
    assert element is not None
    if is_set and element.kind == "binary":
        element = SparkType("array", "array", element=atomic("byte"))
    fields = (Field("buf", SparkType("array", "array", element=element)),)
    decode, encode, same = decoder(fields), encoder(fields), column_writer(element)

    def merge(parts: Sequence[Buffers]) -> Buffers:
        items = [item for part in parts if part[0] for item in decode(part[0])[0]]
        if is_set:
            items = list({same(item): item for item in items}.values())
        return [encode((items,))]

    return merge
