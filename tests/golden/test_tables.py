"""A table's answer at a batch is what the job itself emitted at that batch, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.schema.convert import to_stored
from millpond.schema.definition.table import parse_definition
from spark_files.golden import GOLDEN

CELLS = sorted(p.parent.name for p in GOLDEN.glob("*/emitted.json"))
# The order of collect_set differs from run to run.
AS_SETS = frozenset({"hosts"})


def as_json(name: str, value: Any) -> Any:
    if name in AS_SETS and value is not None:
        value = sorted(value)
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, tuple | list):
        return [as_json("", v) for v in value]
    return value


@pytest.mark.parametrize("cell", CELLS)
def test_a_table_answers_what_the_job_emitted_at_each_batch(golden: Callable[[str], Any], tmp_path: Path, cell: str) -> None:
    copy = golden(cell)
    definition = parse_definition(copy.read("definition"))
    if not definition.derived:
        pytest.skip(f"{cell} has no derived table")
    emitted = copy.read("emitted")
    create_beside(copy.checkpoint).write_definition(definition)
    stored_of = {c.name: to_stored(c.type) for c in (*definition.key, *definition.values)}
    copy.uncommit()
    compared = 0
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home") as pond:
        for batch in range(copy.last + 1):
            copy.commit(batch)
            pond.catch_up(60)
            table = pond["counts"]
            columns = emitted["columns"]
            found = {}
            rows = table.scan()
            assert rows.batch == batch
            for row in rows:
                found[_key(definition, row, stored_of)] = row
            for values in emitted["batches"].get(str(batch), []):
                expected = dict(zip(columns, values, strict=True))
                if "window" in expected:
                    expected["window_start"], expected["window_end"] = expected.pop("window")
                row = found[tuple(json.dumps(expected[c.name]) for c in definition.key)]
                assert list(row) == list(table.columns)
                for name, value in row.items():
                    stored = None if value is None else stored_of[name](value)
                    want = sorted(expected[name]) if name in AS_SETS else expected[name]
                    assert as_json(name, stored) == want, f"{name} of {row}"
                assert dict(table.get({c.name: row[c.name] for c in definition.key})) == dict(row)
                compared += 1
    assert compared > 0


def _key(definition: Any, row: Any, stored_of: Any) -> tuple[str, ...]:
    return tuple(json.dumps(None if row[c.name] is None else stored_of[c.name](row[c.name])) for c in definition.key)
