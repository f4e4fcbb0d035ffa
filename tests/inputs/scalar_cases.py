"""Expressions over columns of every type, and rows of random values, for the comparison of scalar functions with Spark."""

from __future__ import annotations

import itertools
import random
import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasketches

from millpond.scalar.number.ranges import EXACT
from millpond.schema.types import Field, SparkType

# Two columns of each type, since many functions have two operands.
COLUMNS = {
    "ti": "tinyint", "sm": "smallint", "i": "int", "l": "bigint", "f": "float", "d": "double",
    "d9": "decimal(9,2)", "d18": "decimal(18,4)", "d38": "decimal(38,10)", "d0": "decimal(38,0)",
    "b": "boolean", "s": "string", "n": "string", "bin": "binary", "day": "date", "t": "timestamp", "tn": "timestamp_ntz",
    "dt": "interval day to second", "ym": "interval year to month",
    "ai": "array<int>", "ad": "array<double>", "at": "array<string>", "aa": "array<array<int>>",
    "m": "map<string,int>", "mi": "map<int,double>", "st": "struct<a:int,b:string>",
    "small": "int", "tm": "time(6)", "j": "string", "u": "string", "x": "string", "af": "array<float>",
    "o": "string", "nf": "string", "hll": "binary", "theta": "binary", "kb": "binary", "kd": "binary", "kf": "binary",
}  # fmt: skip
_LATER = frozenset({"tm", "j", "u", "x", "af"})
_LAST = frozenset({"o", "nf"})
_SKETCHES = frozenset({"hll", "theta", "kb", "kd", "kf"})
DDL = ", ".join(f"{name}{n} {type_}" for name, type_ in COLUMNS.items() for n in (1, 2))
GROUPS = {
    "int": "ti sm i l",
    "frac": "f d",
    "dec": "d9 d18 d38 d0",
    "num": "ti sm i l f d d9 d18 d38 d0",
    "ival": "dt ym",
    "atom": "ti sm i l f d d9 d38 b s bin day t tn dt ym",
    "any": "ti sm i l f d d9 d38 b s bin day t tn dt ym ai ad at st",
    "inst": "t tn",
    "arr": "ai at",
    "fold": "ai at ad aa",
}
_PLACE = re.compile(r"\{(\w+?)([12])\}")


def expand(template: str) -> list[str]:
    """A template for each type of its group: `{num1} + {num2}` gives sums of two columns of the same type."""
    groups = list(dict.fromkeys(found[0] for found in _PLACE.findall(template)))
    choices = [GROUPS.get(group, group).split() for group in groups]
    out = []
    for chosen in itertools.product(*choices):
        names = dict(zip(groups, chosen, strict=True))
        out.append(_PLACE.sub(lambda found, names=names: names[found[1]] + found[2], template))
    return out


# ---------------------------------------------------------------- rows

