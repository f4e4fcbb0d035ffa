"""Every program on the manual's pages about kinds of state runs unchanged, and does what its page says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs run."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def pond(folder: Path) -> Iterator[millpond.Pond]:
    """The pond after the programs of all pages."""
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MILLPOND_HOME": str(folder / "home")}
    program = [sys.executable, str(Path(__file__).with_name("pages_job.py"))]
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, start_new_session=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "forest" in done.stdout  # a row on the console
    with millpond.open(folder / "pond", replica_dir=folder / "readers", wait_seconds=60) as opened:
        yield opened


def test_models(pond: millpond.Pond) -> None:
    assert {row["type"]: (row["name"], row["share"], row["shadow"]) for row in pond["wine_models"].scan()} == {
        "red": ("forest", None, None),
        "red/new": ("new", 0.1, None),
        "red/next": ("next", None, True),
    }
    usage = {row["name"]: row["usage"] for row in pond["wine_statistics"].scan()}
    assert usage["forest"] + usage["new"] == usage["next"] == 200
    assert 0 < usage["new"] < 60
    (refused,) = pond["wine_model_errors"].scan()
    assert "a rollback names one of the versions" in refused["reason"]


def test_broadcast(pond: millpond.Pond) -> None:
    assert {row["rule"]: row["least"] for row in pond["matched_control"].scan()} == {"large": 1000, "huge": 2000}


def test_hot_keys(pond: millpond.Pond) -> None:
    assert sorted(pond["page_visitors"].get(page="/")["visitors"]) == sorted(f"v{n}" for n in range(1, 50, 2))


def test_aggregates_by_time(pond: millpond.Pond) -> None:
    total = pond["page_views_by_time"].total(page="/", since="2026-03-02T00:00Z", until="2026-03-05T12:30Z")
    assert (total["hits"], total["bytes"]) == ((3 * 24 + 12) * 60 + 30, 2 * ((3 * 24 + 12) * 60 + 30))
    assert [used.resolution for used in total.used] == ["1 day", "1 hour", "1 minute"]


def test_rows_that_wait(pond: millpond.Pond) -> None:
    assert sorted(row["n"] for row in pond["writes_waiting"].scan()) == list(range(10))
    assert sum(row["rows"] for row in pond["writes_fill"].scan()) == 10


def test_a_batch_that_lets_go_of_nothing_writes_nothing(pond: millpond.Pond, folder: Path) -> None:
    assert pond["writes_waiting"].count().batch >= 2
    assert [batch.name for batch in (folder / "written").iterdir()] == ["not empty"]
    assert len(list((folder / "written" / "not empty").glob("*.parquet"))) > 0
