"""Aggregate functions of the plan -> expressions that finish their buffers.

Functions whose buffers are the result, and those with bytes of their own, are known by name.  For
all others that Spark declares by expressions (statistics, regressions), the plan has the expression
that computes the result from the buffers.  That one is used, with its settings, so that no formula
is written twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.parts import is_comparable
from millpond.schema.types import Field, SparkType, parse_type
from millpond.spark.derive.expression import NotExpressible, Scope, translate
from millpond.spark.derive.options import READERS
from millpond.spark.derive.plan import Java, class_name, elements, type_of

# Spark's class -> our function, for those that need only their buffers.
_PLAIN = {
    "Count": "count",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "Product": "product",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "SchemaOfVariantAgg": "schema_of_variant_agg",
    # Sketches and bitmaps whose stored bytes are those that Spark emits.
    "CountMinSketchAgg": "count_min_sketch",
    "BitmapConstructAgg": "bitmap_construct_agg",
    "BitmapOrAgg": "bitmap_or_agg",
    "BitmapAndAgg": "bitmap_and_agg",
}
# Spark's class -> our name, for those that are declared by expressions: parts are merged by name.
_DECLARED = {
    "StddevPop": "stddev_pop",
    "StddevSamp": "stddev_samp",
    "VariancePop": "var_pop",
    "VarianceSamp": "var_samp",
    "Skewness": "skewness",
    "Kurtosis": "kurtosis",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
    "Corr": "corr",
    "RegrR2": "regr_r2",
    "RegrReplacement": "regr_sxx",
    "RegrSXY": "regr_sxy",
    "RegrSlope": "regr_slope",
    "RegrIntercept": "regr_intercept",
}
# Only Spark's own functions can read their bytes.
_SKETCHES = {
    "HllUnionAgg": "an HLL sketch of Apache DataSketches",
    "ThetaIntersectionAgg": "a theta sketch of Apache DataSketches",
    **dict.fromkeys(
        (f"Tuple{kind}Agg{of}" for kind in ("Sketch", "Union", "Intersection") for of in ("Double", "Integer")),
        "a tuple sketch of Apache DataSketches",
    ),
    **dict.fromkeys(("ApproxTopKAccumulate", "ApproxTopKCombine"), "an items sketch of Apache DataSketches"),
    "BloomFilterAggregate": "a Bloom filter",
}
# Expression ids differ in every run; `sum(bytes#5L)` must stay the same text.
_IDS = re.compile(r"#\d+L?")


def translate_aggregate(
    aggregate: Java, places: tuple[int, ...], value_schema: tuple[Field, ...], scope: Scope | None = None
) -> Expression:
    """One AggregateExpression over buffers at `places` of the value row.

    scope:  says whether this JVM's Java is the job's

    The options have `sql`, the aggregate as a person would write it.  Two aggregates of one kind
    over different columns have equal buffers, and only this text shows that they were swapped.

    Raises:  NotExpressible if no function of Millpond finishes its buffers.
    """
    function = aggregate.aggregateFunction()
    name = class_name(function)
    options: dict[str, object] = {"buffers": list(places), "sql": _IDS.sub("", str(aggregate.sql()))}
    args: tuple[Expression, ...] = ()
    try:
        if name in _PLAIN:
            options["function"] = _PLAIN[name]
        elif name in _OPTIONS:
            options |= _OPTIONS[name](function, [value_schema[place].type for place in places])
            if name in _BY_DOUBLES and type_of(function.child()).kind == "decimal":
                options |= READERS["java"](function, scope or Scope())
        elif _is_declared(function):
            options["function"] = _DECLARED.get(name) or str(function.prettyName())
            args = (_declared(function, places, value_schema),)
        elif name in _SKETCHES:
            raise NotExpressible(f"{function.prettyName()} makes {_SKETCHES[name]}, which takes Spark's own functions to read")
        else:
            raise NotExpressible(f"the aggregate function {function.prettyName()} isn't known here")
    except NotExpressible as obstacle:
        raise NotExpressible(str(obstacle), frozenset(places)) from obstacle
    return Expression("aggregate", type_of(function), args, options)


# ---------------------------------------------------------------- declared


def _is_declared(function: Java) -> bool:
    kind = function.getClass()
    while kind is not None:
        if kind.getSimpleName() == "DeclarativeAggregate":
            return True
        kind = kind.getSuperclass()
    return False


def _declared(function: Java, places: tuple[int, ...], value_schema: tuple[Field, ...]) -> Expression:
    """The function's own expression over its buffers."""
    scope = Scope()
    for attribute, place in zip(elements(function.aggBufferAttributes()), places, strict=True):
        scope.add(attribute, buffer_column(place, value_schema[place].type))
    return translate(function.evaluateExpression(), scope)


# ---------------------------------------------------------------- functions with options

_Options = Callable[[Java, list[SparkType]], dict[str, Any]]


def _sum(function: Java, types: list[SparkType]) -> dict[str, Any]:
    mode = str(function.evalContext().evalMode().toString()).lower()
    return {"function": "sum", "mode": mode, "buffer_types": [t.name for t in types]}


