"""A failing case becomes as small as its failure lets it."""

from __future__ import annotations

from random import Random

from random_queries.case import ANSI, Case, parse_case
from random_queries.data import LEAVES, NESTED, literal
from random_queries.minimise import minimise, without_unused

CASE = Case(
    columns={"k": "string", "i": "int", "l": "bigint", "a.b": "double"},
    batches=[[["'a'", str(n), "7", "NULL"] for n in range(6)], [["'b'", "3", "8", "NULL"]], [["'c'", "9", "9", "NULL"]]],
    keys=["k", "l % 2 AS odd"],
    aggregates=["count(*) AS n", "sum(i) AS s", "max(`a.b`) AS `a.b`"],
    after=[["where", "n > 0"], ["withColumn", "twice", "s * 2"]],
    conf={ANSI: "true"},
    door="define",
    mode="complete",
    partitions=3,
)


def test_what_the_failure_needs_stays_and_all_else_goes():
    def judge(case: Case) -> tuple[str, str] | None:
        column = list(case.columns).index("i") if "i" in case.columns else None
        has_three = column is not None and any(row[column] == "3" for rows in case.batches for row in rows)
        return ("value sum", "differs") if has_three and any("sum(i)" in text for text in case.aggregates) else None

    small, detail = minimise(judge, CASE, "value sum", "")
    assert small == Case(columns={"i": "int"}, batches=[[["3"]]], keys=[], aggregates=["sum(i) AS s"], partitions=1)
    assert detail == "differs"


def test_another_failure_is_not_taken_for_the_same():
    def judge(case: Case) -> tuple[str, str] | None:
        return ("count", "") if len(case.aggregates) < 3 else ("untyped TypeError", "")

    small, _ = minimise(judge, CASE, "untyped TypeError", "")
    assert len(small.aggregates) == 3


def test_columns_that_are_named_nowhere_go_with_their_values():
    case = without_unused(
        Case(
            columns={"k": "int", "a.b": "int", "b": "int", "a`b": "int"},
            batches=[[["1", "2", "3", "4"]]],
            keys=["`a.b`", "`a``b`"],
            aggregates=["sum(b)"],
        )
    )
    assert case.columns == {"a.b": "int", "b": "int", "a`b": "int"}
    assert case.batches == [[["2", "3", "4"]]]


def test_a_case_is_text_and_back():
    assert parse_case(CASE.to_json()) == CASE


def test_every_type_has_values_and_the_same_seed_gives_the_same():
    for type_ in (*LEAVES, *NESTED):
        drawn = [[literal(Random(seed), type_) for seed in range(60)] for _ in range(2)]
        assert drawn[0] == drawn[1]
        assert len(set(drawn[0])) > 2
        assert "NULL" in drawn[0]
