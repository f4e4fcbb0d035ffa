"""What an aggregate should have gained from some batches, compared with what it has.

1. The recount says for each bucket and dead letter how many events it has at least and at most.
2. The table says how many it has after the last batch, and had before the first one.  Rows that
   have expired by the watermark of the last batch are left out on both sides.
3. All three are added up by key.  A row differs if it has gained less or more than the recount, or
   if it isn't there at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.state import StateReader
from millpond.errors import MillpondError
from millpond.schema.definition.resolutions import BUCKET, EXPIRES, LATE, LETTER, RESOLUTION
from millpond.spark.aggregate.declaration import Declaration
from millpond.spark.audit.recount import APART, DUPLICATE, LAST, SURE
from millpond.spark.derive.plan import class_name, elements
from millpond.spark.shards import quoted
from millpond.spark.source.source import NAME as MILLPOND
from millpond.spark.source.source import register
from millpond.tables.cold.table import ColdTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEAST, MOST, HELD, ROWS, BEFORE = "least", "most", "held", "rows", "rows_before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The values of a table that count.

    names:   columns that count events, or those that have some column
    events:  one that counts all events; None if there is none
    """

    names: tuple[str, ...]
    events: str | None


def counted_values(declared: Declaration, source: DataFrame) -> Counted:
    """The values that are counts, by Spark's own plan of them."""
    names, events = [], None
    for name, value in declared.values.items():
        plan = source.groupBy().agg(value.alias(name))._jdf.queryExecution().analyzed()
        (alias,) = elements(plan.aggregateExpressions())
        if class_name(alias.child()) != "AggregateExpression" or class_name(alias.child().aggregateFunction()) != "Count":
            continue
        if alias.child().isDistinct():
            continue
        names.append(name)
        children = elements(alias.child().aggregateFunction().children())
        if alias.child().filter().isEmpty() and all(class_name(child) == "Literal" and not child.nullable() for child in children):
            events = events or name
    return Counted(names=tuple(names), events=events)


class Table:
    """The rows of an aggregate after some batch, in the form in which they are compared."""

    def __init__(
        self, spark: SparkSession, pond: str, table: str, declared: Declaration, counted: Counted, allow: Sequence[str]
    ) -> None:
        register(spark)
        self._spark, self._pond, self._table, self._allow = spark, pond, table, tuple(allow)
        self.declared, self.counted = declared, counted
        self._ids = f"{table}.dedupe_1"
        definition = ColdTable(pond, table, None, allow).definition
        assert definition.resolutions is not None, "the caller has checked it"
        self._complete = {str(r): r.complete_from for r in definition.resolutions.each if r.complete_from is not None}

    def at(self, batch: int, watermark_ms: int) -> DataFrame:
        """The rows after a batch that haven't expired by a watermark: K0, K1, …, ROWS, V0, …

        Raises what reading the state raises, when its rows are asked for.
        """
        from pyspark.sql import functions as sf

        rows = self._load(self._table, batch, [*self.declared.key, *_columns(self.declared), EXPIRES, *self.counted.names])
        if self.declared.letters_seconds is None:
            rows = rows.withColumn(LETTER, sf.lit(None).cast("string"))
        rows = self.comparable(rows.where(_after(EXPIRES, watermark_ms)))
        values = [sf.col(quoted(name)).cast("long").alias(f"v{i}") for i, name in enumerate(self.counted.names)]
        return rows.select(*self.keys(), sf.lit(1).alias("one"), *values)

    def keys(self) -> list[Column]:
        """The key without `expires_at`, as K0, K1, …"""
        from pyspark.sql import functions as sf

        return [sf.col(quoted(name)).alias(f"k{i}") for i, name in enumerate(self.key_names)]

    @property
    def key_names(self) -> list[str]:
        """The columns of the key without `expires_at`."""
        return [*self.declared.key, RESOLUTION, BUCKET, LETTER]

    def comparable(self, rows: DataFrame) -> DataFrame:
        """Without buckets from before another retention, of which some are missing."""
        from pyspark.sql import functions as sf

        for name, micros in self._complete.items():
            rows = rows.where(~((sf.col(RESOLUTION) == name) & (sf.col(BUCKET) < sf.timestamp_micros(sf.lit(micros)))))
        return rows

    def remembered(self, batch: int) -> DataFrame | None:
        """The ids that the state remembers after a batch; None without `dedupe`."""
        if self.declared.dedupe is None:
            return None
        return self._load(self._ids, batch, [self.declared.dedupe.column, APART, EXPIRES])

    def is_readable(self, batch: int) -> bool:
        """Whether the state after a batch can be read."""
        tables = [self._table, *([] if self.declared.dedupe is None else [self._ids])]
        try:
            return all(map(partial(self._is_there, batch=batch), tables))
        except MillpondError:
            return False

    def _is_there(self, table: str, batch: int) -> bool:
        found = ColdTable(self._pond, table, batch, self._allow)
        read, storage = found.table_batch(expired=True), found.storage
        reader = StateReader(storage)
        files = (reader.files(read.batch, read.schema, partition)[1] for partition in read.partitions)
        return all(storage.stamp(path) is not None for changes in files for path in changes)

    def _load(self, table: str, batch: int, columns: list[str]) -> DataFrame:
        reader = self._spark.read.format(MILLPOND).option("pond", self._pond).option("table", table).option("batch", batch)
        for place in self._allow:
            reader = reader.option("allow", place)
        if not any("," in name or name != name.strip() for name in columns):
            reader = reader.option("columns", ",".join(dict.fromkeys(columns)))
        return reader.load().select(*(quoted(name) for name in dict.fromkeys(columns)))


