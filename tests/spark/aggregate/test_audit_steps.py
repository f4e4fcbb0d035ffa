"""Which records of Kafka each batch has read, by the offsets in a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.spark.audit.steps import Part, read_steps
from millpond.storage import open_storage

ENDS = [{"0": 5, "1": 2}, {"0": 5, "1": 9, "2": 4}, {"0": 8, "1": 9, "2": 4}]


def _write(folder: Path, *, planned: range) -> None:
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"a"}')
    (folder / "sources" / "0" / "0").write_bytes(b"\0v1\n" + json.dumps({"views": {"0": 3, "1": 0}}).encode())
    for batch in planned:
        plan = {"batchWatermarkMs": 1000 * batch, "batchTimestampMs": 50_000 + batch, "conf": {}}
        (folder / "offsets" / str(batch)).write_text(f"v1\n{json.dumps(plan)}\n{json.dumps({'views': ENDS[batch]})}")
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def _part(partition: int, first: int, end: int) -> Part:
    return Part(source=0, name=f"views:{partition}", first=first, end=end)


def test_each_batch_has_its_ranges_of_offsets(tmp_path: Path) -> None:
    _write(tmp_path, planned=range(3))
    steps = read_steps(open_storage(tmp_path), None, None)
    assert [step.parts for step in steps] == [
        (_part(0, 3, 5), _part(1, 0, 2)),
        (_part(1, 2, 9), _part(2, 0, 4)),
        (_part(0, 5, 8),),
    ]
    assert [step.batches for step in steps] == ["batch 0", "batch 1", "batch 2"]
    assert [(step.watermark_ms[0], step.before_ms[0], step.clock_ms[0]) for step in steps] == [
        (0, 0, 50_000),
        (1000, 0, 50_001),
        (2000, 1000, 50_002),
    ]
    assert [step.parts for step in read_steps(open_storage(tmp_path), 1, 1)] == [steps[1].parts]


def test_what_was_read_before_the_plans_that_are_left_is_one_step(tmp_path: Path) -> None:
    _write(tmp_path, planned=range(1, 3))
    before, last = read_steps(open_storage(tmp_path), None, None)
    assert before.parts == (_part(0, 3, 5), _part(1, 0, 9), _part(2, 0, 4))
    assert (before.batches, before.is_exact, before.is_one) == ("batches 0 to 1", False, False)
    assert (before.clock_ms, before.watermark_ms) == ((0, 50_001), (0, 1000))
    assert (last.parts, last.is_exact) == ((_part(0, 5, 8),), True)
    with pytest.raises(MillpondError) as gone:
        read_steps(open_storage(tmp_path), 1, None)
    assert gone.value.condition == "BATCH_GONE"
