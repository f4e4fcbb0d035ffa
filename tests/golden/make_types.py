"""Write `types/`: a pond with one table for each Spark type, keyed by it and holding it.

    python tests/golden/make_types.py

CASES is the oracle: for each literal that Spark evaluates, it has the Python value, the JSON and the text that docs/types.md
promises.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import millpond
from millpond import FarTime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Case(NamedTuple):
    """One value: as Spark's SQL, in Python, as JSON, as text (None for NULL)."""

    sql: str
    python: Any
    json: Any
    text: str | None


def _utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc, arg-type]


# table -> (Spark's type, its values)
CASES: dict[str, tuple[str, list[Case]]] = {
    "boolean": ("boolean", [Case("true", True, True, "true"), Case("false", False, False, "false")]),
    "byte": ("tinyint", [Case("-128", -128, -128, "-128"), Case("127", 127, 127, "127")]),
    "short": ("smallint", [Case("-32768", -32768, -32768, "-32768"), Case("7", 7, 7, "7")]),
    "integer": ("int", [Case("-2147483648", -(2**31), -(2**31), "-2147483648"), Case("0", 0, 0, "0")]),
    "long": (
        "bigint",
        [
            Case("9007199254740991", 2**53 - 1, 9007199254740991, "9007199254740991"),
            Case("9007199254740993", 2**53 + 1, "9007199254740993", "9007199254740993"),
            Case("-9223372036854775808", -(2**63), "-9223372036854775808", "-9223372036854775808"),
        ],
    ),
    "float": (
        "float",
        [
            Case("0.1", 0.10000000149011612, 0.10000000149011612, "0.10000000149011612"),
            Case("'NaN'", math.nan, "NaN", "NaN"),
            Case("'-Infinity'", -math.inf, "-Infinity", "-Infinity"),
        ],
    ),
    "double": (
        "double",
        [
            Case("'0.1'", 0.1, 0.1, "0.1"),
            Case("'1e300'", 1e300, 1e300, "1e+300"),
            Case("'NaN'", math.nan, "NaN", "NaN"),
            Case("'Infinity'", math.inf, "Infinity", "Infinity"),
        ],
    ),
    "price": ("decimal(10,2)", [Case("12.50", Decimal("12.50"), "12.50", "12.50"), Case("0", Decimal("0.00"), "0.00", "0.00")]),
    "wide_decimal": (
        "decimal(38,10)",
        [
            Case(
                "'-1234567890123456789012345678.0123456789'",
                *[Decimal("-1234567890123456789012345678.0123456789")],
                *["-1234567890123456789012345678.0123456789"] * 2,
            )
        ],
    ),
    "string": (
        "string",
        [
            Case("''", "", "", ""),
            Case("'é 漢 & = + % / # ? null'", "é 漢 & = + % / # ? null", "é 漢 & = + % / # ? null", "é 漢 & = + % / # ? null"),
            Case("concat('tab', char(9), 'line', char(10), char(27), char(92))", *["tab\tline\n\x1b\\"] * 3),
            Case("cast(X'61FF80' as string)", *["a\udcff\udc80"] * 3),
        ],
    ),
    "binary": ("binary", [Case("X''", b"", "", ""), Case("X'FBFF00'", b"\xfb\xff\x00", "+/8A", "+/8A")]),
    "date": (
        "date",
        [
            Case("'2026-03-01'", dt.date(2026, 3, 1), *["2026-03-01"] * 2),
            Case("'0001-01-01'", dt.date(1, 1, 1), *["0001-01-01"] * 2),
            Case("'+12345-02-28'", FarTime("date", 3_789_449), *["+12345-02-28"] * 2),
            Case("'-0044-03-15'", FarTime("date", -735_525), *["-0044-03-15"] * 2),
        ],
    ),
    "timestamp": (
        "timestamp",
        [
            Case("'2026-03-01 14:00:00+02:00'", _utc(2026, 3, 1, 12), *["2026-03-01T12:00:00Z"] * 2),
            Case("'1969-12-31 23:59:59.999999Z'", _utc(1969, 12, 31, 23, 59, 59, 999999), *["1969-12-31T23:59:59.999999Z"] * 2),
            Case("timestamp_micros(9223372036854775807)", FarTime("timestamp", 2**63 - 1), *["+294247-01-10T04:00:54.775807Z"] * 2),
        ],
    ),
    "timestamp_ntz": (
        "timestamp_ntz",
        [
            Case("'2026-03-29 02:30:00.5'", dt.datetime(2026, 3, 29, 2, 30, 0, 500000), *["2026-03-29T02:30:00.5"] * 2),
            Case("'+10000-01-01 00:00:00'", FarTime("timestamp_ntz", 253_402_300_800_000_000), *["+10000-01-01T00:00:00"] * 2),
        ],
    ),
    "time": ("time(6)", [Case("'23:59:59.000001'", dt.time(23, 59, 59, 1), *["23:59:59.000001"] * 2)]),
    "day_time": (
        "interval day to second",
        [
            Case(
                "INTERVAL '1 02:03:04.5' DAY TO SECOND",
                dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
                *["P1DT2H3M4.5S"] * 2,
            ),
            Case("INTERVAL '-90' MINUTE", -dt.timedelta(minutes=90), *["-PT1H30M"] * 2),
        ],
    ),
    "year_month": (
        "interval year to month",
        [Case("INTERVAL '1-2' YEAR TO MONTH", 14, *["P1Y2M"] * 2), Case("INTERVAL '-1' YEAR", -12, *["-P1Y"] * 2)],
    ),
    "struct": (
        "struct<a:bigint,b:string,c:struct<d:date>>",
        [
            Case(
                "named_struct('a', 9007199254740993, 'b', NULL, 'c', named_struct('d', DATE'2026-03-01'))",
                {"a": 2**53 + 1, "b": None, "c": {"d": dt.date(2026, 3, 1)}},
                {"a": "9007199254740993", "b": None, "c": {"d": "2026-03-01"}},
                '{"a":"9007199254740993","b":null,"c":{"d":"2026-03-01"}}',
            )
        ],
    ),
    "struct_of_times": (
        "struct<start:timestamp,end:timestamp>",
        [
            Case(
                "named_struct('start', TIMESTAMP'2026-03-01 12:00:00Z', 'end', NULL)",
                {"start": _utc(2026, 3, 1, 12), "end": None},
                {"start": "2026-03-01T12:00:00Z", "end": None},
                '{"start":"2026-03-01T12:00:00Z","end":null}',
            ),
            Case(
                "named_struct('start', NULL, 'end', NULL)",
                {"start": None, "end": None},
                {"start": None, "end": None},
                '{"start":null,"end":null}',
            ),
        ],
    ),
    "nested_struct": (
        "struct<a:struct<d:date>,b:array<struct<n:int>>>",
        [
            Case("named_struct('a', NULL, 'b', NULL)", {"a": None, "b": None}, {"a": None, "b": None}, '{"a":null,"b":null}'),
            Case(
                "named_struct('a', named_struct('d', NULL), 'b', array(NULL))",
                {"a": {"d": None}, "b": [None]},
                {"a": {"d": None}, "b": [None]},
                '{"a":{"d":null},"b":[null]}',
            ),
            Case(
                "named_struct('a', NULL, 'b', array(named_struct('n', NULL), NULL))",
                {"a": None, "b": [{"n": None}, None]},
                {"a": None, "b": [{"n": None}, None]},
                '{"a":null,"b":[{"n":null},null]}',
            ),
        ],
    ),
    "array": (
        "array<decimal(3,1)>",
        [
            Case("array(1.5, NULL)", [Decimal("1.5"), None], ["1.5", None], '["1.5",null]'),
            Case("array()", [], [], "[]"),
        ],
    ),
    "map": (
        "map<date,int>",
        [
            Case(
                "map(DATE'2026-03-01', 1)",
                {dt.date(2026, 3, 1): 1},
                [{"key": "2026-03-01", "value": 1}],
                '[{"key":"2026-03-01","value":1}]',
            )
        ],
    ),
}
NULL = Case("NULL", None, None, None)


def write(spark: SparkSession, pond: Path) -> None:
    """Run one streaming query for each type, in two batches, over the values and NULL; row n of the input is value n."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        longest = max(len(cases) for _, cases in CASES.values()) + 1
        for batch in range(2):
            (source / f"{batch}.json").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(longest)))
        numbers = spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).json(str(source))
        for table, (type_, cases) in CASES.items():
            literals = ", ".join(f"cast({c.sql} as {type_})" for c in [*cases, NULL])
            keyed = numbers.where(f"n <= {len(cases)}").selectExpr(f"element_at(array({literals}), n + 1) AS k")
            counted = keyed.groupBy("k").agg({"*": "count", "k": "last"}).toDF("k", "n", "again")
            with millpond.start(counted, table=table, pond=pond, trigger="available-now", partitions=1, strict=True) as job:
                job.wait_for_end(120)


if __name__ == "__main__":
    from packing import made, pack

    target = made("types")
    shutil.rmtree(target, ignore_errors=True)
    provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": provider}
    running = millpond.session("golden types", **conf)
    try:
        write(running, target)
    finally:
        running.stop()
    for checksum in target.rglob(".*.crc"):
        checksum.unlink()
    pack("types", target)