def compare(table: Table, rows: DataFrame, begin: int | None, end: int, watermark_ms: int) -> DataFrame:
    """Every row, with what it has gained and should have gained: K0, …, LEAST, MOST, ROWS, ROWS_BEFORE, and of each value.

    rows:          the recount of the batches after `begin` up to `end`
    begin:         the batch before them; None if the state was empty
    watermark_ms:  with which the last one was planned
    """
    from pyspark.sql import functions as sf

    counted, count = table.counted, len(table.counted.names)
    zero = sf.lit(0).cast("long")
    shown = [f"{which}{i}" for which in (LEAST, MOST, HELD) for i in range(count)]
    each = [f"k{i}" for i in range(len(table.key_names))]

    def signed(held: DataFrame, sign: int) -> DataFrame:
        values: dict[str, Column] = dict.fromkeys(shown, zero) | {LEAST: zero, MOST: zero, ROWS: zero, BEFORE: zero}
        values[ROWS if sign > 0 else BEFORE] = sf.col("one").cast("long")
        values |= {f"{HELD}{i}": sf.col(f"v{i}") * sign for i in range(count)}
        return held.select(*each, *(value.alias(name) for name, value in values.items()))

    should = rows.where(_after(LAST, watermark_ms) & (sf.col(RESOLUTION) != DUPLICATE))
    if table.declared.letters_seconds is None:
        should = should.where(~sf.col(RESOLUTION).startswith(LATE))
    is_sure = sf.col(SURE) & _after(EXPIRES, watermark_ms)
    grouped = table.comparable(should).groupBy(*table.keys(), is_sure.alias("sure"))
    made = [table.declared.values[name].alias(f"v{i}") for i, name in enumerate(counted.names)]
    found = grouped.agg(sf.count("*").alias("n"), *made)
    values: dict[str, Column] = {LEAST: sf.when(sf.col("sure"), sf.col("n")).otherwise(zero), MOST: sf.col("n")}
    for i in range(count):
        values |= {f"{LEAST}{i}": sf.when(sf.col("sure"), sf.col(f"v{i}")).otherwise(zero), f"{MOST}{i}": sf.col(f"v{i}")}
        values[f"{HELD}{i}"] = zero
    values |= {ROWS: zero, BEFORE: zero}
    parts = [found.select(*each, *(value.alias(name) for name, value in values.items())), signed(table.at(end, watermark_ms), 1)]
    if begin is not None:
        parts.append(signed(table.at(begin, watermark_ms), -1))
    every = parts[0]
    for part in parts[1:]:
        every = every.unionByName(part)
    return every.groupBy(*each).agg(*(sf.sum(name).alias(name) for name in (LEAST, MOST, ROWS, BEFORE, *shown)))


def differs(counted: Counted) -> Column:
    """Whether a row of `compare` isn't as it should be."""
    from pyspark.sql import functions as sf

    rows, before, least, most = (sf.col(name) for name in (ROWS, BEFORE, LEAST, MOST))
    wrong = ((least > 0) | (before > 0)) & (rows == 0) | (most == 0) & (rows > 0) & (before == 0)
    for i in range(len(counted.names)):
        held = sf.col(f"{HELD}{i}")
        wrong = wrong | (held < sf.col(f"{LEAST}{i}")) | (held > sf.col(f"{MOST}{i}"))
    return wrong


def gained(counted: Counted, row: Mapping[str, Any]) -> tuple[int, int, int]:
    """How many events a row of `compare` should have gained at least and at most, and how many it has.

    Without a value that counts events, whether it is there.
    """
    if counted.events is None:
        return min(row[LEAST], 1), min(row[MOST], 1), row[ROWS] - row[BEFORE]
    i = counted.names.index(counted.events)
    return row[f"{LEAST}{i}"], row[f"{MOST}{i}"], row[f"{HELD}{i}"]


def _columns(declared: Declaration) -> list[str]:
    return [RESOLUTION, BUCKET, *([] if declared.letters_seconds is None else [LETTER])]


def _after(column: str, watermark_ms: int) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(column).isNull() | (sf.col(column) > sf.timestamp_millis(sf.lit(watermark_ms)))
