"""The settings of the newest batch, committed or not: what `start` goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.checkpoint.log import newest_conf
from millpond.errors import CheckpointError
from millpond.storage import open_storage


def plan(checkpoint: Path, batch: int, text: str) -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text(text)


def offsets(**conf: str) -> str:
    return f"v1\n{json.dumps({'batchTimestampMs': 1, 'conf': conf})}\n-"


def test_a_checkpoint_without_a_batch_has_none(tmp_path: Path) -> None:
    assert newest_conf(open_storage(tmp_path)) == {}


def test_the_newest_batch_counts_committed_or_not(tmp_path: Path) -> None:
    for batch in (9, 10, 2):
        plan(tmp_path, batch, offsets(batch=str(batch)))
    assert newest_conf(open_storage(tmp_path)) == {"batch": "10"}


@pytest.mark.parametrize(
    ("text", "condition"),
    [("v1\n{", "CORRUPT_FILE"), ("v1", "INCOMPLETE_FILE"), ("v9\n{}", "UNKNOWN_FORMAT"), ('v1\n{"conf": []}', "CORRUPT_FILE")],
)
def test_a_damaged_log_is_refused_by_its_name(tmp_path: Path, text: str, condition: str) -> None:
    plan(tmp_path, 3, text)
    with pytest.raises(CheckpointError) as refused:
        newest_conf(open_storage(tmp_path))
    assert (refused.value.condition, refused.value.context["path"]) == (condition, "offsets/3")
