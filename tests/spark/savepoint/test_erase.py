"""Jobs from which a key was erased go on in Spark, as if its rows so far had never been."""

from __future__ import annotations

import ast
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from live_jobs.interrupted import NAMES, Restored, last_batch
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.restore import plan_restore
from savepoint.test_erase import a_key, bytes_left, leaves
from spark.savepoint.test_edit import PROVIDER, Hits
from spark.savepoint.test_rewrite import Case
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ANN = "ann-of-the-marker"
KEYED = [name for name in NAMES if not any(word in name for word in ("limit", "keyless"))]


@pytest.mark.long
@pytest.mark.parametrize(
    ("provider", "changelog"),
    [
        ("rocksdb", "false"),
        pytest.param("hdfs", "false", marks=pytest.mark.long),
        pytest.param("rocksdb", "true", marks=pytest.mark.long),
    ],
)
def test_a_job_goes_on_without_the_key(spark: SparkSession, tmp_path: Path, provider: str, changelog: str) -> None:
    """From its checkpoint, from a savepoint, and from each archived batch; the key begins anew when it comes again."""
    some = random.Random(provider)
    hits = Hits(spark, tmp_path, provider)
    hits.spark.conf.set(CHANGELOG, changelog)
    files = [[some.choice([ANN, "bob", "cy", f"p{some.randint(0, 300)}"]) for _ in range(300)] for _ in range(8)]
    for pages in files[:6]:
        hits.feed(pages)
    job, archive = tmp_path / "job", tmp_path / "archive"
    hits.run(job)
    with millpond.archive(job, archive) as archiver:
        archiver.wait_for_batch(5, timeout_seconds=60)
    plan_savepoint(job, "first").run()
    plan = millpond.plan_erase(job, "job.aggregate_0", {"page": ANN}, archives=[archive])
    assert all(place.records for place in plan.places)
    assert [place["records"] for place in plan.run().data["places"]] == [place.records for place in plan.places]
    assert bytes_left(job, archive, tmp_path / "job.millpond", name=ANN) == []
    for pages in files[6:]:
        hits.feed(pages)
    plan_restore(job, "first", tmp_path / "restored").run()
    (batch, *_) = sorted(list_savepoints(archive).found, key=lambda savepoint: savepoint.manifest.batch)
    plan_restore(archive, batch.manifest.name, tmp_path / "archived").run()
    for checkpoint, begins in ((job, 6), (tmp_path / "restored", 6), (tmp_path / "archived", batch.manifest.batch + 1)):
        found = hits.run(checkpoint)
        counted = Counter(page for pages in files for page in pages)
        counted[ANN] = sum(pages.count(ANN) for pages in files[begins:])
        assert {page: count for page, (count, _) in found.items()} == +counted
        assert millpond.read_row(checkpoint, "job.aggregate_0", {"page": ANN})["count"] == counted[ANN]
    assert hits.spark.conf.get(PROVIDER)


@pytest.mark.long
@pytest.mark.parametrize("name", a_few(KEYED, 1, long=3))
def test_operators_go_on_without_the_key(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark's own reader finds all other rows, right after the erasure and at the end of the input."""
    case = Case(spark, tmp_path, name)
    place, saved = case.job.checkpoint, f"run-{case.job.runs}"
    plan_restore(place, saved, tmp_path / "other").run()
    found = a_key(tmp_path / "other", random.Random(name))
    if found is None:
        pytest.skip("no row has a key of a text or a number")
    table, key, values = found
    marks = set(map(repr, values))

    def others(state: dict[str, list[str]]) -> dict[str, list[str]]:
        """Rows that don't mention the key anywhere."""
        return {
            store: [row for row in rows if not marks <= set(map(repr, leaves(ast.literal_eval(row))))]
            for store, rows in state.items()
        }

    plan = millpond.plan_erase(tmp_path / "other", table, key)
    assert plan.records
    plan.run()
    after = case.state(tmp_path / "other", case.batch)
    assert others(after) == others(case.before)
    assert sum(map(len, after.values())) < sum(map(len, case.before.values()))
    case.cell.write(Restored(case.spark, tmp_path / "other", tmp_path / "inputs", case.job.runs))
    end = last_batch(tmp_path / "other")
    assert end > case.batch
    assert others(case.state(tmp_path / "other", end)) == others(case.end)
