"""`Table.get` by compiled code gives the rows that a scan gives, which Python reads, at every batch; and ends with its pond."""

from __future__ import annotations

import copy
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.native import library
from millpond.schema.definition.table import parse_definition
from millpond.tables.table import Table
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import CELLS
from suite.sizes import a_few

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")
CELLS_OF_NOW = [cell for cell in CELLS if "/" not in cell or cell.startswith("spark-4.3")]


def is_compiled(row: millpond.Row) -> bool:
    return type(row._cut) is tuple


def get_compiled(table: Table, key: Any) -> millpond.Row | None:
    """A row from compiled code; None if it never answers."""
    for _ in range(20):  # Python looks at the checkpoint once in a millisecond
        row = table.get(key)
        if is_compiled(row):
            return row
    return None


def facts(row: millpond.Row) -> tuple[Any, ...]:
    cut = row.cut
    return repr(dict(row)), row.final, row.changed_batch, row.evicted, cut.job, cut.position, cut.generation, cut.lag.age_from


def compare(table: Table, draw: random.Random) -> int:
    """Compare rows with those of a scan; how many compiled code gave."""
    rows, given = list(table.scan()), 0
    for row in draw.sample(rows, min(30, len(rows))):
        key = {column.name: row[column.name] for column in table.definition.key}
        found = get_compiled(table, key) if table.get(key) and table._lookup is not None else None
        if found is not None:
            assert facts(found) == facts(row)
            given += 1
        assert facts(table.get(key)) == facts(row)
        with library.switched_off():
            assert facts(table.read_by(table._reads).get(key)) == facts(row)
    return given


@pytest.mark.parametrize("cell", a_few(CELLS_OF_NOW, 8))
def test_rows_of_golden_checkpoints_at_every_batch(golden: Callable[[str], Any], tmp_path: Path, cell: str) -> None:
    cell_copy, draw = golden(cell), random.Random(cell)
    if (cell_copy.source / "definition.json").exists():
        create_beside(cell_copy.checkpoint).write_definition(parse_definition(cell_copy.read("definition")))
    cell_copy.uncommit()
    with millpond.open(cell_copy.checkpoint, replica_dir=tmp_path / "home") as pond:
        for batch in range(cell_copy.last + 1):
            cell_copy.commit(batch)
            pond.catch_up(60)
            for name in pond.tables():
                compare(pond[name], draw)


def test_rows_of_every_type_of_key(types_pond: Path, door_home: Path) -> None:
    draw, given = random.Random("types"), set()
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        for name in pond.tables():
            if compare(pond[name], draw):
                given.add(name)
    assert {"string", "long", "integer", "short", "byte"} <= given


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    made = WrittenCheckpoint(tmp_path / "job")
    made.plan([("a", 1), ("b", 2)], snapshot=False)
    made.commit()
    return made


def test_a_row_is_there_as_soon_as_its_batch_is(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Right after other reads, which need no look at the checkpoint for a millisecond."""
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        table = pond[pond.tables()[0]]
        for value in range(3, 40):
            assert get_compiled(table, "b") is not None
            job.plan([("a", value)], snapshot=False)
            job.commit()
            pond.catch_up(60)
            row = table.get("a")
            assert (row["v"], row.batch) == (value, value - 2)
            assert table.get("b").changed_batch in (0, None)


def test_nothing_is_read_after_the_end_of_the_pond(job: WrittenCheckpoint, tmp_path: Path) -> None:
    for _ in range(3):
        pond = millpond.open(job.path, replica_dir=tmp_path / "home")
        pond.catch_up(60)
        table = pond[pond.tables()[0]]
        row = get_compiled(table, "a")
        pond.close()
        with pytest.raises(MillpondError, match="closed"):
            table.get("a")
        assert row == {"k": "a", "v": 1}
        assert row.batch == 0
    shutil.rmtree(tmp_path / "home")


def test_two_ponds_on_one_replica_each_end_by_themselves(job: WrittenCheckpoint, tmp_path: Path) -> None:
    first, second = (millpond.open(job.path, replica_dir=tmp_path / "home") for _ in range(2))
    tables = [pond[pond.tables()[0]] for pond in (first, second) if pond.catch_up(60) is None]
    assert all(get_compiled(table, "a") is not None for table in tables)
    first.close()
    with pytest.raises(MillpondError, match="closed"):
        tables[0].get("a")
    assert tables[1].get("a") == {"k": "a", "v": 1}
    second.close()


def test_rows_can_be_copied_and_pickled(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        pond.catch_up(60)
        row = get_compiled(pond[pond.tables()[0]], "a")
    assert row is not None
    for other in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert facts(other) == facts(row)
        assert other.lag == row.lag


def test_on_a_shard_only_python_says_that_a_row_isnt_there(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home", shard="1/1") as pond:
        pond.catch_up(60)
        table = pond[pond.tables()[0]]
        assert get_compiled(table, "a") == table.get("a") == {"k": "a", "v": 1}
        assert get_compiled(table, "nobody") is None
        assert table.get("nobody") == {}


def test_without_the_library_the_answers_are_the_same(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with library.switched_off(), millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        pond.catch_up(60)
        table = pond[pond.tables()[0]]
        assert get_compiled(table, "a") is None
        assert table.get("a") == {"k": "a", "v": 1}
