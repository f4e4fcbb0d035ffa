"""Questions from URLs and JSON: pairs, controls and limits; both forms ask the same."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import RequestError
from millpond.schema.values import decode_json, encode_json
from millpond.settings import ServeSettings
from millpond.wire.declare import fields
from millpond.wire.parse import controls, parse_json, parse_url
from millpond.wire.query import parse_query, split_controls
from millpond.wire.questions import CountRows, FindEvent, KeepCut, Keys, ListChanges, ListVersions, Scan

# Names and values in a URL may have any bytes.
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
    settings = ServeSettings(max_rows=1000)
    assert parse_url(Scan, [], settings)[0].limit is None
    assert parse_url(Scan, [("_limit", "1000")], settings)[0].limit == 1000
    for text in ("0", "-1", "1001", "", "1.0", "ten", "٣", "9" * 5000, "null"):
        with pytest.raises(RequestError) as refused:
            parse_url(Scan, [("_limit", text)], settings)
        assert refused.value.condition == "INVALID_LIMIT"
        assert refused.value.context["maximum"] == 1000


# Possible values of each field, in Python.
_VALUES = {
    int: st.integers(0, 10**17),
    float: st.floats(0, 20),
    bool: st.booleans(),
    str: texts.filter(lambda text: not text.isdigit()),
    dict: st.dictionaries(st.text(), st.integers(), min_size=1),
    list: st.lists(st.integers(0, 99).map("views:0:{}".format), min_size=1),
}
_QUESTIONS = (Scan, CountRows, ListVersions, ListChanges, FindEvent, KeepCut)


def _in_url(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list):
        return ",".join(value)
    return encode_json(value).decode() if isinstance(value, dict) else str(value)


@given(st.sampled_from(_QUESTIONS), st.data())
def test_a_url_asks_what_json_asks(kind: type[Any], data: st.DataObject) -> None:
    members: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    own, settings = fields(kind), ServeSettings(max_rows=10**18)
    for name, field in controls(kind).items():
        if data.draw(st.booleans()):
            continue
        kinds = field.kinds - {str} if field.kinds >= {list} else field.kinds
        if field.name == "min_offsets":
            value: Any = {"views": {"0": data.draw(_VALUES[int])}}
        elif field.name == "limit":
            value = data.draw(st.integers(1, 10**17))
        elif field.name == "contains_file":
            value = "/in/" + data.draw(st.text(min_size=1))
        elif field.name == "shard":
            value = data.draw(st.sampled_from(["1/3", "0-31", "7"]))
        else:
            value = data.draw(_VALUES[data.draw(st.sampled_from(sorted(kinds, key=str)))])
        place = members if field.name in own else members.setdefault("bounds", {})
        place[field.name] = value
        pairs.append((name, _in_url(value)))
    asked, columns = parse_url(kind, pairs, settings)
    assert columns == []
    assert asked == parse_json(kind, decode_json(encode_json(members)), settings)
    # A client sends the same question.
    assert parse_json(kind, decode_json(encode_json(asked)), settings) == asked


@pytest.mark.parametrize("kind", [Keys, *_QUESTIONS], ids=lambda kind: kind.__name__)
def test_a_member_of_another_type_is_refused_by_name(kind: type[Any]) -> None:
    values: list[Any] = [True, 7, 1.5, "x", [], {}, None]
    for name, field in fields(kind).items():
        taken = field.kinds | ({int} if float in field.kinds else set()) | {type(None)}
        for value in values:
            if type(value) in taken:
                continue
            members = {"keys": [], name: value} if "keys" in fields(kind) else {name: value}
            with pytest.raises(RequestError) as refused:
                parse_json(kind, members, ServeSettings())
            assert refused.value.condition in ("INVALID_REQUEST", "INVALID_LIMIT", "INVALID_BOUND")
            assert name in refused.value.message or refused.value.condition != "INVALID_REQUEST"
