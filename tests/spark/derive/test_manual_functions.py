"""The functions of Spark's manual, over columns: Millpond computes each as Spark does, or refuses it, and this test lists it.

The expressions are the manual's own examples, with a column in place of one literal after the other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inputs.spark_manual import OF_A_RUN, Function, computable, functions, needs_jvm, scalar_functions
from millpond.errors import MillpondError
from millpond.spark.derive.expression import NotExpressible
from oracles.catalyst import Catalyst, SparkFailed, form
from random_queries.functions import AGGREGATES
from suite.sizes import a_few

ROOT = Path(__file__).parents[3]
PARTS = 48
# Millpond could compute these, and doesn't.
REFUSED = {"cos", "cot", "csc", "sec", "sin", "tan", "from_json", "time_bucket", "timestamp_nanos", "unix_nanos"}
# Spark makes a constant of each example, whatever the column is, or no example has a literal.
WITHOUT_EXAMPLE = {"array_size", "cardinality", "size", "collate", "collation", "typeof", "json_tuple", "schema_of_json"}
WITHOUT_EXAMPLE |= {"map_from_entries", "regexp_substr"}
AGGREGATES_REFUSED = {"collect_union"}
# Functions of sketches; and functions that need a grouping set or a metric view.
AGGREGATES_OF_JVM = re.compile(r"(hll|kll|theta|tuple)_\w*|approx_top_k_(accumulate|combine)|grouping(_id)?|measure")


@pytest.fixture(scope="module")
def catalyst(spark: Any) -> Catalyst:
    """A Catalyst with a column for each type of the examples."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    types = dict.fromkeys(variant.type for function in scalar_functions(spark) for variant in function.variants)
    return Catalyst(spark, ", ".join(f"c{n} {type_}" for n, type_ in enumerate(types)))


def use_literals(catalyst: Catalyst, spark: Any, function: Function) -> dict[str, str]:
    """Make rows of the function's own literals, and one of NULLs; returns type -> column."""
    one = Catalyst(spark, "x int")
    one.use([(1,)])
    pools: dict[str, list[Any]] = {}
    for literal in function.literals:
        pools.setdefault(literal.type, []).append(one.by_spark(*one.optimized([literal.text]), compiled=False)[0])
    names = dict(zip(catalyst.type_names, (f.name for f in catalyst.fields), strict=True))
    count = max(map(len, pools.values()))
    rows = [tuple(pools[t][n % len(pools[t])] if t in pools else None for t in names) for n in range(count)]
    catalyst.use([*rows, (None,) * len(names)])
    return names


def outcome(catalyst: Catalyst, text: str, column: str) -> tuple[str, str]:
    """`computed`, `refused`, `other` (another result than Spark's) or `none` (no function of Spark's, or a constant), and why."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        (expression,) = catalyst.optimized([text], lenient=True)
    except (PySparkException, Py4JJavaError) as failed:
        return "none", str(failed)
    if expression is None or not re.search(rf"\b{column}\b", str(expression.sql())):
        return "none", ""
    try:
        ours = catalyst.by_millpond(catalyst.translated(expression))
    except NotExpressible as obstacle:
        return "refused", str(obstacle)
    for row, spark, here in zip(catalyst.rows, catalyst.by_spark(expression, compiled=False), ours, strict=True):
        failed = isinstance(spark, SparkFailed), isinstance(here, MillpondError)
        if failed != (True, True) and (any(failed) or form(spark) != form(here)):
            return "other", f"{text} of {row}: Spark {spark!r:.120}, here {here!r:.120}"
    return "computed", ""


@pytest.mark.parametrize("part", a_few(range(PARTS), 0))
def test_the_manuals_own_examples_give_what_spark_gives(spark, catalyst, part):
    wrong = []
    for function in scalar_functions(spark)[part::PARTS]:
        columns = use_literals(catalyst, spark, function)
        found = [outcome(catalyst, variant.over(columns[variant.type]), columns[variant.type]) for variant in function.variants]
        kinds = {kind for kind, _ in found}
        wrong += [why for kind, why in found if kind == "other"]
        if function.name in REFUSED or needs_jvm(function):
            expected = {"refused", "none"}
            is_right = kinds <= expected
        elif function.name in WITHOUT_EXAMPLE or function.name in OF_A_RUN:
            is_right = "computed" not in kinds
        else:
            is_right = "computed" in kinds
        if not is_right:
            wrong.append(f"{function.name}: {sorted(set(found))}")
    assert wrong == []


@pytest.mark.long
def test_less_than_a_twentieth_of_the_functions_is_refused(spark):
    from spark.derive.test_aggregate_functions import FUNCTIONS

    computed = {f.name for f in computable(spark)} - WITHOUT_EXAMPLE
    tested = " ".join([*AGGREGATES, *(text for texts in FUNCTIONS.values() for text in texts)])
    aggregates = {f.name for f in functions(spark) if f.group == "agg_funcs" and not AGGREGATES_OF_JVM.fullmatch(f.name)}
    untested = {name for name in aggregates if not re.search(rf"\b{name}\(", tested)}
    assert untested == AGGREGATES_REFUSED
    refused = (REFUSED & computed) | AGGREGATES_REFUSED
    total = len(computed | aggregates)
    assert len(refused) / total < 0.05
    page = (ROOT / "docs" / "expressions.md").read_text()
    assert f"{total} functions" in page
    assert all(f"`{name}`" in page for name in sorted(refused))
