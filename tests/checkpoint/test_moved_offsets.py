"""The offsets of a batch, replaced in Spark's own text."""

from __future__ import annotations

import pytest

from millpond.checkpoint.log import with_offsets
from millpond.errors import MillpondError

PLANNED = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


@pytest.mark.parametrize(("version", "index"), [("v1", ""), ("v2", "0:")])
@pytest.mark.parametrize(("offset", "written"), [({"t": {"0": 5}}, '{"t":{"0":5}}'), (None, "-")])
def test_the_rest_of_the_batch_stays(version: str, index: str, offset: dict[str, object] | None, written: str) -> None:
    before = f'{version}\n{PLANNED}\n{index}{{"logOffset":3}}'.encode()
    assert with_offsets(before, "offsets/4", {"0": offset}, None) == f"{version}\n{PLANNED}\n{index}{written}".encode()


@pytest.mark.parametrize(
    "text",
    ["", f"v1\n{PLANNED}", f'v2\n{PLANNED}\nname:{{"logOffset":3}}', f'v3\n{PLANNED}\n{{"logOffset":3}}'],
)
def test_a_batch_without_the_source_is_refused(text: str) -> None:
    with pytest.raises(MillpondError, match="offsets/4"):
        with_offsets(text.encode(), "offsets/4", {"0": None}, None)
