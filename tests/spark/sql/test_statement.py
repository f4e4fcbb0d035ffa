"""Statements as text: what is read, and that anything else is one typed error with a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import RequestError
from millpond.spark.sql.statement import parse_statements

WHOLE = """\
-- pages
create aggregate `page views` VERSION 2 key (page, `the host`) time at
RESOLUTIONS ('1 minute' FOR '2 days', '1 hour' FOR EVER, '1 day')
DEAD LETTERS NONE FUTURE SKEW '3 minutes' DEDUPE id FOR '2 days'
AS SELECT count(*) AS hits, sum(if(a, b, 1)) FILTER (WHERE x <> ';,') as `b c`, top_k(host, 3) AS top
FROM json.`/data/it's;here` SCHEMA 'at timestamp' OPTIONS (maxFilesPerTrigger 10, kafka.a = 'b', x -1)
WHERE page IN ('FROM', ';') /* ; */;
CREATE AGGREGATE b TIME t RESOLUTIONS ('1 day') AS SELECT max(x) AS x
"""
PIECES = [
    *WHOLE.replace("\n", " ").split(" "),
    "(",
    ")",
    ",",
    ";",
    "'",
    "`",
    "/*",
    "*/",
    "--",
    "\n",
    "AS",
    "FROM",
    "SELECT",
    "WHERE",
    "OPTIONS",
    "\\",
    "=>",
    "count(*) AS n",
    "'1 day'",
    "distinct(",
    "quantile(a => 1)",
    "x'",
    "$",
    "\x00",
    "é",
    "1e",
    "[",
    "]",
    "{",
    "{{",
    "}",
]


def test_every_clause_is_read() -> None:
    one, two = parse_statements(WHOLE)
    assert (one.name, one.version, one.key, one.event_time) == ("page views", 2, ("page", "the host"), "at")
    assert one.resolutions == {"1 minute": "2 days", "1 hour": None, "1 day": None}
    assert one.lengths == {"dead_letters": None, "future_skew": "3 minutes", "dedupe": ("id", "2 days")}
    assert {name: value.written.text for name, value in one.values.items()} == {
        "hits": "count(*)",
        "b c": "sum(if(a, b, 1)) FILTER (WHERE x <> ';,')",
        "top": "top_k(host, 3)",
    }
    assert one.values["top"].call is not None
    assert one.values["hits"].call is None
    source = one.source
    assert source is not None
    assert (source.format, source.path, source.schema, source.is_value) == ("json", "/data/it's;here", "at timestamp", False)
    assert source.options == {"maxFilesPerTrigger": "10", "kafka.a": "b", "x": "-1"}
    assert source.where is not None
    assert source.where.text == "page IN ('FROM', ';')"
    assert (two.name, two.source, two.lengths, two.place) == ("b", None, {}, (8, 1))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("SELECT 1", 1, 1),
        ("CREATE AGGREGATE a TIME t\nAS SELECT max(x) AS x", 1, 1),
        ("CREATE AGGREGATE a TIME t\nTIME t RESOLUTIONS ('1 day') AS SELECT max(x) AS x", 2, 1),
        ("CREATE AGGREGATE a TIME t RESOLUTIONS ('1 day')\nAS SELECT max(x)", 2, 11),
        ("CREATE AGGREGATE a TIME t RESOLUTIONS ('1 day')\nAS SELECT max(x AS x", 2, 14),
        ("CREATE AGGREGATE a TIME t RESOLUTIONS ('1 day')\nAS SELECT max(x) AS x,\n min(x) AS x", 3, 2),
        ("CREATE AGGREGATE a TIME t RESOLUTIONS ('1 day')\nAS SELECT max(x) AS x FROM json.`/a` OPTIONS (a 1, A 2)", 2, 52),
        ("CREATE AGGREGATE a TIME t RESOLUTIONS ('1 day')\nAS SELECT max(x) AS x FROM json.`/a` LIMIT 3", 2, 38),
        ("CREATE AGGREGATE a TIME t RESOLUTIONS ('1 day', '1 day') AS SELECT max(x) AS x", 1, 49),
        ("CREATE AGGREGATE a TIME 't'", 1, 25),
    ],
)
def test_a_mistake_has_a_place(text: str, line: int, column: int) -> None:
    with pytest.raises(RequestError) as refused:
        parse_statements(text)
    assert refused.value.condition == "INVALID_STATEMENT"
    assert (refused.value.context["line"], refused.value.context["column"]) == (line, column), str(refused.value)


@given(
    st.lists(st.sampled_from(PIECES)).map(" ".join)
    | st.text()
    | st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 40), st.text(max_size=3)).map(
        lambda cut: WHOLE[: cut[0]] + cut[2] + WHOLE[cut[0] + cut[1] :]
    )
)
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        assert parse_statements(text)
    except RequestError as refused:
        assert refused.condition == "INVALID_STATEMENT"
        assert 1 <= refused.context["line"] <= text.count("\n") + 1
        assert refused.context["column"] >= 1
