"""The name of an operator's tables: what its file may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millpond.errors import DefinitionError
from millpond.schema.named import NamedOperator, parse_entry

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
