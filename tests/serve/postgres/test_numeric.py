"""`numeric` without digits: PostgreSQL's own number, or an error where it doesn't fit; floats are rounded to ten places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest

from servers.ports import free_port
from servers.postgres import postgres_server
from servers.serving import serving
from suite.sizes import examples

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.long
PLACES = Decimal("1e-10")
WIDE = Context(prec=200)


@pytest.fixture(scope="module")
def ours(types_pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    port = free_port()
    options = ("--postgres-port", str(port), "--sql-processes", "1")
    address = f"host=127.0.0.1 port={port} user=me"
    with (
        serving(types_pond, *options, home=tmp_path_factory.mktemp("numeric")),
        psycopg.connect(address, autocommit=True) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    with psycopg.connect(postgres_server(), autocommit=True) as connection:
        yield connection


def number(draw: random.Random) -> str:
    """A number of any size and with any places."""
    whole = draw.choice(["0", str(draw.randrange(1000)), str(draw.randrange(10 ** draw.randrange(1, 32)))])
    places = draw.choice([0, 1, 2, 9, 10, 11, draw.randrange(30)])
    part = "".join(draw.choice("0123456789") for _ in range(places)) + "0" * draw.choice([0, 0, 3])
    return draw.choice(["", "", "-"]) + whole + (f".{part}" if part else "")


def expression(draw: random.Random) -> tuple[str, str]:
    """How a number is written, and of what kind it is."""
    text, kind = number(draw), draw.choice(["text", "constant", "literal", "float8", "float4", "decimal", "bigint"])
    exponent = f"e{draw.randrange(-25, 15)}" if draw.random() < 0.2 else ""
    match kind:
        case "text":
            return f"(SELECT v FROM (VALUES ('{draw.choice(['', '', ' ', '+', '-'])}{text.lstrip('-')}{exponent}')) AS t(v))", kind
        case "constant":
            return f"'{draw.choice(['', ' '])}{text}'", kind
        case "literal":
            return text, kind
        case "float8" | "float4":
            return f"CAST('{text}{exponent}' AS {kind})", kind
        case "decimal":
            scale = draw.randrange(20)
            return f"CAST('{Decimal(text) % 10**15:f}' AS numeric(38, {scale}))", kind
        case _:
            return f"CAST({draw.randrange(-(2**63), 2**63)} AS bigint)", kind


def asked(client: Any, statement: str) -> Decimal | str | None:
    """The number, or the code of the error."""
    try:
        found = client.execute(statement, prepare=False).fetchone()[0]
    except psycopg.Error as error:
        return str(error.sqlstate)
    assert found is None or isinstance(found, Decimal), statement
    return found


def test_a_number_is_postgresqls_own_or_refused(ours: Any, theirs: Any) -> None:
    draw, equal, refused = random.Random("numeric"), 0, 0
    for _ in range(examples(800, 150)):
        written, kind = expression(draw)
        statement = f"SELECT {written}::numeric"
        found, right = asked(ours, statement), asked(theirs, statement)
        if isinstance(right, str):
            assert isinstance(found, str), (statement, found, right)
            continue
        assert right is not None
        if isinstance(found, str):
            # Ten places, and 28 digits before the point; of a constant, 38 digits in all.
            assert found in ("22003", "22P02"), (statement, found)
            digits = right.as_tuple()
            is_large, is_long = abs(right) >= 10**28, right != right.quantize(PLACES, context=WIDE)
            assert is_large or (kind.startswith("float") is False and is_long) or len(digits.digits) > 38, (statement, right, found)
            refused += 1
            continue
        with localcontext(prec=100):
            assert found == (right.quantize(PLACES, ROUND_HALF_UP) if kind.startswith("float") else right), (
                statement,
                found,
                right,
            )
        equal += 1
    assert equal > 5 * refused > 0


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT NULL::numeric",
        "SELECT NULL::float8::numeric",
        "SELECT 5::numeric",
        "SELECT sum(x::numeric) FROM (VALUES (0.1::float8), (0.2::float8)) AS t(x)",
        "SELECT round(x::numeric, 2) FROM (VALUES (2.675::float8)) AS t(x)",
        "SELECT '0.123456789012345678901234567890'::numeric",
        "SELECT x::numeric * 3 FROM (VALUES ('0.5')) AS t(x)",
        "SELECT max(x)::numeric FROM (VALUES (1::float8 / 8)) AS t(x) GROUP BY x::numeric ORDER BY x::numeric",
        "SELECT 'x'::numeric",
        "SELECT x::numeric FROM (VALUES ('1.5x')) AS t(x)",
    ],
)
def test_numbers_in_statements_are_postgresqls(ours: Any, theirs: Any, statement: str) -> None:
    found, right = asked(ours, statement), asked(theirs, statement)
    assert found == right
