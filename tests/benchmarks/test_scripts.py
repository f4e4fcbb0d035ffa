"""Each benchmark still runs: on little, and without a result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inputs.real_log import first_lines
from suite.sizes import a_few

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
LOG = "LOG"
SMALL = {
    "totals": "--groups 30 --days 2 --runs 1",
    "aggregates": "--rows 3000 --keys 20 --batches 3 --days 2 --rounds 1",
    "archive": "--keys 500 --batches 4 --rows 1000 --rounds 1",
    "backends": "--keys 3000 --rounds 1",
    "broadcast": "--rows 500 --batches 3 --rounds 1 --shards 3",
    "cold_get": "--keys 2000 --rounds 1",
    "counts": "--rounds 1",
    "cut_over": "--seconds 1 --rounds 1",
    "distinct": f"{LOG} --rounds 1 --rows-per-batch 1500",
    "diff": "--keys 2000 --rounds 1",
    "doctor": "--keys 20000 --rounds 1",
    "evolve": "--keys 2000 --rounds 1",
    "flight": "--keys 3000 --rounds 1",
    "follow": "--batches 5",
    "history": "--keys 1000 --batches 5 --rounds 1",
    "indexes": "--keys 2000 --rows 500 --batches 1 --rounds 1 --leaderboard 3000",
    "lookup": "--keys 60000 --seconds 0.2",
    "memory": "--keys 20000",
    "native": "--keys 3000 --rounds 1",
    "provider": "--keys 100 --rows 1000 --rounds 1",
    "rescale": "--keys 3000 --rounds 1",
    "savepoints": "--keys 4000 --rounds 1",
    "s3_requests": "--variants hdfs --partitions 1 --batches 12",
    "samples": "--jobs 2 --partitions 3 --minutes 0.03",
    "send": "--keys 2000 --batches 3 --rounds 1",
    "shards": "--rows 2000 --rounds 1 --seconds 0.5",
    "sizes": "--keys 1000 3000",
    "sql": "--keys 2000 --rounds 1",
    "sketches": "--days 8 --events 60 --hosts 40 --rounds 1",
    "source": "--keys 1000 --batches 2 --changed 500 --rounds 1",
    "sst": "--keys 5000",
    "to_arrow": "--keys 60000 --rounds 1",
    "visible": "--batches 10 --modes quiet",
    "write_state": "--rows 3000 --keys 100 --rounds 1",
}
ELSEWHERE = {
    "beyond_memory": "bounds memory by a control group, which only root may make",
    "console": "needs Chromium",
    "http_get": "needs wrk and Kafka Streams",
    "operate_get": "needs wrk",
    "profiles": "needs wrk and py-spy",
    "salted": "takes minutes, however small its input",
    "postgres_get": "needs PostgreSQL with pgbench",
    "redis_get": "needs Redis",
    "sinks": "needs Redis and PostgreSQL",
    "chart": "draws the committed results",
}


@pytest.mark.spark
@pytest.mark.parametrize("name", a_few(SMALL, 0, long=11))
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(first_lines())
    arguments = [str(log) if word == LOG else word for word in SMALL[name].split()]
    program = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MILLPOND_HOME": str(tmp_path / "home")}
    with (tmp_path / "output").open("wb") as output:  # a JVM may outlive its Python, and a pipe would stay open
        done = subprocess.run(
            program, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=1200, check=False
        )
    assert done.returncode == 0, (tmp_path / "output").read_text(errors="replace")[-3000:]


def test_every_benchmark_is_tried() -> None:
    programs = {p.stem for p in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in p.read_text()}
    assert programs == SMALL.keys() | ELSEWHERE.keys()