_WORDS = [
    "",
    "a",
    "abc",
    "Abc xyz",
    "  x ",
    "ÄÖÜß",
    "straße",
    "ΑΣ",
    "ΟΔΟΣ ΣΑΣ",
    "日本語",
    "a,b,,c",
    "x\ny",
    "İı",
    "ﬁ",
    "😀a",
    "%_\\",
    "aXbX",
]
_NUMBER_TEXTS = [
    "0", "1", "-1", "+5", " 12 ", "1.5", "-0.0", ".5", "5.", "1e3", "1E-3", "NaN", "inf", "-Infinity", "abc", "",
    "9223372036854775807",
    "9223372036854775808", "128", "-129", "2147483648", "1.0d", "1f", "0x10p2", "true", "f", "Y", "no", "2024-02-29",
    "2023-02-29", "2024-1-3",
    "2024", "2024-07", "1999-12-31 23:59", "+12345-06-07", "-0001-01-01", "99999999999999999999999999999999999999999",
    "1.99999999999999",
    "\t7\n", "1_000", "--1", "1e400", "1e-400", "16777217.0000000001", "٣", "nan", "+inf", "1L", "2024-13-01", "2024-01-01T",
    "0.5e1",
    "2024-03-10 02:30:00", "2024-11-03 01:30:00.5", "2024-01-01T12:00:00Z", "2024-01-01 1:2:3.1234567 +05:30", "2024-01-01 12:30",
    "1883-11-18 12:00:00", "2024-01-01 12:00:00UTC+3", "2024-01-01 12:00:00-0330", "123456-07-08 09:10:11", "2024-01-01 24:00:00",
    "2024-01-01 12:00:00+19:00", "2024-01-01 12", "2024-01-01 ", "0001-01-01 00:00:00.000001 GMT",
]  # fmt: skip
_JSON_TEXTS = [
    '{"a": 1}',
    '{"a": {"b": "x", "c": [1, 2]}}',
    '[1, 2.50, "x", null]',
    '[{"a": 1e3}, {"a": "q\\"\\n"}]',
    "{}",
    "[]",
    "",
    "abc",
    "12",
    '{"a": null, "a": 2}',
    '{"a": true, "b": 1',
    "[1,]",
    '{"a": "\\u00e9"} rest',
    '{"a": 0.10, "ü": [{"x": {}}]}',
    " [[1], [2, 3]] ",
    '{"a": [1, {"b": -0.0}]}',
    '{"a": 12345678901234567890}',
    '{"a": {"b": null}}',
    '"a"',
    "null",
    '{"a": "日本\t"}',
    '[null, {"a": []}]',
    '{"a": 01}',
    '{"a": NaN}',
    '{"b": 1, "a": {"b": {"d": 1.0E-5}}}',
    "[[[1]]] x",
    '{"a" 1}',
    '{"a": 1.}',
    '{"a": .5}',
]
_URLS = [
    "http://spark.apache.org/path?query=1",
    "https://u:p@h.org:8080/a/b.html?a=1&b=2#part",
    "http://h",
    "http://h?a=",
    "ftp://1.2.3.4/x",
    "http://a_b.com/x",
    "mailto:x@y.z",
    "inva lid://x",
    "file:///etc/hosts",
    "",
    "abc",
    "/a?b",
    "//h/p",
    "http://",
    "http:///p",
    "a:b:c",
    "12:30",
    "http://h/%41?x=%zz",
    "http://h/%41?x=%20&a=b&a=c",
    "http://h:abc/",
    "http://-h/",
    "http://h./",
    "HTTP://H/?a",
    "x://h/p?q#",
    "http://h/a|b",
    "http://u@h/?ba=1&a=2",
    "http://h:/",
    "http://1.2.3/",
    "http://h?#",
    "#f",
    "?a=1",
    "http://@h/",
    "jdbc:x:y?a=1",
]
_TIME_TEXTS = [
    "2016-12-31",
    "2016-02-29",
    "2015-02-29",
    "2016-12-31 23:59:58",
    "2016-12-31 24:00:00",
    "2016-12-31 01:02:03.5",
    "31/12/2016",
    "2016-12-31 01:02:03.123456",
    "1/2/16",
    "20161231",
    "20161231235958",
    "1 Jan 2016 1:02 PM",
    "1 jan 2016 12:02 am",
    "2016",
    "12:34",
    "2016-1-2",
    "+12016-12-31",
    "-2016-12-31",
    "0000-01-01",
    "0001-01-01",
    "2016-12-31T12:34",
    "January 5, 2016",
    "foo",
    "",
    "2016-12-31 ",
    " 2016-12-31",
    "2016-00-10",
    "2016-13-10",
    "1 Feb 2016 0:30 AM",
    "1 Feb 2016 13:30 AM",
    "2016-03-13 02:30:00",
    "02/29/99",
    "3/4/1",
    "2016-12-31 23:59:58.",
    "2016-12-31 23:59:58.1234567",
    "1-2-3",
    "0002016-1-1",
    "٢016-12-31",
]
_CLOCK_TEXTS = [
    "12:30", "1:2:3", "T12", "T1:2", "23:59:59.999999", "00:00:00.1234567", "1:02:03.12345678987", "12:30 PM",
    "12:30:45.5am", "0:30 AM", "13:00 pm",
    "12:", ":30", "24:00:00", "12:60", "12:30:60", " 12:30 ", "12:30:45.", "12:30:45Z", "12:30:45 UTC", "2024-01-01 12:30:00",
    "12", "", "a", "pm", "12 PM", "12:30 P", "12:30PMx", "+12:30", "-1:00", "\t7:08\n", "007:00", "12:3:4.5 Pm ", "12.10.05",
    "12.10.05.999999", "121005", "1210", "12-10-05", "1:05 PM", "01:05:06 AM", "12:30:45.123", "٣:30", "12:30  PM", "12:30:45  x",
]  # fmt: skip
_FORMATTED_TEXTS = [
    "454", "454.00", "12,454", "$78.12", "12,454.8-", "-5", "+5.1", "<5.5>", "<5", "5>", "5-", "5+", "-$1,234.56", "$-1", "1,2,3",
    "001", "00", "0", ".5", "5.", "1.23", "1.234", "12345", "1234567.89", " 1 2 ", "1 ", "", " ", "abc", "1a", ",1", "1,", "1,,2",
    "-.5", "$", "-", "<>", "<1,234.5>", "99,999.9", "1,23", "12,3456", "000.10", "MZXW6YTBOI======", "mzxw6", "M=Z",
]  # fmt: skip
_TEXTS = {"o": _CLOCK_TEXTS, "nf": _FORMATTED_TEXTS, "x": _TIME_TEXTS, "n": _NUMBER_TEXTS, "j": _JSON_TEXTS, "u": _URLS}
_DAY = 86_400_000_000
_PATTERNS: dict[str, list[Any]] = {
    "float": [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, float("inf"), float("-inf"), float("nan"), 1e-45, 3.4028234663852886e38,
        16777216.0, 1e7, 1e-3],
    "double": [
        0.0, -0.0, 1.0, -1.5, 0.5, 2.5, -2.5, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7976931348623157e308,
        2.0**55, 2e23,
        2.0**-24, 1e7, 1e-3, 9.999999e6, 2.0**63, -(2.0**63), 1e22, 0.1, 128.5, 32768.0, 2147483648.0, 1.005, 123456789.125,
    ],
    "date": [0, -1, 19_000, 19_782, 11_016, -719_162, -719_163, 2_932_896, 2_932_897, -141_427, 100_000_000, -100_000_000, 59,
    18_321],
    "timestamp": [
        0, -1, 1, 999_999, 1_710_054_000_000_000, 1_710_053_999_999_999, 1_730_611_800_000_000, 1_730_615_400_000_000,
        1_730_614_000_000_000,
        -2_717_640_000_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000, 10**17, -(10**17),
        4_102_444_800_000_000,
        32_503_680_000_000_000, 2**62, -(2**62),
    ],
    "day_time_interval": [0, 1, -1, _DAY, -_DAY, 3600_000_000, 90_061_000_001, -90_061_000_001, 2**62, -(2**63), 2**63 - 1,
    59_999_999],
    "year_month_interval": [0, 1, -1, 12, -13, 25, 1200, 2**31 - 1, -(2**31)],
}  # fmt: skip
_PATTERNS["time"] = [0, 1000, 86_399_999_999_000, 43_200_000_000_000, 3_599_999_999_000, 52_200_500_000_000]
_PATTERNS["timestamp_ntz"] = _PATTERNS["timestamp"]
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "year_month_interval": 32, "day_time_interval": 64}


