"""Which of several findings decides."""

from __future__ import annotations

import json
from itertools import pairwise, permutations

import pytest

from millpond.schema.definition.meaning import Meaning
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic
from millpond.spark.upgrade.compare import Known, compare_operators
from millpond.spark.upgrade.finding import EXIT_CODES, KINDS, Finding, Kind, Upgrade


def upgrade(*kinds: Kind) -> Upgrade:
    findings = tuple(Finding(kind=kind, operator=n, what=f"{kind}.") for n, kind in enumerate(kinds))
    return Upgrade(job="counts", batch=4, findings=findings)


@pytest.mark.parametrize(("less", "more"), list(pairwise(KINDS)))
def test_the_worse_finding_decides_and_comes_first(less: Kind, more: Kind) -> None:
    for kinds in permutations((less, more, "noted")):
        found = upgrade(*kinds)
        assert found.verdict == more
        assert found.exit_code == EXIT_CODES[more]
        assert found.describe().splitlines()[1].startswith(more.replace("_", " "))


def test_notes_change_no_verdict() -> None:
    assert [upgrade(*kinds).verdict for kinds in ((), ("noted",), ("noted", "noted"))] == ["compatible"] * 3
    assert upgrade("noted").exit_code == 0
    assert json.loads(json.dumps(upgrade("noted").to_json()))["findings"][0]["operator"] == 0
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def aggregation(*values: str, meaning: Meaning | None) -> dict[int, Known]:
    value = tuple(Field(name, atomic("long")) for name in values)
    store = StoreSchema(
        operator=0,
        operator_name="stateStoreSave",
        store="default",
        index=0,
        key=(Field("k", atomic("string")),),
        value=value,
        single=False,
    )
    return {0: Known(name="stateStoreSave", stores=(store,), meaning=meaning)}


@pytest.mark.parametrize("is_known", [True, False])
def test_fixable_aggregates_name_the_command_that_fixes_them(is_known: bool) -> None:
    old, new = Meaning(("k",), ("Count(1)",)), Meaning(("k",), ("Count(1)", "Sum(bytes)"))
    before = aggregation("count", meaning=old if is_known else None)
    (finding,) = compare_operators(before, aggregation("count", "sum", meaning=new), by_name=False)
    assert finding.kind == "fixable"
    assert "millpond evolve DIR SAVEPOINT FILE --name NEW" in finding.hint
    assert ("Sum(bytes) needs a value to begin with." in finding.hint) == is_known
    assert ("--old" in finding.hint) == (not is_known)
