"""Whole files in the place of others: another partition's state, another entry of a source's log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.errors import CheckpointError, MillpondError
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from millpond.tables.repair import plan_repair
from spark_files.damage import write_checksum


def found(checkpoint: Path) -> set[tuple[str, str, str]]:
    return {(f.path, f.kind, f.effect) for f in diagnose(open_storage(checkpoint)).findings}


def exchange(one: Path, other: Path) -> None:
    """Two files of the same level get each other's names, with their checksums and times."""
    for name in ("{}", ".{}.crc"):
        a, b = (file.with_name(name.format(file.name)) for file in (one, other))
        if a.exists():
            a.rename(a.with_suffix(".away"))
            b.rename(a)
            a.with_suffix(".away").rename(b)


def newest(folder: Path, suffix: str) -> Path:
    return max(folder.glob(f"[0-9]*{suffix}"), key=lambda file: int(file.stem))


# Of each provider a file of rows and one of changes; those of variables lie in column families.
CELLS = [
    ("spark-4.3/apply-hdfs", ".snapshot"),
    ("spark-4.3/dedupe-hdfs", ".delta"),
    ("spark-4.3/join-inner-hdfs", ".delta"),
    ("spark-4.3/apply-rocksdb-changelog", ".changelog"),
    ("spark-4.3/transform-event-timers-rocksdb-changelog", ".changelog"),
    ("spark-4.3/join-full-format4-rocksdb-changelog", ".changelog"),
]


@pytest.mark.parametrize(("cell", "suffix"), CELLS)
def test_state_of_another_partition(golden: Callable, tmp_path: Path, cell: str, suffix: str) -> None:
    checkpoint = golden(cell).checkpoint
    assert diagnose(open_storage(checkpoint)).is_sound
    stores = [*(checkpoint / "state/0/0").glob("left-keyWithIndexToValue"), checkpoint / "state/0/0"]
    store = str(stores[0].relative_to(checkpoint / "state/0/0"))
    files = [newest(checkpoint / f"state/0/{partition}/{store}", suffix) for partition in (0, 1)]
    exchange(*files)
    findings = found(checkpoint)
    assert {(kind, effect) for _, kind, effect in findings} <= {("damaged", "wrong"), ("hole", "may fail")}
    assert any(path.startswith("state/0/") and effect == "wrong" for path, _, effect in findings)
    with pytest.raises(CheckpointError, match="one of its files is another partition's"):
        millpond.plan_savepoint(checkpoint, "checked").run()
    made = millpond.plan_savepoint(checkpoint, "quick", count=False).run()
    assert any("another partition's" in problem.message for problem in verify_savepoint(made).problems)
    plan = plan_repair(checkpoint, to=tmp_path / "repaired")
    assert plan.restart is None or diagnose(open_storage(plan.run().checkpoint)).is_sound


