"""`millpond drill`: the newest savepoints brought back beside the running jobs, which it never touches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import millpond
from inputs.event_file import write_event_file
from live_jobs.quick_java import QUICK_JAVA
from millpond.catalogue import job_of
from millpond.operate.run.drills import read_drills

pytestmark = [pytest.mark.faults, pytest.mark.long]
PROGRAM = f"""
import sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as sf
import millpond

folder, mode = Path(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
for name, value in {QUICK_JAVA!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def sink(frame, batch):
    frame.collect()
    (folder / "sunk" / str(batch)).touch()

cleaning = "delete" if mode == "cleaning" else "off"
reader = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).option("cleanSource", cleaning)
rows = reader.json(str(folder / "in"))
counts = rows.groupBy("k").agg(sf.sum("v").alias("v"))
if mode == "other":
    rows.writeStream.format("noop").option("checkpointLocation", str(folder / "other")).start()
trigger = "available-now" if mode == "once" else "100 milliseconds"
millpond.start(counts, table="counts", pond=folder / "pond", partitions=2, sink=sink, trigger=trigger)
"""


def drill(folder: Path, *options: str, mode: str = "on") -> tuple[int, list[dict], str]:
    """The command's exit code, its results and what it says."""
    place, program = str(folder / "pond"), str(folder / "program.py")
    words = [sys.executable, "-m", "millpond.cli", "drill", "--json", *options, place, program, str(folder), mode]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=400)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def files(folder: Path) -> dict[str, bytes]:
    """All files of the job but the record of drills."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "drills.json"}


def test_a_drill_brings_jobs_back_and_leaves_them_alone(tmp_path: Path) -> None:
    """In time, too late, without new input, damaged, and with a query that it can't keep from its real checkpoint."""
    for name in ("in", "sunk"):
        (tmp_path / name).mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    for file in range(3):
        write_event_file(tmp_path / "in", file, [{"k": f"k{n}", "v": n * file} for n in range(5)])
    words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), "once"]
    wait = "\nimport pyspark\nfor query in spark.streams.active:\n    query.awaitTermination()\n"
    (tmp_path / "real.py").write_text(PROGRAM + wait)
    words[1] = str(tmp_path / "real.py")
    subprocess.run(words, check=True, timeout=300)
    savepoint = millpond.plan_savepoint(tmp_path / "pond", "first").run()
    assert (savepoint.manifest.batch, len(list((tmp_path / "sunk").iterdir()))) == (2, 3)
    before = files(tmp_path / "pond")

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / ".mine").write_text("stays")
    code, (found,), said = drill(tmp_path, "--at-most", "20s", "--scratch", str(scratch))
    assert code == 1, said
    assert "committed no batch" in found["problem"]

    write_event_file(tmp_path / "in", 3, [{"k": "k1", "v": 100}])
    code, (found,), said = drill(tmp_path, "--scratch", str(scratch))
    assert code == 0, said
    assert (found["job"], found["savepoint"], found["savepoint_batch"], found["batch"]) == ("counts", "first", 2, 3)
    assert 0 < found["restore_seconds"] < found["recovery_seconds"] <= 300
    code, (late,), said = drill(tmp_path, "--within", "1s", "--at-most", "2m", mode="once")
    assert code == 1, said
    assert late["recovery_seconds"] > 1
    assert not late.get("problem")

    code, (other,), said = drill(tmp_path, mode="other")
    assert code == 1, said
    assert "without millpond.start" in other["problem"]
    assert not (tmp_path / "other").exists()

    code, (cleaning,), said = drill(tmp_path, mode="cleaning")
    assert code == 1, said
    assert "cleans up the files" in cleaning["problem"]
    assert len(list((tmp_path / "in").iterdir())) == 4

    assert files(tmp_path / "pond") == before
    assert len(list((tmp_path / "sunk").iterdir())) == 3
    assert [path.name for path in scratch.iterdir()] == [".mine"]
    drills = read_drills(job_of(tmp_path / "pond", "counts").storage)
    assert [(each.is_good, each.batch) for each in drills] == [
        (False, None), (True, 3), (False, 3), (False, None), (False, None),
    ]  # fmt: skip

    some = next(file for file in savepoint.manifest.files if file.path.endswith(".delta"))
    path = Path(savepoint.storage.uri.removeprefix("file://"), "checkpoint", some.path)
    path.write_bytes(path.read_bytes()[:-3])
    code, (damaged,), said = drill(tmp_path)
    assert (code, "SAVEPOINT_DAMAGED" in damaged["problem"]) == (1, True), said
    assert len(read_drills(job_of(tmp_path / "pond", "counts").storage)) == 6
