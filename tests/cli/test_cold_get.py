"""`millpond get --cold` answers as a replica does, and makes none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.catalogue import create_beside
from millpond.cli import main
from millpond.schema.definition.table import parse_definition

CELLS = ["counts-hdfs", "counts-rocksdb-changelog", "counts-rocksdb-snapshots", "windows-rocksdb-changelog", "keyless-hdfs"]


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a replica would appear."""
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("defined", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_every_row_is_the_one_of_the_replica(golden: Callable[[str], Any], nowhere: Path, cell: str, defined: bool) -> None:
    copy = golden(cell)
    if defined:
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        for name in pond.tables():
            table = pond[name]
            for row in table.scan():
                key = {c.name: row[c.name] for c in table.definition.key}
                cold = millpond.read_row(copy.checkpoint, name, key)
                assert dict(cold) == dict(row)
                assert (cold.cut.position, cold.cut.job) == (row.cut.position, row.cut.job)
    assert not nowhere.exists()


def test_the_command_shows_the_row_and_its_batch(golden: Callable[[str], Any], nowhere: Path) -> None:
    copy = golden("counts-hdfs")
    where = [str(copy.checkpoint), "counts-hdfs.aggregate_0"]
    warm = CliRunner().invoke(main, ["get", *where, "page=/", "--json"])
    nowhere.rename(nowhere.with_name("gone"))
    cold = CliRunner().invoke(main, ["get", "--cold", *where, "page=/", "--json"])
    assert (warm.exit_code, cold.exit_code, cold.stdout) == (0, 0, warm.stdout)
    assert json.loads(cold.stdout)["page"] == "/"
    assert "batch 11" in CliRunner().invoke(main, ["get", "--cold", *where, "page=/"]).output
    assert not nowhere.exists()


def test_what_isnt_there_and_what_isnt_a_key_are_told(golden: Callable[[str], Any], nowhere: Path) -> None:
    copy = golden("counts-hdfs")
    where = ["get", "--cold", str(copy.checkpoint), "counts-hdfs.aggregate_0"]
    assert CliRunner().invoke(main, [*where, "page=/nothing"]).exit_code == 1
    for wrong, condition in ((["hits=3"], "UNKNOWN_COLUMN"), (["count=3"], "NOT_A_KEY_COLUMN"), ([], "KEY_MISSING")):
        assert CliRunner().invoke(main, [*where, *wrong]).stderr.startswith(f"[{condition}]")
    assert not nowhere.exists()


@pytest.mark.parametrize(
    "cell",
    [
        "sessions-two-keys-hdfs",
        "sessions-two-keys-rocksdb-snapshots",
        "join-left-rocksdb-changelog",
        "join-full-format3-rocksdb-changelog",
        "join-full-format4-rocksdb-snapshots",
        "apply-event-timeout-hdfs",
        "counts-checksum-rocksdb-changelog",
        "transform-state-rows-rocksdb-snapshots",
        "transform-state-avro-rocksdb-changelog",
        "transform-event-timers-rocksdb-changelog",
        "transform-ttl-rocksdb-changelog",
    ],
)
def test_the_rows_of_every_operator_are_those_of_the_replica(golden: Callable[[str], Any], cell: str) -> None:
    copy = golden(f"spark-4.3/{cell}")
    found = refused = 0
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        for name in pond.tables():
            table = pond[name]
            for row in list(table.scan() if "ttl" not in cell else table.with_closed().scan())[:40]:
                key = {c.name: row[c.name] for c in table.definition.key}
                try:
                    cold = millpond.read_row(copy.checkpoint, name, key, expired=True)
                except millpond.CheckpointError as error:
                    # Spark itself may have put this row into another partition than its key's.
                    assert (error.condition, row["user"]) == ("UNSUPPORTED", None)
                    assert cell.startswith("transform-")
                    refused += 1
                    continue
                assert dict(cold) == dict(row)
                assert dict(table.with_closed().get(key)) == dict(row)
                found += 1
                if "index" in key:
                    assert not millpond.read_row(copy.checkpoint, name, {**key, "index": 10_000})
    assert found > 0
    assert refused < found
