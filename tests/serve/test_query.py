"""The query string: pairs, controls, limits."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import RequestError
from millpond.wire.query import parse_limit, parse_query, split_controls

# What names and values in a URL can be: any bytes.
texts = st.binary().map(lambda data: data.decode("utf-8", "surrogateescape"))


@given(st.lists(st.tuples(texts.filter(bool), texts)))
def test_every_pair_of_texts_survives_a_url(pairs: list[tuple[str, str]]) -> None:
    for encode in (quote, quote_plus):
        query = "&".join(
            f"{encode(n, safe='', errors='surrogateescape')}={encode(v, safe='', errors='surrogateescape')}" for n, v in pairs
        )
        assert parse_query(query.encode()) == pairs


def test_characters_that_needed_no_encoding_are_read_as_well() -> None:
    assert parse_query("page=/ü?x=1/".encode()) == [("page", "/ü?x=1/")]
    assert parse_query(b"&&a=1&") == [("a", "1")]
    assert parse_query(b"a=1+2%2B3") == [("a", "1 2+3")]
    assert parse_query(b"a=100%") == [("a", "100%")]


def test_a_parameter_without_a_value_is_refused_rather_than_guessed() -> None:
    with pytest.raises(RequestError) as refused:
        parse_query(b"page")
    assert refused.value.condition == "INVALID_REQUEST"
    assert "page__isnull=1" in refused.value.hint


def test_controls_are_known_and_given_once() -> None:
    assert split_controls([("a", "1"), ("_limit", "2")], ("_limit",)) == ([("a", "1")], {"_limit": "2"})
    for pairs in ([("_foo", "1")], [("_limit", "1"), ("_limit", "1")]):
        with pytest.raises(RequestError) as refused:
            split_controls(pairs, ("_limit",))
        assert refused.value.condition == "INVALID_REQUEST"


def test_a_limit_lies_between_one_and_the_maximum() -> None:
    assert parse_limit(None, 1000) is None
    assert parse_limit("1000", 1000) == 1000
    for text in ("0", "-1", "1001", "", "1.0", "ten", "٣", "9" * 5000):
        with pytest.raises(RequestError) as refused:
            parse_limit(text, 1000)
        assert refused.value.condition == "INVALID_LIMIT"
        assert refused.value.context["maximum"] == 1000
