"""The offsets of a batch, replaced in Spark's own text."""

from __future__ import annotations

import pytest

from millpond.errors import MillpondError
from millpond.savepoint.offsets import with_offset

PLANNED = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


@pytest.mark.parametrize(("version", "index"), [("v1", ""), ("v2", "0:")])
@pytest.mark.parametrize(("offset", "written"), [('{"t":{"0":5}}', '{"t":{"0":5}}'), (None, "-")])
def test_the_rest_of_the_batch_stays(version: str, index: str, offset: str | None, written: str) -> None:
    before = f'{version}\n{PLANNED}\n{index}{{"logOffset":3}}'.encode()
    assert with_offset(before, "offsets/4", offset) == f"{version}\n{PLANNED}\n{index}{written}".encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"v1\n{PLANNED}",
        f'v1\n{PLANNED}\n{{"logOffset":3}}\n{{"logOffset":3}}',
        f'v2\n{PLANNED}\nname:{{"logOffset":3}}',
        f'v3\n{PLANNED}\n{{"logOffset":3}}',
    ],
)
def test_a_batch_with_other_sources_is_refused(text: str) -> None:
    with pytest.raises(MillpondError, match="offsets/4") as refused:
        with_offset(text.encode(), "offsets/4", None)
    assert refused.value.condition == "CORRUPT_FILE"
