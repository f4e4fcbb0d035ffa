"""For random queries, Millpond gives what Spark emits, at every batch and through every door, or refuses by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from random_queries.campaign import Campaign
from random_queries.case import Case, parse_case
from random_queries.check import WrongError, check_run
from random_queries.run import run_case
from suite.sizes import a_few

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
SEED = int(os.environ.get("MILLPOND_SEED", "79"))


@pytest.mark.parametrize("numbers", a_few([range(4), range(4, 156), range(156, 410)], 1, long=1), ids=len)
def test_random_queries_agree_with_spark_or_are_refused_by_name(spark, tmp_path, numbers):
    campaign = Campaign(spark, tmp_path)
    campaign.run(SEED, numbers)
    assert campaign.failures == [], campaign.describe()
    assert campaign.counts["agreed"] > 0


@pytest.mark.parametrize("path", a_few(CASES, 2), ids=lambda path: path.stem)
def test_what_failed_once_agrees_ever_after(spark, tmp_path, path):
    assert Campaign(spark, tmp_path).judge(parse_case(path.read_text())) is None


SMALL = Case(
    columns={"k": "string", "i": "int", "l": "bigint"},
    batches=[[["'a'", "1", "100"], ["'b'", "2", "200"]], [["'a'", "3", "300"]]],
    keys=["k"],
    aggregates=["sum(i) AS small", "sum(l) AS large"],
)


def _spoil(definition: Path, change) -> None:
    data = json.loads(definition.read_text())
    change(data)
    definition.write_text(json.dumps(data))


def _swap_columns(data) -> None:
    first, second = data["values"]
    first["name"], second["name"] = second["name"], first["name"]


def _lose_a_column(data) -> None:
    data["values"].pop()


def _lose_rows(data) -> None:
    condition = {"op": "is_null", "type": "boolean", "args": [data["values"][0]["expression"]]}
    data["having"] = condition


@pytest.mark.parametrize("spoil", a_few([_swap_columns, _lose_a_column, _lose_rows], 1))
def test_the_judge_finds_what_is_wrong(spark, tmp_path, spoil):
    from millpond.schema.definition.table import parse_definition

    run = run_case(spark, SMALL, tmp_path, "t")
    assert check_run(run) == []
    definition = run.pond / "jobs" / "t" / "tables" / "t.json"
    _spoil(definition, spoil)
    run.definition = parse_definition(json.loads(definition.read_text()))
    with pytest.raises(WrongError):
        check_run(run)