def _average(function: Java, types: list[SparkType]) -> dict[str, Any]:
    return {"function": "avg", "mode": str(function.evalMode().toString()).lower(), "buffer_types": [t.name for t in types]}


def _top(function: Java, types: list[SparkType]) -> dict[str, Any]:
    ordered = types[1].element
    if ordered is None or not is_comparable(ordered):
        raise NotExpressible(f"{ordered} has no order that is known here")
    return {"function": "min_by_k" if function.reverse() else "max_by_k", "ordered_by": ordered.to_json()}


def _distinct(function: Java, _: list[SparkType]) -> dict[str, Any]:
    # Source: HyperLogLogPlusPlusHelper.p, Spark 4.3.
    precision = math.ceil(2.0 * math.log(1.106 / float(function.relativeSD())) / math.log(2.0))
    return {"function": "approx_count_distinct", "precision": precision}


def _percentile(function: Java, _: list[SparkType]) -> dict[str, Any]:
    is_discrete = class_name(function) == "PercentileDisc"
    return {
        "function": "percentile_disc" if is_discrete else "percentile",
        "of": type_of(function.child()).to_json(),
        "percentages": _percentages(function.percentageExpression()),
        "reverse": bool(function.reverse()),
        "legacy": is_discrete and bool(function.legacyCalculation()),
    }


def _quantiles(function: Java, _: list[SparkType]) -> dict[str, Any]:
    of = type_of(function.child())
    percentages = _percentages(function.percentageExpression())
    return {"function": "percentile_approx", "of": of.to_json(), "percentages": percentages}


def _percentages(e: Java) -> list[float]:
    value = e.eval(None)
    if type_of(e).kind != "array":
        return [float(value)]
    element = e.dataType().elementType()
    numbers = [value.get(i, element) for i in range(value.numElements())]
    return [float(n if isinstance(n, int | float) else n.toDouble()) for n in numbers]


def _histogram(_: Java, __: list[SparkType]) -> dict[str, Any]:
    return {"function": "histogram_numeric"}


def _mode(function: Java, _: list[SparkType]) -> dict[str, Any]:
    of, is_reversed = type_of(function.child()), function.reverseOpt()
    takes = ("lowest" if is_reversed.get() else "highest") if is_reversed.isDefined() else "any"
    if not is_comparable(of) or of.kind == "timestamp_nanos":
        raise NotExpressible(f"which of the most frequent values of type {of} Spark takes isn't known here")
    return {"function": "mode", "of": of.to_json(), "takes": takes}


def _joined(function: Java, _: list[SparkType]) -> dict[str, Any]:
    order = elements(function.orderExpressions())
    for by in order:
        if not is_comparable(type_of(by)):
            raise NotExpressible(f"{type_of(by)} has no order that is known here")
    delimiter = function.delimiter().eval(None)
    return {
        "function": "listagg",
        "element": parse_type(json.loads(function.bufferElementType().json())).to_json(),
        "is_struct": bool(function.needSaveOrderValue()),
        "order": [[class_name(by.direction()) == "Ascending$", class_name(by.nullOrdering()) == "NullsFirst$"] for by in order],
        "delimiter": "" if delimiter is None else bytes(delimiter).hex() if _is_bytes(delimiter) else str(delimiter.toString()),
    }


def _hll(_: Java, __: list[SparkType]) -> dict[str, Any]:
    return {"function": "hll_sketch"}


def _theta(function: Java, _: list[SparkType]) -> dict[str, Any]:
    return {"function": "theta_sketch", "lg_k": int(function.lgNomEntries())}


def _kll(function: Java, _: list[SparkType]) -> dict[str, Any]:
    return {"function": "kll_sketch", "kind": class_name(function).rpartition("Agg")[2].lower()}


def _top_items(function: Java, _: list[SparkType]) -> dict[str, Any]:
    of = type_of(function.expr())
    if (of.kind == "string" and of.name != "string") or not is_comparable(of):
        raise NotExpressible(f"which items of type {of} are equal isn't known here")
    return {"function": "approx_top_k", "of": of.to_json(), "k": int(function.k().eval(None))}


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray)


# These convert decimals to doubles, and their text back to decimals, which depends on the job's
# Java.
_BY_DOUBLES = frozenset({"ApproximatePercentile", "HistogramNumeric"})
_OPTIONS: dict[str, _Options] = {
    "Sum": _sum,
    "Average": _average,
    "MaxMinByK": _top,
    "HyperLogLogPlusPlus": _distinct,
    "Percentile": _percentile,
    "PercentileDisc": _percentile,
    "ApproximatePercentile": _quantiles,
    "HistogramNumeric": _histogram,
    "Mode": _mode,
    "ListAgg": _joined,
    "HllSketchAgg": _hll,
    "ThetaSketchAgg": _theta,
    "ThetaUnionAgg": _theta,
    **{f"Kll{kind}Agg{of}": _kll for kind in ("Sketch", "Merge") for of in ("Bigint", "Double", "Float")},
    "ApproxTopK": _top_items,
}
