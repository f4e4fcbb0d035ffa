"""Functions of sketches: how many distinct values, which quantile, which rank, how many values.

Source:  HllSketchEstimate, ThetaSketchEstimate and the classes KllSketchGet* of Spark 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from millpond.scalar.function import NUMBERS, Values, function, plain, strict, takes
from millpond.scalar.sketch.kll import ITEMS, SortedItems, read_kll, sorted_items
from millpond.scalar.sketch.library import Distinct, hll_estimate, theta_estimate
from millpond.scalar.spark_fails import SparkFails
from millpond.schema.definition.expression import Expression

_BINARY = frozenset({"binary"})
QUANTILES = {f"kll_sketch_get_quantile_{kind}": kind for kind in ITEMS}
"""Function -> the kind of its sketch, see `kll.ITEMS`."""
ESTIMATES: dict[str, Callable[[bytes], Distinct]] = {
    "hll_sketch_estimate": hll_estimate,
    "theta_sketch_estimate": theta_estimate,
}


def _count(estimate: Callable[[bytes], Distinct]) -> Values:
    return lambda data: math.floor(estimate(data).value + 0.5)


def _quantile(kind: str) -> Callable[[Expression], Values]:
    def quantile(data: bytes, ranks: Any) -> Any:
        items = _sorted(data, kind)
        for rank in ranks if isinstance(ranks, list) else [ranks]:
            if not 0.0 <= rank <= 1.0:
                raise SparkFails("VALUE_OUT_OF_RANGE", f"A quantile can't have the rank {rank}.", hint="Use ranks from 0 to 1.")
        return [items.quantile(rank) for rank in ranks] if isinstance(ranks, list) else items.quantile(ranks)

    return lambda _: quantile


def _rank(kind: str) -> Callable[[Expression], Values]:
    def rank(data: bytes, values: Any) -> Any:
        items = _sorted(data, kind)
        return [items.rank(value) for value in values] if isinstance(values, list) else items.rank(values)

    return lambda _: rank


def _sorted(data: bytes, kind: str) -> SortedItems:
    if not read_kll(data, kind).n:
        raise SparkFails(
            "VALUE_OUT_OF_RANGE", "A KLL sketch without values has no quantiles.", hint="Leave groups without values out."
        )
    return sorted_items(data, kind)


def _seen(kind: str) -> Values:
    return lambda data: read_kll(data, kind).n


_ARGUMENT = NUMBERS | {"array"}
FUNCTIONS = (
    function("hll_sketch_estimate", plain(_count(hll_estimate)), "HllSketchEstimate", refuse=takes(_BINARY)),
    function("theta_sketch_estimate", plain(_count(theta_estimate)), "ThetaSketchEstimate", refuse=takes(_BINARY)),
    *(
        function(
            f"kll_sketch_get_quantile_{kind}",
            strict(_quantile(kind)),
            f"KllSketchGetQuantile{kind.capitalize()}",
            refuse=takes(_BINARY, _ARGUMENT),
        )
        for kind in ITEMS
    ),
    *(
        function(
            f"kll_sketch_get_rank_{kind}",
            strict(_rank(kind)),
            f"KllSketchGetRank{kind.capitalize()}",
            refuse=takes(_BINARY, _ARGUMENT),
        )
        for kind in ITEMS
    ),
    *(
        function(f"kll_sketch_get_n_{kind}", plain(_seen(kind)), f"KllSketchGetN{kind.capitalize()}", refuse=takes(_BINARY))
        for kind in ITEMS
    ),
)
