"""Which of several findings decides."""

from __future__ import annotations

import json
from itertools import pairwise, permutations

import pytest

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