def _single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def random_value(rng: random.Random, type_: SparkType, *, nulls: float = 0.12) -> Any:
    """A value in stored form: sometimes NULL, often an extreme one."""
    if rng.random() < nulls:
        return None
    kind = type_.kind
    if kind in _PATTERNS and rng.random() < 0.5:
        value = rng.choice(_PATTERNS[kind])
        return _single(value) if kind == "float" else value
    if kind in _BITS:
        bits = _BITS[kind]
        if rng.random() < 0.2:
            return rng.choice([-(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, -1, 1])
        limit = 1 << rng.randrange(1, bits)
        return rng.randrange(-limit, limit)
    if kind == "float":
        return rng.choice([_single(rng.gauss(0, 1000)), struct.unpack("f", struct.pack("I", rng.getrandbits(31) % 0x7F800000))[0]])
    if kind == "double":
        wide = struct.unpack("d", struct.pack("Q", rng.getrandbits(63) % 0x7FF0000000000000))[0]
        return rng.choice(
            [rng.gauss(0, 1000), wide, float(rng.randrange(-(10**6), 10**6)), round(rng.gauss(0, 100), 2), rng.random()]
        )
    if kind == "decimal":
        digits = rng.randrange(1, type_.precision + 1)
        number = rng.choice([rng.randrange(10**digits), 10**digits - 1, 0, 5 * 10 ** rng.randrange(digits)])
        return EXACT.scaleb(Decimal(rng.choice([1, -1]) * min(number, 10**type_.precision - 1)), -type_.scale)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(_WORDS) if rng.random() < 0.6 else "".join(rng.choice("abXY ,.%_1é日") for _ in range(rng.randrange(12)))
    if kind == "binary":
        return rng.choice([b"", b"abc", b"\xff\x00", bytes(rng.randrange(256) for _ in range(rng.randrange(9)))])
    if kind == "date":
        return rng.randrange(-30_000, 60_000)
    if kind == "time":
        return rng.randrange(86_400_000_000) * 1000
    if kind in ("timestamp", "timestamp_ntz"):
        return rng.randrange(-3 * 10**15, 5 * 10**15)
    if kind == "array":
        assert type_.element is not None
        return [random_value(rng, type_.element) for _ in range(rng.randrange(6))]
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        keys = {repr(k): k for k in (random_value(rng, type_.key, nulls=0) for _ in range(rng.randrange(4)))}
        return [(k, random_value(rng, type_.value)) for k in keys.values()]
    return tuple(random_value(rng, f.type) for f in type_.fields)


def random_sketch(rng: random.Random, kind: str) -> bytes:
    """A sketch of random numbers, by the library of Apache DataSketches: empty, of a few or of many."""
    values = [rng.randrange(-(10**6), 10**6) for _ in range(rng.choice((0, 1, 2, 20, 400)))]
    if kind == "hll":
        sketch = datasketches.hll_sketch(rng.choice((4, 12)), datasketches.tgt_hll_type.HLL_8)
    elif kind == "theta":
        sketch = datasketches.update_theta_sketch(rng.choice((5, 12)))
    else:
        sketch = (datasketches.kll_floats_sketch if kind == "kf" else datasketches.kll_doubles_sketch)(rng.choice((8, 200)))
    for value in values:
        sketch.update(value)
    if kind == "hll":
        return bytes(sketch.serialize_updatable())
    data = bytes((sketch.compact() if kind == "theta" else sketch).serialize())
    return _of_whole_numbers(data) if kind == "kb" else data


def _of_whole_numbers(data: bytes) -> bytes:
    """A KLL sketch of doubles as one of bigints: the library's own are of no type that Spark has."""
    begin = 8 if data[0] == 2 else 20 + 4 * data[18]
    items = struct.unpack(f"<{(len(data) - begin) // 8}d", data[begin:])
    return data[:begin] + struct.pack(f"<{len(items)}q", *map(int, items))


def random_rows(rng: random.Random, fields: tuple[Field, ...], count: int) -> list[tuple[Any, ...]]:
    """Rows in stored form.  Columns of small numbers and of texts of numbers have such names."""
    rows = []
    # Later columns draw from their own source, so that older columns keep their values.
    sources = [(names, random.Random(count + n)) for n, names in enumerate((_LATER, _LAST, _SKETCHES))]
    drawn = {f.name: next((source for names, source in sources if f.name[:-1] in names), rng) for f in fields}
    for _ in range(count):
        row = []
        for field in fields:
            rng = drawn[field.name]
            value = random_value(rng, field.type)
            if field.name.startswith("small") and value is not None:
                value = rng.randrange(-7, 13)
            if field.name[:-1] in _TEXTS and value is not None:
                value = rng.choice(_TEXTS[field.name[:-1]])
            if field.name[:-1] in _SKETCHES and value is not None and rng.random() < 0.9:
                value = random_sketch(rng, field.name[:-1])
            row.append(value)
        rows.append(tuple(row))
    # Chance gives equal operands too rarely.
    for place in range(0, count, 7):
        row = list(rows[place])
        row[1::2] = row[0::2]
        rows[place] = tuple(row)
    return rows


# ---------------------------------------------------------------- expressions

# Expressions that Spark has and Millpond refuses.
KNOWN_REFUSALS = ("current_date()",)


def templates() -> list[str]:
    """The lines of scalar_cases.txt: expressions of columns, some for groups of types."""
    return (Path(__file__).parent / "scalar_cases.txt").read_text(encoding="utf-8").splitlines()


def expressions() -> list[str]:
    """All expressions, each once."""
    return list(dict.fromkeys(text for t in templates() for text in expand(t)))