def test_rows_that_needn_t_lie_by_their_hash_are_not_looked_at(golden: Callable) -> None:
    checkpoint = golden("spark-4.3/apply-hdfs").checkpoint
    exchange(*(newest(checkpoint / f"state/0/{partition}", ".snapshot") for partition in (0, 1)))
    setting = '"spark.sql.streaming.statefulOperator.useStrictDistribution":'
    for plan in checkpoint.glob("offsets/[0-9]*"):
        stat, text = plan.stat(), plan.read_text()
        assert f'{setting}"true"' in text
        plan.write_text(text.replace(f'{setting}"true"', f'{setting}"false"'))
        os.utime(plan, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        plan.with_name(f".{plan.name}.crc").unlink(missing_ok=True)
    assert found(checkpoint) == set()


def test_an_entry_of_a_sources_log_that_is_another_one(golden: Callable) -> None:
    checkpoint = golden("spark-4.3/join-inner-hdfs").checkpoint
    made = millpond.plan_savepoint(checkpoint, "before").run()
    shutil.copy2(checkpoint / "sources/0/1", checkpoint / "sources/0/3")
    assert found(checkpoint) == {("sources/0/3", "damaged", "wrong")}
    with pytest.raises(CheckpointError, match="sources/0/3 has a file of entry 1"):
        millpond.plan_savepoint(checkpoint, "after").run()
    # A savepoint that an earlier version made of it.
    shutil.copy2(checkpoint / "sources/0/1", Path(str(made.checkpoint.local_path("sources/0/3"))))
    assert any("has a file of entry 1" in problem.message for problem in verify_savepoint(made).problems)


def test_lost_schemas_of_a_join_are_written_again(golden: Callable) -> None:
    checkpoint = golden("spark-4.3/join-full-format4-rocksdb-changelog").checkpoint
    shutil.rmtree(checkpoint / "state/0/_stateSchema")
    assert {(kind, effect) for _, kind, effect in found(checkpoint)} == {("missing", "none")}
    with pytest.raises(MillpondError) as raised:
        millpond.plan_savepoint(checkpoint, "after").run()
    assert raised.value.condition == "FILE_GONE"
    newest(checkpoint / "state/0/1", ".changelog").unlink()
    assert {("missing", "fails"), ("missing", "none")} == {(kind, effect) for _, kind, effect in found(checkpoint)}


def test_lost_schemas_of_variables_are_not(golden: Callable) -> None:
    checkpoint = golden("spark-4.3/transform-two-keys-rocksdb-changelog").checkpoint
    shutil.rmtree(checkpoint / "state/0/_stateSchema")
    assert ("missing", "fails") in {(kind, effect) for _, kind, effect in found(checkpoint)}


def test_an_sst_of_another_partition_where_only_spark_reads_it(golden: Callable) -> None:
    """The counts of a join are no table's."""
    checkpoint = golden("spark-4.3/join-semi-rocksdb-changelog").checkpoint
    made = millpond.plan_savepoint(checkpoint, "before").run()
    needed = [Path(file.path) for file in made.manifest.files if "left-keyToNumValues/SSTs/" in file.path]
    one, other = (next(path for path in needed if path.parts[2] == partition) for partition in ("0", "1"))
    shutil.copy2(checkpoint / one, checkpoint / other)
    (checkpoint / other).with_name(f".{other.name}.crc").unlink(missing_ok=True)
    assert {path for path, _, _ in found(checkpoint)} == {str(other)}
    with pytest.raises(CheckpointError) as raised:
        millpond.plan_savepoint(checkpoint, "after").run()
    assert raised.value.condition == "CORRUPT_FILE"
    quick = millpond.plan_savepoint(checkpoint, "quick", count=False).run()
    assert not verify_savepoint(quick).is_whole


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_log_that_isn_t_as_its_checksum_says(golden: Callable, log: str) -> None:
    """Two entries that somebody exchanged, without their hidden checksums."""
    checkpoint = golden("spark-4.3/limit-rocksdb-snapshots").checkpoint
    batch = max(int(file.name) for file in (checkpoint / log).glob("[0-9]*"))
    one, other = (checkpoint / log / f"{number}" for number in (batch, batch - 1))
    write_checksum(one)
    assert found(checkpoint) == set()
    millpond.plan_savepoint(checkpoint, "before").run()
    one.write_bytes(other.read_bytes() + b" ")
    assert (f"{log}/{batch}", "damaged", "wrong") in found(checkpoint)
    with pytest.raises(CheckpointError) as raised:
        millpond.plan_savepoint(checkpoint, "after").run()
    assert raised.value.condition == "CORRUPT_FILE"


def test_plans_of_other_batches(golden: Callable) -> None:
    """Exchanged with their checksums, so that only what they say shows it."""
    checkpoint = golden("spark-4.3/limit-rocksdb-snapshots").checkpoint
    batch = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    whole = millpond.plan_savepoint(checkpoint, "before").run()
    newest, last, first = ((checkpoint / f"offsets/{number}") for number in (batch, batch - 1, 0))
    for file, other, what in (
        (newest, first, "is another batch's"),
        (last, first, "is another batch's"),
        (last, checkpoint / "commits/0", "names 0 of 1 sources"),
    ):
        data = file.read_bytes()
        file.write_bytes(other.read_bytes())
        with pytest.raises(CheckpointError, match=what):
            millpond.plan_savepoint(checkpoint, "after").run()
        file.write_bytes(data)
    # A savepoint that an earlier version made of it.
    saved = Path(str(whole.checkpoint.local_path(f"offsets/{batch - 1}")))
    saved.unlink()
    shutil.copy2(checkpoint / "commits/0", saved)
    assert any(f"offsets/{batch - 1}" in problem.path for problem in verify_savepoint(whole).problems)


def test_a_file_of_changes_that_isn_t_as_spark_s_checksum_says(golden: Callable) -> None:
    checkpoint = golden("spark-4.3/transform-event-timers-checksum-checkpoint2-rocksdb-changelog").checkpoint
    batch = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    one, other = (next(checkpoint.glob(f"state/0/0/{n}_*.changelog.crc")) for n in (batch + 1, batch))
    assert found(checkpoint) == set()
    shutil.copy2(other, one)
    assert {effect for _, _, effect in found(checkpoint)} == {"may fail"}
