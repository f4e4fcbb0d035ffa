"""For random values, scalar functions give what Spark's own generated code gives, bit by bit and error by error.

A test checks that the expressions have every function.  By hand: MILLPOND_SCALAR_SEED and MILLPOND_SCALAR_ROWS give other values,
MILLPOND_SCALAR_NESTED more nested expressions, MILLPOND_SCALAR_ALL=1 each expression with every setting.
"""

from __future__ import annotations

import os
import random
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from inputs.scalar_cases import DDL, KNOWN_REFUSALS, expressions, random_rows
from millpond.errors import MillpondError
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.table import BY_CLASS
from millpond.scalar.text.java_text import java_text
from millpond.scalar.text.letters import lower, upper
from millpond.spark.derive.expression import NotExpressible
from oracles.catalyst import Catalyst, SparkFailed, form
from suite.sizes import a_few, examples

SEED = int(os.environ.get("MILLPOND_SCALAR_SEED", "20261122"))
NESTED = int(os.environ.get("MILLPOND_SCALAR_NESTED", "25"))
ROWS = int(os.environ.get("MILLPOND_SCALAR_ROWS", str(examples(120, 50))))
ZONES = ("America/New_York", "Africa/Monrovia", "Australia/Lord_Howe", "UTC", "Asia/Kolkata", "+05:30")
SETTINGS = [(zone, ansi) for zone in ZONES for ansi in ("true", "false")]


@pytest.fixture(params=a_few([(s,) for s in SETTINGS], 1), ids=lambda p: f"{p[0]} ansi {p[1]}", scope="module")
def catalyst(request: pytest.FixtureRequest, spark: Any) -> Iterator[Catalyst]:
    zone, ansi = request.param
    names = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    found = Catalyst(spark, DDL)
    found.use(random_rows(random.Random(SEED), found.fields, ROWS))
    yield found
    for name, value in before.items():
        spark.conf.set(name, value)


def chosen(setting: int) -> list[str]:
    """The expressions of a setting.  Each belongs to one setting, by the seed; with MILLPOND_SCALAR_ALL, to all."""
    texts = expressions()
    if os.environ.get("MILLPOND_SCALAR_ALL"):
        return texts
    random.Random(SEED).shuffle(texts)
    return texts[setting :: len(SETTINGS)]


# If the microseconds have more than 34 digits, Spark's own result differs from run to run.  For a key -0.0, its compiled code makes
# another map than its interpreted code.
_TWO_ANSWERS = re.compile(r"cast\(d\d+ as timestamp\)|map\(d1, 1\)")


def differences(catalyst: Catalyst, text: str, *, may_refuse: bool = False) -> list[str]:
    (expression,) = catalyst.optimized([text], lenient=may_refuse)
    if expression is None:
        return []
    try:
        ours = catalyst.by_millpond(catalyst.translated(expression))
    except NotExpressible as obstacle:
        return [] if may_refuse or any(known in text for known in KNOWN_REFUSALS) else [f"{text}: {obstacle}"]
    out = []
    for row, spark, here in zip(catalyst.rows, catalyst.by_spark(expression), ours, strict=True):
        failed = isinstance(spark, SparkFailed), isinstance(here, MillpondError)
        if failed == (False, False) and form(spark) == form(here):
            continue
        if failed == (False, True) and _TWO_ANSWERS.fullmatch(text):
            continue
        if may_refuse and failed == (False, True) and not isinstance(here, SparkFails):
            continue
        if failed != (True, True):
            named = {f.name: v for f, v in zip(catalyst.fields, row, strict=True) if f.name in text}
            out.append(f"{text} of {named}: Spark {spark!r:.120}, here {here!r:.120}")
    return out[:2]


def test_every_expression_of_random_values_equals_what_spark_makes_of_it(catalyst, request):
    setting = SETTINGS.index(request.node.callspec.params["catalyst"])
    wrong = [line for text in chosen(setting) for line in differences(catalyst, text)]
    assert wrong == []


def nested(rng: random.Random, catalyst: Catalyst, count: int) -> list[str]:
    """Expressions with others in place of columns of the same type, two levels deep."""
    texts = [t for t in expressions() if not t.startswith("@")]
    of_type: dict[str, list[str]] = {}
    for text in rng.sample(texts, count):
        (found,) = catalyst.optimized([text])
        if found is not None:
            of_type.setdefault(str(found.dataType().sql()), []).append(text)
    types = {f.name: str(t) for f, t in zip(catalyst.fields, catalyst.type_names, strict=True)}
    out = []
    for _ in range(count):
        text = rng.choice(texts)
        for _ in range(2):
            columns = [c for c in types if of_type.get(types[c]) and re.search(rf"\b{c}\b", text)]
            if columns:
                column = rng.choice(columns)
                inner = f"({rng.choice(of_type[types[column]])})"
                text = re.sub(rf"\b{column}\b", lambda _, inner=inner: inner, text, count=1)
        out.append(text)
    return out


def test_expressions_of_expressions_equal_what_spark_makes_of_them(catalyst):
    rng = random.Random(SEED)
    wrong = [line for text in nested(rng, catalyst, NESTED) for line in differences(catalyst, text, may_refuse=True)]
    assert wrong == []


@pytest.mark.long
def test_every_function_is_among_the_expressions(spark):
    catalyst = Catalyst(spark, DDL)
    assert set(BY_CLASS) - catalyst.classes(expressions()) == set()


def _doubles(rng: random.Random, count: int) -> list[int]:
    whole = [struct.unpack(">q", struct.pack(">d", float(rng.randrange(1 << rng.randrange(1, 64)))))[0] for _ in range(count)]
    short = [float(f"{rng.randrange(1, 10 ** rng.randrange(1, 18))}e{rng.randrange(-30, 30)}") for _ in range(count)]
    edges = [(e << 52) | m for e in range(2047) for m in (0, 1, (1 << 52) - 1)]
    any_bits = [rng.getrandbits(64) - (1 << 63) for _ in range(2 * count)]
    return whole + [struct.unpack(">q", struct.pack(">d", v))[0] for v in short] + edges + any_bits


def test_the_text_of_doubles_and_floats_is_that_of_the_jvm(spark):
    catalyst, rng = Catalyst(spark, DDL), random.Random(SEED)
    java = int(spark._jvm.java.lang.Runtime.version().feature())
    for single, patterns in ((False, _doubles(rng, 3000)), (True, [rng.getrandbits(32) for _ in range(10_000)])):
        values = [struct.unpack(*((">f", struct.pack(">I", p)) if single else (">d", struct.pack(">q", p))))[0] for p in patterns]
        assert [java_text(v, java, single=single) for v in values] == catalyst.java_texts(patterns, single=single)


def test_the_case_of_every_letter_is_that_of_icu_or_an_error(spark):
    """Each letter alone, and beside a sigma, whose small form depends on its neighbours."""
    catalyst = Catalyst(spark, DDL)
    letters = [chr(c) for c in range(0x80, 0x30000) if not 0xD800 <= c < 0xE000]
    texts = letters + [f"{c}Σ" for c in letters[:0x3000]] + [f"AΣ{c}" for c in letters[:0x3000]]
    for change, ours in (("toUpperCase", upper), ("toLowerCase", lower)):
        theirs = catalyst.icu(change, texts)
        wrong = []
        for text, spark_has in zip(texts, theirs, strict=True):
            try:
                if ours(text) != spark_has:
                    wrong.append((text, ours(text), spark_has))
            except MillpondError:
                continue
        assert wrong == []
