"""An aggregate over the changes of a table, equal to the same aggregate over the table's rows.

1. Each change becomes signed rows: the old row with -1, the new row with +1.
2. Counts, and sums and averages of whole numbers, are sums of signed values: a plain `groupBy`.  A
   group without rows is hidden by a filter.
3. If any other value is wanted, state holds the rows of each group (`held`), and all values are
   computed from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.spark.compose.held import HeldRows
from millpond.spark.compose.values import Top, Value, parse_values
from millpond.spark.shards import quoted
from millpond.spark.source.columns import BATCH, KIND, NEW, OLD, SIGN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXPIRED = ("retract", "keep")
_ROWS, _INPUT, _GROUP = "_rows", "_input_", "_group_"


def signed_rows(changes: DataFrame, *, expired: str = "retract") -> DataFrame:
    """The rows that changes take away and add: the table's columns, `_sign` (-1 or 1) and `_batch`.

    The sum of `_sign` over equal rows says how often the table has such a row.

    changes:  of `read_changes`
    expired:  `retract` takes expired rows away, so that the sums are those of the rows in Spark's
              state; `keep` leaves them, as a finished window stays true
    Raises:   INVALID_REQUEST
    """
    from pyspark.sql import functions as F

    if expired not in EXPIRED:
        raise _invalid(f"expired is {expired!r:.40}", "Use retract or keep.")
    if {KIND, BATCH} - set(changes.columns):
        raise _invalid("the rows aren't changes of a table", "Read them by millpond.read_changes.")
    key = [name for name in changes.columns if name not in (KIND, BATCH, OLD, NEW)]

    def row(sign: int, side: str) -> Column:
        fields = changes.schema[side].dataType.names if side in changes.columns else []
        columns = [F.col(quoted(name)).alias(name) for name in key]
        columns += [F.col(f"{side}.{quoted(name)}").alias(name) for name in fields]
        return F.struct(*columns, F.lit(sign).alias(SIGN), F.col(BATCH).alias(BATCH))

    takes = F.col(KIND) != "insert"
    if expired == "keep":
        takes &= F.col(KIND) != "expire"
    both = F.array(F.when(takes, row(-1, OLD)), F.when(F.col(KIND).isin("insert", "update"), row(1, NEW)))
    return changes.select(F.explode(both).alias("_row")).where(F.col("_row").isNotNull()).select("_row.*")


def aggregate_changes(
    changes: DataFrame, by: Sequence[str], values: Mapping[str, Column | Top], *, expired: str = "retract"
) -> DataFrame:
    """An aggregate over the rows of a table, kept by its changes; give it to `start`.

    Counts, and sums and averages of whole numbers, are kept by signed updates; so are sums of
    decimals.  As soon as one value is something else (a minimum, a maximum, `top`, a count of
    distinct values, a sum or an average of floats), state holds the rows of each group, and every
    change to a group reads all rows of that group.

    by:       columns of the table to group by, or none for one group of all rows
    values:   name -> `F.count`, `F.sum`, `F.avg`, `F.min`, `F.max`, `F.count_distinct` over columns
              or expressions, or `millpond.top`
    expired:  as for `signed_rows`
    Tables:   with signed updates one, called as `start` says; else `<table>_rows` (the held rows)
              and `<table>_result`
    Raises:   NOT_RETRACTABLE for other functions, such as sketches; WRONG_TYPE, UNKNOWN_COLUMN,
              INVALID_REQUEST.
    """
    rows = signed_rows(changes, expired=expired)
    known = [name for name in rows.columns if name not in (SIGN, BATCH)]
    for name in by:
        if name not in known:
            raise RequestError(
                "UNKNOWN_COLUMN",
                f"The rows have no column {name!r:.80}.",
                hint=f"Their columns are {', '.join(known)}.",
                column=name,
            )
    if not values or set(values) & {*by, _ROWS}:
        raise _invalid("each value needs a name of its own", f"Name values otherwise than the columns of `by` and {_ROWS}.")
    parsed = parse_values(rows.select(*(quoted(name) for name in known)), values)
    return _signed(rows, by, parsed) if all(value.is_signed for value in parsed) else _held(rows, by, parsed)


def _signed(rows: DataFrame, by: Sequence[str], values: list[Value]) -> DataFrame:  # 2
    from pyspark.sql import functions as F

    sign = F.col(SIGN)
    columns = []
    for value in values:
        if not value.inputs:
            columns.append(F.sum(sign.cast("long")).alias(value.name))
            continue
        # Spark computes it from the sums of what each row adds or takes.
        given = F.expr(value.inputs[0])
        there = F.sum(F.when(given.isNotNull(), sign.cast("long")).otherwise(F.lit(0).cast("long")))
        if value.function == "count":
            columns.append(there.alias(value.name))
            continue
        amount = given if value.kinds[0] == "decimal" else given.cast("long")
        total = F.sum(F.when(sign > 0, amount).otherwise(-amount))
        found = total.cast(value.type) if value.function == "sum" else total.cast("double") / there.cast("double")
        columns.append(F.when(there > 0, found).alias(value.name))
    counted = rows.groupBy(*(quoted(name) for name in by)).agg(*columns, F.sum(sign.cast("long")).alias(_ROWS))
    return counted.where(F.col(_ROWS) > 0).drop(_ROWS)


def _held(rows: DataFrame, by: Sequence[str], values: list[Value]) -> DataFrame:  # 3
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    texts = list(dict.fromkeys(text for value in values for text in value.inputs))
    group = [F.col(quoted(name)).alias(name) for name in by] or [F.lit(0).alias(_GROUP)]
    names = list(by) or [_GROUP]
    chosen = rows.select(*group, *(F.expr(text).alias(f"{_INPUT}{i}") for i, text in enumerate(texts)), F.col(SIGN))
    inputs = StructType([StructField(f"{_INPUT}{i}", chosen.schema[f"{_INPUT}{i}"].dataType) for i in range(len(texts))])
    result = StructType([StructField(value.name, value.type) for value in values])
    places = {text: i for i, text in enumerate(texts)}
    output = StructType([*(StructField(name, chosen.schema[name].dataType) for name in names), *result.fields])
    plans = [(v.function, tuple(places[t] for t in v.inputs), v.kinds, v.most) for v in values]
    processor = HeldRows(inputs, output, result, plans, SIGN)
    return chosen.groupBy(*(quoted(name) for name in names)).transformWithState(
        processor, outputStructType=output, outputMode="update", timeMode="none"
    )


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The changes can't be combined: {found}.", hint=hint)
