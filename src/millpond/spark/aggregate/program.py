"""A declared aggregate as the PySpark program that it stands for: what `compile.py` does, as text.

Values are printed as SQL.  Spark parses each text again, and it must give the same expression: what
has no text, such as a Python function, can't be printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.schema.definition.resolutions import (
    BUCKET,
    EXPIRES,
    FIXED,
    FUTURE,
    LATE,
    LETTER,
    METADATA,
    NO_ID,
    RESOLUTION,
    UNTIMED,
    Resolution,
)
from millpond.schema.definition.resolutions import EVENT_TIME as TIME_COLUMN
from millpond.spark.aggregate.compile import TIME_FORMAT, columns_of, length_of
from millpond.spark.aggregate.declaration import EVENT_TIME, Declaration
from millpond.spark.derive.plan import Java, elements
from millpond.spark.shards import quoted
from millpond.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HEAD = """\
from pyspark.sql import functions as F

time = F.col({time})
now = F.current_timestamp()
never = F.lit(None).cast("timestamp")


def after(time, seconds):
    # Not an interval: of a day, it would have 23 or 25 hours when clocks change.
    return F.timestamp_micros(F.unix_micros(time) + F.lit(seconds * 1_000_000))

"""
_BUCKET = """
event = F.to_json(F.struct({columns}), {{"timestampFormat": "{time_format}"}})


def bucket(resolution, begin, expires):
    return F.struct(F.lit(resolution).alias("{resolution}"), begin.alias("{bucket}"), expires.alias("{expires}"){no_letter})


def apart(reason):
    return F.struct(F.lit(reason).alias("{resolution}"), never.alias("{bucket}"), {apart}.alias("{expires}"){event})
"""
_UNLESS_LATE = """
def unless_late(resolution, begin, expires):
    row = bucket(resolution, begin, expires)
    return F.when(expires <= F.col("__millpond_watermark"), apart("{late}" + resolution)).otherwise(row)
"""
_UNITS = """
def of_seconds(seconds):
    return F.timestamp_seconds(F.unix_seconds(time) - F.pmod(F.unix_seconds(time), F.lit(seconds)))


def start_of(unit, time):
    # Of a day with two midnights, date_trunc would make two.
    return time.cast("date").cast("timestamp") if unit == "day" else F.date_trunc(unit, time)


def end_of(unit, length):
    # The end of a unit of the calendar: a day may have 23 or 25 hours.
    return start_of(unit, start_of(unit, time) + F.expr(f"INTERVAL {length}"))
"""
_WATERMARK = """
@F.udf("long", useArrow=False)
def millpond_watermark_ms(_):
    # By which watermark Spark removes rows in this batch.
    import json

    from pyspark import TaskContext

    batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
    with open(f"{checkpoint}/offsets/{batch}") as log:
        return json.loads(log.read().splitlines()[1])["batchWatermarkMs"]


watermark = source.sparkSession.range(1).select(
    F.timestamp_millis(millpond_watermark_ms.asNondeterministic()("id")).alias("__millpond_watermark")
)
"""
_WATERMARK_ELSEWHERE = """
from millpond.spark.aggregate.late import watermark_of_batch

