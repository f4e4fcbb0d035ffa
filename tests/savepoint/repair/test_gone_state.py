"""State that is gone as a whole: nothing is saved as whole, and nobody calls the checkpoint sound."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside, open_jobs
from millpond.errors import MillpondError
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.definition.operator_name import parse_entry
from millpond.storage import open_storage
from millpond.tables.cold.report import inspect_job
from oracles.ends import condition_of
from spark_files.golden import CELLS
from suite.sizes import a_few
from suite.waiting import wait_until


def lose(checkpoint: Path, some: random.Random, known: set[int]) -> str:
    """Delete the state, or that of an operator or of a partition; returns which.

    Of a last operator alone, in format 1, only a definition says that it was there.

    known:  operators with a defined table
    """
    state = checkpoint / "state"
    operators = sorted(p.name for p in state.iterdir())
    operator = some.choice(operators)
    is_named = any("stateUniqueIds" in file.read_text() for file in (checkpoint / "commits").iterdir())
    if int(operator) not in known and not is_named:
        operator = operators[0]
    partitions = sorted(p.name for p in (state / operator).iterdir() if p.name.isdigit())
    lost = some.choice(["", operator, f"{operator}/{some.choice(partitions)}"])
    shutil.rmtree(state / lost)
    if not lost and some.random() < 0.5:
        state.mkdir()
    return f"state/{lost}".rstrip("/")


@pytest.mark.parametrize("cell", a_few(CELLS, 12))
@pytest.mark.parametrize("seed", a_few(range(3), 1))
def test_a_checkpoint_whose_state_is_gone_is_neither_sound_nor_saved(
    golden: Callable, tmp_path: Path, cell: str, seed: int
) -> None:
    found = golden(cell)
    checkpoint, some = found.checkpoint, random.Random(f"{cell}{seed}")
    whole = millpond.plan_savepoint(checkpoint, "whole").run()
    known = create_beside(checkpoint)
    if some.random() < 0.5 and (found.source / "definition.json").exists():
        known.write_definition(parse_entry(found.read("definition")))
    lost = lose(checkpoint, some, set(known.known_state().operators))
    plan = millpond.plan_repair(checkpoint, to=tmp_path / "to")
    # A job that was repartitioned may go on from a batch that had no such partition.
    assert plan.restart is None or ("repartitioned" in cell and lost.count("/") == 2)
    for findings in (diagnose(open_storage(checkpoint)).findings, plan.diagnosis.findings):
        assert "fails" in {f.effect for f in findings}, lost
        assert any(f.path.startswith(lost) or lost.startswith(f.path) for f in findings), (lost, findings)
    assert condition_of(lambda: millpond.plan_savepoint(checkpoint, "after").run()) in ("FILE_GONE", "BATCH_GONE")
    folder = whole.storage.local_path()
    assert folder is not None
    shutil.rmtree(folder / "checkpoint" / lost)
    assert verify_savepoint(whole).problems


def test_a_query_without_state_says_so(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    shutil.rmtree(checkpoint / "state")
    assert condition_of(lambda: millpond.plan_savepoint(checkpoint, "a").run()) == "FILE_GONE"
    assert verify_savepoint(millpond.plan_savepoint(checkpoint, "a", stateless=True).run()).is_whole
    assert not millpond.plan_repair(checkpoint).diagnosis.is_sound
    assert millpond.plan_repair(checkpoint, stateless=True).diagnosis.findings == ()


@pytest.mark.long
@pytest.mark.parametrize("lost", ["state", "state/0", "state/1"])
def test_a_replica_whose_job_lost_its_state_says_so_until_it_is_back(golden: Callable, tmp_path: Path, lost: str) -> None:
    checkpoint = golden("chained-rocksdb-changelog").checkpoint
    with millpond.open(checkpoint, replica_dir=tmp_path / "home") as pond:
        tables = pond.tables()
        rows = {table: pond[table].count() for table in tables}
        (checkpoint / lost).rename(tmp_path / "away")
        (job,) = pond.jobs()
        wait_until(lambda: pond.statistics()[job]["error"] is not None, "the error that state is gone")
        first, seen = pond.statistics()[job]["errors"], list[Any]()

        def has_failed_again() -> bool:
            statistics = pond.statistics()[job]
            seen.append(statistics["error"])
            return bool(statistics["errors"] >= first + 3)

        wait_until(has_failed_again, "the same error of three more steps")
        assert {None if error is None else error["condition"] for error in seen} == {"FILE_GONE"}, "it stays"
        assert pond.tables() == tables
        (tmp_path / "away").rename(checkpoint / lost)
        wait_until(lambda: pond.statistics()[job]["error"] is None, "the end of the error")
        assert {table: pond[table].count() for table in tables} == rows


def test_a_replica_is_not_begun_without_an_operator(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("chained-rocksdb-changelog").checkpoint
    shutil.rmtree(checkpoint / "state/0")
    with pytest.raises(MillpondError, match="state/0 is gone"):
        millpond.open(checkpoint, replica_dir=tmp_path / "home", wait_seconds=1).tables()
    (folder,) = open_jobs(checkpoint)
    assert ("state", "FILE_GONE") in [(u.part, u.condition) for u in inspect_job(folder).unread]
