"""What the file that names an operator's tables may contain."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from millpond.errors import DefinitionError, RequestError
from millpond.schema.definition.operator_name import NamedOperator, parse_entry
from millpond.settings import Retention

ORDERS = NamedOperator(table="orders", operator=1, operator_name="symmetricHashJoin")


def test_a_name_survives_its_file() -> None:
    assert parse_entry(json.loads(json.dumps(ORDERS.to_json()))) == ORDERS


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"kind": "view"},
        {"kind": None},
        {"table": "../orders"},
        {"table": 7},
        {"operator": -1},
        {"operator": True},
        {"operator": "0"},
        {"operator_name": None},
    ],
)
def test_a_file_that_isnt_one_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_entry(ORDERS.to_json() | wrong)
    assert refused.value.condition == "DEFINITION_MISMATCH"


@pytest.mark.parametrize("data", [{}, [], None, {"format": 1, "table": "orders"}])
def test_what_has_no_kind_is_read_as_a_definition(data: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_entry(data)
    assert refused.value.condition == "DEFINITION_MISMATCH"


def test_the_name_is_no_part_of_whose_tables_they_are() -> None:
    same = NamedOperator(table="purchases", operator=1, operator_name="symmetricHashJoin")
    other = NamedOperator(table="orders", operator=1, operator_name="applyInPandasWithState")
    assert ORDERS.fingerprint() == same.fingerprint() != other.fingerprint()
    assert ORDERS.may_name("orders_left")
    assert not ORDERS.may_name("ordersleft")


def test_what_is_kept_of_the_tables_survives_and_is_no_part_of_what_they_are() -> None:
    kept = replace(ORDERS, retention=Retention(closed_seconds=None, history_batches=7))
    assert parse_entry(json.loads(json.dumps(kept.to_json()))) == kept
    assert kept.fingerprint() == ORDERS.fingerprint()
    assert "retention" not in ORDERS.to_json()
    older = kept.to_json() | {"retention": {"closed_seconds": 5}}
    assert parse_entry(older) == replace(ORDERS, retention=Retention(closed_seconds=5))


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        [],
        {"closed": 5},
        {"closed_seconds": "24h"},
        {"closed_seconds": -1},
        {"closed_seconds": True},
        {"closed_bytes": None},
        {"closed_bytes": 1.5},
        {"history_batches": float("nan")},
        {"history_seconds": float("nan")},
    ],
)
def test_a_retention_that_isnt_one_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_entry(ORDERS.to_json() | {"retention": wrong})
    assert refused.value.condition == "DEFINITION_MISMATCH"


def test_a_retention_in_words() -> None:
    assert Retention.parse() == Retention()
    assert Retention.parse(keep_closed="forever", history="24h") == Retention(
        closed_seconds=None, history_batches=None, history_seconds=86_400.0
    )
    assert not Retention.parse(keep_closed="no").keeps_closed
    assert Retention.parse(history="forever").keeps_history
    assert not Retention.parse(history="no").keeps_history
    assert not Retention.parse(history="0").keeps_history
    assert Retention.parse(keep_closed="30m").words() == "expired rows for 30m, at most 1,073,741,824 bytes; changes no"
    assert Retention.parse(keep_closed="no", history="100").words() == "expired rows no; changes of 100 batches"
    assert Retention.parse(history="forever").words().endswith("changes for ever")
    for wrong in ("", "soon", "24", "-1h", "1.5h", "24 h", "٢h", "9999999999h"):
        with pytest.raises(RequestError) as refused:
            Retention.parse(keep_closed=wrong)
        assert refused.value.condition == "INVALID_REQUEST"
