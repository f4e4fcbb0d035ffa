"""Random values of Spark's types as SQL literals, among them values that are easily confused."""

from __future__ import annotations

import random
from collections.abc import Callable

LEAVES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5,2)",
    "decimal(18,4)",
    "decimal(38,10)",
    "string",
    "string collate UTF8_LCASE",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval day to second",
    "interval year to month",
    "time(6)",
]
NESTED = [
    "struct<a:date>",
    "struct<a:int,b:struct<c:string,d:timestamp>>",
    "struct<start:timestamp,end:timestamp>",
    "array<int>",
    "array<struct<x:int,y:string>>",
    "array<date>",
    "map<string,int>",
    "map<int,struct<a:date>>",
]
Draw = random.Random


def literal(rng: Draw, type_: str) -> str:
    """The SQL of a value of this type; sometimes NULL."""
    if rng.random() < 0.12:
        return "NULL"
    if type_.startswith("struct<"):
        members = split_members(type_[7:-1])
        return "named_struct(" + ", ".join(f"'{n}', {_cast(literal(rng, t), t)}" for n, t in members) + ")"
    if type_.startswith("array<"):
        element = type_[6:-1]
        return "array(" + ", ".join(_cast(literal(rng, element), element) for _ in range(rng.choice([0, 1, 1, 2, 3]))) + ")"
    if type_.startswith("map<"):
        key, value = split_types(type_[4:-1])
        keys = {k for k in (literal(rng, key) for _ in range(rng.choice([0, 1, 2]))) if k != "NULL"}
        return "map(" + ", ".join(f"{_cast(k, key)}, {_cast(literal(rng, value), value)}" for k in sorted(keys)) + ")"
    return _LEAVES[type_.split("(")[0].split(" collate")[0]](rng, type_)


def _cast(text: str, type_: str) -> str:
    return f"CAST({text} AS {type_})"


def split_types(text: str) -> list[str]:
    """The types between commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]


def split_members(text: str) -> list[tuple[str, str]]:
    """The names and types of a struct's members."""
    return [(name, type_) for name, _, type_ in (part.partition(":") for part in split_types(text))]


def _whole(bits: int) -> Callable[[Draw, str], str]:
    def draw(rng: Draw, _: str) -> str:
        edge = 2 ** (bits - 1)
        number = rng.choice([rng.randint(-5, 5), rng.randint(-5, 5), rng.randint(-100, 100)])
        if rng.random() < 0.04:
            number = rng.choice([edge - 1, -edge + 1, rng.randint(-edge + 1, edge - 1)])
        return str(number)

    return draw


def _floating(rng: Draw, type_: str) -> str:
    text = rng.choice(
        [
            repr(round(rng.gauss(0, 10), rng.randint(0, 3))),
            str(rng.randint(-4, 4)),
            repr(rng.gauss(0, 1)),
            rng.choice(["0.0", "-0.0", "1.0", "NaN", "1.5"]),
            rng.choice(["Infinity", "-Infinity", "3.6028797018963968E16", "2E23", "1E-5", "1E300", "5.9604644775390625E-8", "0.1"])
            if rng.random() < 0.3
            else "2.5",
        ]
    )
    return f"{type_}('{text}')"


def _decimal(rng: Draw, type_: str) -> str:
    precision, scale = (int(n) for n in type_[8:-1].split(","))
    digits = rng.choice([1, 2, min(4, precision), precision if rng.random() < 0.1 else 3])
    number = rng.randint(-(10**digits) + 1, 10**digits - 1)
    return f"CAST('{number}E-{rng.choice([0, scale, scale]) if digits <= precision - scale else scale}' AS {type_})"


def _string(rng: Draw, _: str) -> str:
    words = [
        "a",
        "b",
        "A",
        "B",
        "",
        " a",
        "ü",
        "Ünï",
        "a b",
        "it''s",
        "%",
        "x" * 20,
        "𝄞",
        "ß",
        "12",
        "2024-03-01",
        "1e3",
        "true",
        "a,b",
    ]
    return "'" + rng.choice([*words, *"ab", *"ab"]) + "'"


def _date(rng: Draw, _: str) -> str:
    if rng.random() < 0.015:
        return f"DATE'{rng.choice(['0001-01-01', '9999-12-31', '+10000-01-01', '+29999-12-31', '-0044-03-15', '1582-10-15'])}'"
    return f"DATE'{rng.choice([1969, 1970, 2024, 2024])}-{rng.choice(['01-01', '02-28', '03-10', '12-31', '11-03'])}'"


def _timestamp(rng: Draw, type_: str) -> str:
    word = "TIMESTAMP_NTZ" if "ntz" in type_ else "TIMESTAMP"
    if rng.random() < 0.015:
        day = rng.choice(["0001-01-01", "9999-12-31", "+10000-01-01", "+20000-06-15", "1883-11-18"])
    else:
        day = rng.choice(["2024-01-01", "2024-01-01", "2024-01-02", "2024-03-10", "2024-11-03", "1970-01-01"])
    time = rng.choice(
        ["00:00:00", "05:30:00", "07:59:59.999999", "12:34:56.5", "23:00:00.000001", f"{rng.randint(0, 23):02}:15:00"]
    )
    return f"{word}'{day} {time}{'' if 'ntz' in type_ else 'Z'}'"


def _day_time(rng: Draw, _: str) -> str:
    text = rng.choice(["0 00:00:00", "1 02:03:04.5", "-1 00:00:00.000001", "100 00:00:00", "0 23:59:59.999999"])
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    return f"INTERVAL '{sign}{text}' DAY TO SECOND"


def _time(rng: Draw, _: str) -> str:
    return f"TIME'{rng.choice(['00:00:00', '12:34:56.789', '23:59:59.999999', '07:00:00'])}'"


_LEAVES: dict[str, Callable[[Draw, str], str]] = {
    "boolean": lambda rng, _: rng.choice(["true", "false"]),
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "string": _string,
    "binary": lambda rng, _: rng.choice(["X''", "X'00FF'", "X'616263'", "X'61'"]),
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
    "interval day to second": _day_time,
    "interval year to month": lambda rng, _: f"INTERVAL '{rng.choice(['0-0', '1-2', '-0-1', '100-11'])}' YEAR TO MONTH",
    "time": _time,
}
