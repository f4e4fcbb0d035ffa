"""The next batch of a restored job ends where another job ended: its plan, and the log of a file source."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from millpond.checkpoint.source_files import iter_logged
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.end_at import _interval
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint


def job(path: Path, batches: list[Any], logs: list[list[str]] | None = None) -> WrittenCheckpoint:
    """A job with a batch for each end of its source; and the entries of its log, compacted every ten as Spark does."""
    made = WrittenCheckpoint(path, path.name, sources=lambda batch: [batches[batch]])
    before: list[str] = []
    for n, files in enumerate(logs or []):
        lines = [json.dumps({"path": f"file:///in/{name}", "timestamp": 1000 + int(name), "batchId": n}) for name in files]
        before += lines
        is_compact = (n + 1) % 10 == 0
        made.write(
            f"sources/0/{n}" + (".compact" if is_compact else ""), "\n".join(["v1", *(before if is_compact else lines)]).encode()
        )
    for n in range(len(batches)):
        made.plan([((f"k{n}",), n)], snapshot=False)
        made.commit()
    return made


def savepoints(tmp_path: Path, first: WrittenCheckpoint, other: WrittenCheckpoint) -> Path:
    """Both savepoints in the place of the first job."""
    plan_savepoint(first.path, "first").run()
    export_savepoint(plan_savepoint(other.path, "other").run(), tmp_path / "other.tar")
    import_savepoint(first.path, tmp_path / "other.tar")
    return first.path


def next_offset(tmp_path: Path, place: Path, batch: int) -> Any:
    target = tmp_path / "target"
    plan_restore(place, "first", target, end_at="other").run()
    path = target / f"offsets/{batch}"
    return json.loads(path.read_text().split("\n")[2]) if path.exists() else None


def kafka(*ends: int) -> dict[str, Any]:
    return {"clicks": {str(n): end for n, end in enumerate(ends)}}


def test_a_source_of_kafka_ends_there(tmp_path: Path) -> None:
    place = savepoints(tmp_path, job(tmp_path / "a", [kafka(1, 1), kafka(5, 2)]), job(tmp_path / "b", [kafka(5, 7, 3)]))
    assert next_offset(tmp_path, place, 2) == kafka(5, 7, 3)
    assert not (tmp_path / "target/commits/2").exists()


def test_a_job_that_ends_there_already_gets_no_plan(tmp_path: Path) -> None:
    place = savepoints(tmp_path, job(tmp_path / "a", [kafka(5, 2)]), job(tmp_path / "b", [kafka(1, 1), kafka(5, 2)]))
    assert next_offset(tmp_path, place, 1) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "condition"),
    [
        (kafka(5, 2), kafka(5, 1), "NOT_ALIGNED"),
        (kafka(5, 2), kafka(6), "NOT_ALIGNED"),
        (kafka(5, 2), None, "NOT_ALIGNED"),
        (kafka(5), {"other": {"0": 9}}, "NOT_ALIGNED"),
        (17, 18, "UNSUPPORTED"),
        ({"reservoirVersion": 4, "index": 500}, {"reservoirVersion": 5, "index": -1}, "UNSUPPORTED"),
        ({"left": 5}, {"left": 6}, "UNSUPPORTED"),
        (kafka(5), {"topic": 9}, "UNSUPPORTED"),
    ],
)
def test_what_cant_be_reached_is_refused(tmp_path: Path, mine: Any, theirs: Any, condition: str) -> None:
    place = savepoints(tmp_path, job(tmp_path / "a", [mine]), job(tmp_path / "b", [theirs]))
    with pytest.raises(MillpondError) as refused:
        plan_restore(place, "first", tmp_path / "target", end_at="other")
    assert refused.value.condition == condition
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("seed", range(12))
def test_a_log_gets_the_files_that_it_lacks(tmp_path: Path, seed: int) -> None:
    """Random logs, up to and over a compaction: afterwards both have read the same set of files, each once."""
    some = random.Random(seed)
    files = [f"{n:04}" for n in range(some.randint(2, 60))]
    read = files[: some.randint(1, len(files))]

    def entries(of: list[str], count: int) -> list[list[str]]:
        bounds = sorted(some.randint(0, len(of)) for _ in range(count - 1))
        return [of[a:b] for a, b in zip([0, *bounds], [*bounds, len(of)], strict=True)]

    mine, theirs = (
        entries(read, some.choice([1, 5, 9, 10, 11, 19, 23])),
        entries(some.sample(files, len(files)), some.randint(1, 25)),
    )
    place = savepoints(
        tmp_path,
        job(tmp_path / "a", [{"logOffset": n} for n in range(len(mine))], mine),
        job(tmp_path / "b", [{"logOffset": n} for n in range(len(theirs))], theirs),
    )
    found = next_offset(tmp_path, place, len(mine))
    if read == files:
        assert found is None
        return
    number = len(mine)
    assert found == {"logOffset": number}
    logged = list(iter_logged(open_storage(tmp_path / "target"), "0", upto=number))
    assert sorted(file.path for file in logged) == [f"file:///in/{name}" for name in files]
    assert {file.path for file in logged if file.entry == number} == {f"file:///in/{name}" for name in files if name not in read}
    assert (tmp_path / f"target/sources/0/{number}.compact").exists() == ((number + 1) % 10 == 0)


def test_a_job_that_has_read_more_files_is_refused(tmp_path: Path) -> None:
    place = savepoints(
        tmp_path,
        job(tmp_path / "a", [{"logOffset": 0}], [["0001", "0002"]]),
        job(tmp_path / "b", [{"logOffset": 0}], [["0001", "0003"]]),
    )
    with pytest.raises(MillpondError, match="file:///in/0002"):
        plan_restore(place, "first", tmp_path / "target", end_at="other")


@pytest.mark.parametrize(("newest", "expected"), [(None, 10), (9, 10), (19, 10), (4, 5), (11, 12), (34, 35), (44, 15), (12, 13)])
def test_the_interval_is_that_of_the_log(newest: int | None, expected: int) -> None:
    assert _interval(newest) == expected
