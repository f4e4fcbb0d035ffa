"""A declared aggregate as the PySpark program that it stands for.

Values are printed as SQL.  Spark parses each text again, and it must give the same expression: what
has no text, such as a Python function, can't be printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.schema.definition.resolutions import (
    BUCKET,
    COLUMNS,
    EXPIRES,
    FIXED,
    FUTURE,
    METADATA,
    RESOLUTION,
    UNTIMED,
    Resolution,
)
from millpond.spark.derive.plan import Java, elements
from millpond.spark.shards import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HEAD = """\
from pyspark.sql import functions as F

time = F.col({time})
never = F.lit(None).cast("timestamp")


def bucket(resolution, begin, expires):
    return F.struct(F.lit(resolution).alias("{resolution}"), begin.alias("{bucket}"), expires.alias("{expires}"))
"""
# Each is printed if it is used.
_HELPERS = {
    "of_seconds(": """
def of_seconds(seconds):
    return F.timestamp_seconds(F.unix_seconds(time) - F.pmod(F.unix_seconds(time), F.lit(seconds)))
""",
    "after(": """
def after(begin, length, keep_seconds):
    return begin + F.expr(f"INTERVAL {length}") + F.expr(f"INTERVAL {keep_seconds} SECONDS")
""",
    "after_unit(": """
def after_unit(begin, unit, length, keep_seconds):
    # The end of a unit of the calendar: a day may have 23 or 25 hours.
    return F.date_trunc(unit, begin + F.expr(f"INTERVAL {length}")) + F.expr(f"INTERVAL {keep_seconds} SECONDS")
""",
}


def write_program(
    name: str,
    source: DataFrame,
    *,
    key: Sequence[str],
    event_time: str,
    values: Mapping[str, Column],
    resolutions: Iterable[Resolution],
    skew_seconds: int | None,
    delay_seconds: int | None,
) -> str:
    """The program, which makes `aggregated` of a DataFrame `source`.

    Raises:  UNSUPPORTED if a value has no text.
    """
    each = list(resolutions)
    buckets = [f"    {_bucket(resolution)},  # kept for {resolution.keep_words}" for resolution in each]
    lines = [f"# {name}: `source` is a DataFrame, `aggregated` the aggregate of it.", _HEAD.format(**_names(event_time))]
    lines += [text for call, text in _HELPERS.items() if any(call in bucket for bucket in buckets)]
    lines += ["", "each_event = F.array(", *buckets]
    lines += [")", f'buckets = F.when(time.isNull(), F.array(bucket("{UNTIMED}", never, never)))']
    if skew_seconds is not None:
        future = f'time > F.current_timestamp() + F.expr("INTERVAL {skew_seconds} SECONDS")'
        lines.append(f'buckets = buckets.when({future}, F.array(bucket("{FUTURE}", never, never)))')
    kept = {str(r): r.keep_seconds for r in each}
    grouping = ", ".join([*(_literal(_column(column)) for column in key), *(f'"{column}"' for column in COLUMNS)])
    lines += [
        "",
        'rows = source.select("*", F.explode(buckets.otherwise(each_event)).alias("__bucket")).select(',
        '    "*",',
        f'    F.col("__bucket.{RESOLUTION}").alias("{RESOLUTION}", metadata={{{_literal(METADATA)}: {_dict(kept)}}}),',
        f'    "__bucket.{BUCKET}",',
        f'    "__bucket.{EXPIRES}",',
        ")",
    ]
    if delay_seconds is not None:
        lines.append(f'rows = rows.withWatermark("{EXPIRES}", "{delay_seconds} seconds")')
    texts = sql_of(name, source, values)
    lines += [
        f"aggregated = rows.groupBy({grouping}).agg(",
        *(f"    F.expr({_literal(text)}).alias({_literal(column)})," for column, text in texts.items()),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _names(event_time: str) -> dict[str, str]:
    return {"time": _literal(_column(event_time)), "resolution": RESOLUTION, "bucket": BUCKET, "expires": EXPIRES}


def _bucket(resolution: Resolution) -> str:
    unit, keep = resolution.unit, resolution.keep_seconds
    if unit in FIXED:
        begin, length = f"of_seconds({resolution.most_seconds})", f"{resolution.most_seconds} SECONDS"
    else:
        begin = f'F.date_trunc("{unit}", time)'
        length = {"hour": "1 HOUR", "quarter": "3 MONTHS"}.get(unit, f"1 {unit.upper()}")
    expires = "never"
    if keep is not None:
        is_fixed = unit in (*FIXED, "hour")
        expires = f'after({begin}, "{length}", {keep})' if is_fixed else f'after_unit({begin}, "{unit}", "{length}", {keep})'
    return f'bucket("{resolution}", {begin}, {expires})'


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # of a text, JSON's form is Python's too


def _dict(values: Mapping[str, int | None]) -> str:
    return "{" + ", ".join(f"{_literal(name)}: {value}" for name, value in values.items()) + "}"


def _column(name: str) -> str:
    return name if name.isidentifier() else quoted(name)


def sql_of(name: str, source: DataFrame, values: Mapping[str, Column]) -> dict[str, str]:
    """The SQL of each value.  Raises UNSUPPORTED if one has none."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    texts: dict[str, str] = {}
    for column, value in values.items():
        plan = source.groupBy().agg(value.alias(column))._jdf.queryExecution().analyzed()
        for text in _candidates(source, plan, value):
            try:
                again = source.groupBy().agg(sf.expr(text).alias(column))._jdf.queryExecution().analyzed()
            except PySparkException:
                continue
            if plan.sameResult(again):
                texts[column] = text
                break
        else:
            raise RequestError(
                "UNSUPPORTED",
                f"The value {column} of the aggregate {name} has no text in SQL that means the same: {value}.",
                hint="It runs all the same; declare it by F.expr, and it can be printed.",
            )
    return texts


def _candidates(source: DataFrame, plan: Java, value: Column) -> Iterator[str]:
    """Texts of a value; that of the resolved expression lacks options of some functions."""
    (alias,) = elements(plan.aggregateExpressions())
    yield str(alias.child().sql())
    classic = source.sparkSession._jvm.org.apache.spark.sql.classic
    converter = getattr(getattr(classic, "ColumnNodeToExpressionConverter$"), "MODULE$")
    yield str(converter.apply(value._jc.node()).sql())
    yield str(value)[len("Column<'") : -len("'>")]
