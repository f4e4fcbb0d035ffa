"""`inspect` shows what Spark itself finds in a checkpoint, and the readable rest of a damaged one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.catalogue import create_beside, open_jobs
from millpond.cli import main
from millpond.schema.definition.operator_name import NamedOperator
from millpond.schema.definition.table import parse_definition
from millpond.tables.cold.report import JobReport, inspect_job
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.damage import write_checksum
from spark_files.golden import GOLDEN

CELLS = sorted(p.parent.name for p in GOLDEN.glob("*/state.json"))


def inspect(checkpoint: Path) -> JobReport:
    (folder,) = open_jobs(checkpoint)
    return inspect_job(folder)


@pytest.mark.parametrize("cell", CELLS)
def test_rows_per_partition_are_those_of_sparks_reader(golden: Callable[[str], Any], cell: str) -> None:
    copy = golden(cell)
    report = inspect(copy.checkpoint)
    for store in report.stores:
        expected = copy.read("state")[str(store.operator)][str(copy.last)]
        found = {p.partition: p.rows for p in store.partitions}
        assert found == {n: sum(1 for _, _, partition in expected if partition == n) for n in found}
        assert sum(found.values()) == len(expected)
        assert all(p.files > 0 and p.file_bytes > 0 for p in store.partitions)
    assert report.unread == ()
    assert report.job_id == json.loads((copy.checkpoint / "metadata").read_text())["id"]
    assert (report.batches, report.newest[0].batch) == (copy.last + 1, copy.last)
    assert report.settings is not None
    assert report.settings.provider in report.conf["spark.sql.streaming.stateStore.providerClass"].lower()
    assert report.sources == {"0": json.loads((copy.checkpoint / f"offsets/{copy.last}").read_text().split("\n")[2])}
    assert report.replica_bytes


@pytest.mark.parametrize("cell", CELLS)
def test_the_tables_and_columns_are_those_that_open_shows(golden: Callable[[str], Any], tmp_path: Path, cell: str) -> None:
    copy = golden(cell)
    shown = [name for store in inspect(copy.checkpoint).stores for name in store.tables]
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        assert sorted(shown) == pond.tables()


def test_it_writes_nothing_beside_the_checkpoint(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-hdfs")
    before = sorted(copy.checkpoint.parent.rglob("*"))
    inspect(copy.checkpoint)
    assert sorted(copy.checkpoint.parent.rglob("*")) == before


DAMAGE = {
    "metadata": "job id",
    "offsets/11": "batch 11",
    "commits/10": "batch 10",
    "state/0/_metadata/metadata": "operator 0 (unknown), store default",
    "state/0/0/_metadata/schema": "operator 0 (stateStoreSave), store default",
    "state/1/1/12.zip": "operator 1, store default, partition 1",
}


@pytest.mark.parametrize("path", DAMAGE)
def test_a_damaged_checkpoint_shows_the_rest_and_says_what_is_missing(golden: Callable[[str], Any], path: str) -> None:
    copy = golden("chained-rocksdb-changelog")
    whole = inspect(copy.checkpoint)
    (copy.checkpoint / path).write_bytes(b"\xff\x00")
    report = inspect(copy.checkpoint)
    assert [u.part for u in report.unread] == [DAMAGE[path]]
    assert report.unread[0].condition in ("CORRUPT_FILE", "INCOMPLETE_FILE", "UNKNOWN_FORMAT")
    assert {s.operator for s in report.stores} == {0, 1}
    # The readable part is unchanged; but without the newest batch's own log there is no batch to read.
    if path == "offsets/11":
        assert (report.settings, report.sources, report.stores[0].partitions) == (None, {}, ())
        assert [b.batch for b in report.newest] == [10, 9, 8, 7]
        return
    assert report.settings == whole.settings
    before, after = ([p for s in r.stores for p in s.partitions if p.rows is not None] for r in (whole, report))
    readable = [p for p in before if any(p.rows == q.rows and p.partition == q.partition for q in after)]
    assert len(readable) == len(after) >= 2
    assert (report.replica_bytes is None) == (path == "state/1/1/12.zip")


def test_a_store_that_isnt_supported_is_named_and_hides_no_other(golden: Callable[[str], Any]) -> None:
    copy = golden("chained-rocksdb-changelog")
    metadata = copy.checkpoint / "state/1/_metadata/metadata"
    metadata.write_text(metadata.read_text().replace('"dedupe"', '"someNewOperator"'))
    report = inspect(copy.checkpoint)
    assert [(u.part, u.condition) for u in report.unread] == [("operator 1 (someNewOperator), store default", "UNSUPPORTED")]
    assert [p.rows for p in report.stores[0].partitions] == [23, 20]


@pytest.mark.parametrize("long_values", [False, True])
def test_the_estimate_of_a_replicas_disk_is_near_what_one_takes(tmp_path: Path, long_values: bool) -> None:
    random = Random(1)
    checkpoint = WrittenCheckpoint(tmp_path / "checkpoint")
    longest = 400 if long_values else 24
    keys = [f"{random.getrandbits(64):x}" + "k" * random.randrange(longest) for _ in range(10_000)]
    checkpoint.plan([(key, n) for n, key in enumerate(keys)], snapshot=False)
    checkpoint.commit()
    estimate = inspect(checkpoint.path).replica_bytes
    with millpond.open(checkpoint.path, replica_dir=tmp_path / "home"):
        taken = sum(p.stat().st_blocks * 512 for p in (tmp_path / "home").glob("replicas/*/generation-*/data.mdb"))
    assert estimate is not None
    assert 0.7 < estimate / taken < 1.4


def test_the_command_writes_the_same_for_people_and_for_programs(golden: Callable[[str], Any]) -> None:
    copy = golden("windows-hdfs")
    report = inspect(copy.checkpoint)
    written = CliRunner().invoke(main, ["inspect", str(copy.checkpoint), "--json"])
    assert written.exit_code == 0
    assert json.loads(written.stdout) == json.loads(json.dumps(asdict(report)))
    (copy.checkpoint / "state/0/0/_metadata/schema").write_bytes(b"")
    shown = CliRunner().invoke(main, ["inspect", str(copy.checkpoint), "--batches", "2"])
    assert shown.exit_code == 0
    for text in (report.job_id, "provider hdfs", "source 0", "stateStoreSave", "watermark   20", "[INCOMPLETE_FILE]"):
        assert text is not None
        assert text in shown.stdout
    assert "\n10\t" in shown.stdout
    assert "\n9\t" not in shown.stdout


def test_a_pond_is_inspected_job_by_job(types_pond: Path) -> None:
    written = CliRunner().invoke(main, ["inspect", str(types_pond), "--json"])
    reports = [json.loads(line) for line in written.stdout.splitlines()]
    assert [r["job"] for r in reports] == sorted(p.name for p in (types_pond / "jobs").iterdir())
    assert all(r["unread"] == [] and r["stores"][0]["tables"] == [r["job"]] for r in reports)


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert done.exit_code == 3
    assert done.stderr.startswith("[NO_CHECKPOINT]")


def test_files_are_held_against_the_checksums_beside_them_when_asked(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-rocksdb-format2")  # Spark's own checksums of state files
    report = inspect_job(open_jobs(copy.checkpoint)[0], checksums=True)
    assert report.checksums is not None
    assert report.checksums.checked == len(list(copy.checkpoint.rglob("[!.]*.crc"))) > 0
    assert report.checksums.files == sum(p.is_file() and not p.name.endswith(".crc") for p in copy.checkpoint.rglob("[!.]*")) - len(
        [p for p in (copy.checkpoint / "sources").rglob("*") if p.is_file()]
    )
    assert report.unread == ()
    assert inspect(copy.checkpoint).checksums is None
    damaged = sorted(copy.checkpoint.rglob("*.changelog.crc"))[0].with_suffix("")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    report = inspect_job(open_jobs(copy.checkpoint)[0], checksums=True)
    assert [(u.part, u.condition) for u in report.unread if u.part.startswith("checksum")] == [
        (f"checksum of {damaged.relative_to(copy.checkpoint)}", "CORRUPT_FILE")
    ]


def test_hadoops_checksums_are_those_of_blocks(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-hdfs")
    paths = [copy.checkpoint / name for name in ("commits/3", "state/0/0/3.delta", "state/0/1/5.delta")]
    for path in paths:
        write_checksum(path)
    report = inspect_job(open_jobs(copy.checkpoint)[0], checksums=True)
    assert report.checksums is not None
    assert (report.checksums.checked, report.unread) == (3, ())
    data = paths[1].read_bytes()
    assert len(data) > 700
    paths[1].write_bytes(data[:600] + bytes([data[600] ^ 1]) + data[601:])
    (refused,) = [u for u in inspect_job(open_jobs(copy.checkpoint)[0], checksums=True).unread if u.part.startswith("checksum")]
    assert "byte 512" in refused.message


def test_a_definition_of_other_state_is_said_not_to_fit(golden: Callable[[str], Any]) -> None:
    copy, other = golden("windows-hdfs"), golden("counts-hdfs")
    folder = create_beside(copy.checkpoint)
    folder.write_definition(parse_definition(copy.read("definition")))
    assert inspect(copy.checkpoint).unread == ()
    folder.write_definition(parse_definition(other.read("definition")))
    (unread,) = inspect(copy.checkpoint).unread
    assert (unread.part, unread.condition) == ("table counts", "DEFINITION_MISMATCH")


def test_what_is_kept_of_a_table_is_shown(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "ck")
    job.plan([("a", 1)], snapshot=False)
    job.commit()
    assert inspect(job.path).stores[0].kept is None
    kept = millpond.Retention.parse(keep_closed="forever", history="100")
    create_beside(job.path).write_definition(NamedOperator(table="t", operator=0, operator_name="stateStoreSave", retention=kept))
    assert inspect(job.path).stores[0].kept == kept
    printed = CliRunner().invoke(main, ["inspect", str(job.path)])
    assert "kept        expired rows for ever, at most 1,073,741,824 bytes; changes of 100 batches" in printed.output
    (store,) = json.loads(CliRunner().invoke(main, ["inspect", str(job.path), "--json"]).output)["stores"]
    assert store["kept"]["history_batches"] == 100