watermark = watermark_of_batch(source.sparkSession, checkpoint)
"""


def write_program(declared: Declaration, source: DataFrame, checkpoint: str | None) -> str:
    """The program, which makes `aggregated` of a DataFrame `source`.

    checkpoint:  as for `compile_aggregate`
    Raises:      UNSUPPORTED if a value has no text.
    """
    texts = sql_of(declared.name, source, declared.values)
    event = [_literal(_column(name)) for name in source.columns]
    lines = [f"# {declared.name}: `source` is a DataFrame, `aggregated` the aggregate of it.", _HEAD.format(time=_time(declared))]
    knows_late = checkpoint is not None and declared.reads_watermark
    lines += _functions(declared, event, knows_late)
    if knows_late:
        path = open_storage(str(checkpoint)).local_path()
        lines += ["", f"checkpoint = {_literal(str(path or checkpoint))}", _WATERMARK if path else _WATERMARK_ELSEWHERE]
    lines += ["", "each_event = F.array(", *(f"    {_bucket(r, knows_late)}," for r in declared.resolutions), ")"]
    lines += [*_reasons(declared), "", "rows = source"]
    if knows_late:
        lines.append("rows = rows.crossJoin(F.broadcast(watermark))")
        event.append('"__millpond_watermark"')
    if declared.expires:
        clock = "time" if declared.skew_seconds is None else f"F.when(~({_future(declared)}), time)"
        lines.append(f'rows = rows.withColumn("__clock", {clock}).withWatermark("__clock", "0 seconds")')
    lines += _duplicates(declared, source, event)
    letter = [] if declared.letters_seconds is None else [f'    F.col("__bucket.{LETTER}"),']
    kept = _dict({str(r): r.keep_seconds for r in declared.resolutions})
    note = f"{{{_literal(METADATA)}: {kept}, {_literal(TIME_COLUMN)}: {_literal(declared.event_time)}}}"
    grouping = ", ".join([*(_literal(_column(column)) for column in declared.key), *(f'"{name}"' for name in columns_of(declared))])
    return "\n".join(
        [
            *lines,
            f'rows = rows.select({", ".join(event)}, F.explode(rows_of_event).alias("__bucket")).select(',
            f"    {', '.join(event)},",
            f'    F.col("__bucket.{RESOLUTION}").alias("{RESOLUTION}", metadata={note}),',
            f'    F.col("__bucket.{BUCKET}"),',
            f'    F.col("__bucket.{EXPIRES}").alias("{EXPIRES}", metadata={{"{EVENT_TIME}": 0}}),',
            *letter,
            ")",
            f"aggregated = rows.groupBy({grouping}).agg(",
            *(f"    F.expr({_literal(text)}).alias({_literal(column)})," for column, text in texts.items()),
            ")",
            "",
        ]
    )


def _time(declared: Declaration) -> str:
    return _literal(_column(declared.event_time))


def _functions(declared: Declaration, event: list[str], knows_late: bool) -> list[str]:
    listed = declared.letters_seconds is not None
    since = 'F.greatest(now, F.col("__millpond_watermark"))' if knows_late else "now"
    bucket = _BUCKET.format(
        resolution=RESOLUTION,
        bucket=BUCKET,
        expires=EXPIRES,
        no_letter=f', F.lit(None).cast("string").alias("{LETTER}")' if listed else "",
        event=f', event.alias("{LETTER}")' if listed else "",
        columns=", ".join(event),
        time_format=TIME_FORMAT,
        apart=f"after({since}, {declared.letters_seconds})" if listed else "never",
    )
    return [bucket, *([_UNLESS_LATE.format(late=LATE)] if knows_late else []), _UNITS]


def _bucket(resolution: Resolution, knows_late: bool) -> str:
    unit, keep = resolution.unit, resolution.keep_seconds
    if unit in FIXED:
        begin = f"of_seconds({resolution.most_seconds})"
        end = f"after({begin}, {resolution.most_seconds})"
    else:
        begin = f'F.date_trunc("{unit}", time)' if unit == "hour" else f'start_of("{unit}", time)'
        end = f'{begin} + F.expr("INTERVAL 1 HOUR")' if unit == "hour" else f'end_of("{unit}", "{length_of(unit)}")'
    function = "unless_late" if knows_late and keep is not None else "bucket"
    return f'{function}("{resolution}", {begin}, {"never" if keep is None else f"after({end}, {keep})"})'


def _future(declared: Declaration) -> str:
    return f"time > after(now, {declared.skew_seconds})"


def _reasons(declared: Declaration) -> list[str]:
    """Lines which put events that are in no bucket apart; the last reason that holds wins."""
    reasons = [] if declared.skew_seconds is None else [(_future(declared), FUTURE)]
    reasons.append(("time.isNull()", UNTIMED))
    if declared.dedupe is not None:
        reasons.append((f"F.col({_literal(_column(declared.dedupe.column))}).isNull()", NO_ID))
    lines = [f'rows_of_event = F.when({holds}, F.array(apart("{reason}"))).otherwise(rows_of_event)' for holds, reason in reasons]
    return ["rows_of_event = each_event", *lines]


def _duplicates(declared: Declaration, source: DataFrame, event: list[str]) -> list[str]:
    if declared.dedupe is None:
        return []
    column = declared.dedupe.column
    drop = "dropDuplicatesWithinWatermark" if source.isStreaming else "dropDuplicates"
    return [
        "# Spark takes all NULLs for one id: such events are compared as a whole.",
        f"no_id = F.when(F.col({_literal(_column(column))}).isNull(), event)",
        f"seen = after(now, {declared.dedupe.horizon_seconds})",
        f'rows = rows.select({", ".join(event)}, no_id.alias("__apart"), seen.alias("__seen", metadata={{"{EVENT_TIME}": 0}}))',
        f'rows = rows.{drop}([{_literal(column)}, "__apart"])',
    ]


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
