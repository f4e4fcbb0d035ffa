"""A definition whose JSON is damaged in one place is refused by name, or is valid; there is no other error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millpond.errors import MillpondError
from millpond.schema.definition.operator_name import parse_entry
from millpond.schema.definition.table import parse_definition
from millpond.tables.finish.definition import compile_definition
from spark_files.golden import GOLDEN
from suite.sizes import a_few

VALUES: tuple[Any, ...] = (None, True, -1, 10**30, 1.5, "", "x", [], [None], [[]], [0], {}, {"a": 1})
# So many places of each definition: most have fewer.
PLACES = 150
FILES = sorted([*GOLDEN.glob("*/definition.json"), *GOLDEN.glob("types/jobs/*/tables/*.json")])


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every member and element of a tree, with its container."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from places(node[key])


@pytest.mark.parametrize("file", a_few(FILES, 2), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_definition_with_something_else_in_one_place(file: Path) -> None:
    whole = json.loads(file.read_text())
    parse_entry(whole)
    random, refused = Random(file.parent.name), 0
    found = list(places(whole))
    for holder, key in random.sample(found, min(PLACES, len(found))):
        before = holder[key]
        for value in VALUES:
            holder[key] = value
            refused += is_refused(whole)
        holder[key] = before
        if isinstance(holder, dict):
            del holder[key]
            refused += is_refused(whole)
            holder[key] = before
    assert refused > 50


def is_refused(data: Any) -> bool:
    try:
        entry = parse_entry(data)
        if getattr(entry, "values", None) is not None:
            compile_definition(parse_definition(data))
    except MillpondError as error:
        assert error.condition == "DEFINITION_MISMATCH", error
        return True
    return False
