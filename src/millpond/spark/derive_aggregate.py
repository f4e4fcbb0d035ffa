"""Aggregate functions of the plan -> what finishes their buffers."""

from __future__ import annotations

import math
import re

from millpond.schema.expression import Expression
from millpond.schema.parts import is_comparable
from millpond.schema.types import Field
from millpond.spark.derive_expression import NotExpressible
from millpond.spark.plan import Java, class_name, type_of

# Spark's class -> our function, for those that need nothing beside their buffers.
_PLAIN = {
    "Count": "count",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
}
_MOMENTS = {
    "StddevPop": "stddev_pop",
    "StddevSamp": "stddev_samp",
    "VariancePop": "var_pop",
    "VarianceSamp": "var_samp",
    "Skewness": "skewness",
    "Kurtosis": "kurtosis",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
    "Corr": "corr",
}
# Expression ids differ in every run; `sum(bytes#5L)` must stay the same text.
_IDS = re.compile(r"#\d+L?")


def translate_aggregate(aggregate: Java, places: tuple[int, ...], value_schema: tuple[Field, ...]) -> Expression:
    """One AggregateExpression over buffers at `places` of the value row.

    The options hold `sql`, the aggregate as a person would write it: two aggregates of one kind over different columns have the
    same buffers, and only this text tells a swap of them.
    Raises:  NotExpressible where no function here finishes its buffers.
    """
    function = aggregate.aggregateFunction()
    name = class_name(function)
    options: dict[str, object] = {"buffers": list(places), "sql": _IDS.sub("", str(aggregate.sql()))}
    if name in _PLAIN:
        options["function"] = _PLAIN[name]
    elif name in ("Sum", "Average"):
        options["function"] = "sum" if name == "Sum" else "avg"
        mode = function.evalContext().evalMode() if name == "Sum" else function.evalMode()
        options["mode"] = str(mode.toString()).lower()
        options["buffer_types"] = [value_schema[p].type.name for p in places]
    elif name in _MOMENTS:
        options["function"] = _MOMENTS[name]
        # What Spark gives where the formula divides by zero: NULL, or NaN by a legacy setting.
        undefined = function.divideByZeroEvalResult() if name not in ("StddevPop", "VariancePop", "CovPopulation") else None
        options["undefined_is_nan"] = undefined is not None and undefined.value() is not None
    elif name == "MaxMinByK":
        options["function"] = "min_by_k" if function.reverse() else "max_by_k"
        ordered = value_schema[places[1]].type.element
        if ordered is None or not is_comparable(ordered):
            raise NotExpressible(f"{ordered} has no order that is known here", frozenset(places))
        options["ordered_by"] = ordered.to_json()
    elif name == "HyperLogLogPlusPlus":
        options["function"] = "approx_count_distinct"
        # Source: HyperLogLogPlusPlusHelper.p, Spark 4.3.
        options["precision"] = math.ceil(2.0 * math.log(1.106 / float(function.relativeSD())) / math.log(2.0))
    else:
        raise NotExpressible(f"the aggregate function {function.prettyName()} isn't known here", frozenset(places))
    return Expression("aggregate", type_of(function), options=options)
