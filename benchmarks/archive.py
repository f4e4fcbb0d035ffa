"""A Spark job alone, while its batches are archived, and while savepoints of it are made in a row, by turns in one run.

    python benchmarks/archive.py [--keys 500000] [--batches 20] [--rows 200000] [--rounds 4] [--write]

The job counts and adds by a key of type long, 200,000 rows a batch over 500,000 keys; 8 partitions, no pause between batches.  Its
state is in the HDFS-backed provider, and then in RocksDB with change logs.  Spark keeps two batches and deletes older files every
second.  Each run begins a new checkpoint in a session that is warm.  A round has six:

    alone      nothing else runs
    archived   `millpond.archive` in a process of its own copies to a folder on the same disk
    saved      a process of its own makes a savepoint of each batch, and deletes all but the last three
    in a row   the same makes one savepoint after another, as fast as it can
    uncounted  the same without counting rows
    again      as `alone`: how much two equal runs differ is the noise

A rate is that of all batches but the first, from the end of the first to the end of the last.  The archiver's lag is from a commit
to the batch being whole in the archive, asked for every 5 ms; `behind` is how many committed batches it lacks then.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from results import write_result
from states import PROVIDERS, spark_session, start_job, stream, tree_bytes

KINDS = ("alone", "archived", "saved", "in a row", "uncounted", "again")
_RECENT = "spark.sql.streaming.numRecentProgressUpdates"
CLEAN_UP = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
}
ARCHIVER = """
import json, sys, time
from pathlib import Path
import millpond

checkpoint, to, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
lags, behind = {}, []
print("there", flush=True)
while not any(Path(checkpoint).glob("commits/[0-9]*")):  # an archive begins with a committed batch
    time.sleep(0.002)
with millpond.archive(checkpoint, to) as archiver:
    while last not in lags and archiver.status().state != "ended":
        status = archiver.status()
        if status.batch is not None:
            behind.append(status.behind_batches)
            if status.lag_seconds is not None:
                lags[status.batch] = status.lag_seconds
        time.sleep(0.005)
    status = archiver.status()
    assert status.last_error is None, status
print(json.dumps({
    "lags": [lag for batch, lag in sorted(lags.items()) if batch],
    "most_behind": max(behind),
    "batches": status.batches,
    "files": status.files,
    "bytes": status.size_bytes,
    "processor_seconds": time.process_time(),
}), flush=True)
"""
SAVER = """
import json, sys, time
from pathlib import Path
import millpond

checkpoint, to, last, kind = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
seconds, batches = [], set()
began = time.process_time()
print("there", flush=True)

def wait_for(batch):  # or a later one: Spark soon deletes it
    while not any(int(path.name) >= batch for path in checkpoint.glob("commits/[0-9]*")):
        time.sleep(0.005)

wait_for(0)
while not (checkpoint / "commits" / str(last)).exists():
    if batches and kind == "saved":
        wait_for(max(batches) + 1)
    begin = time.perf_counter()
    made = millpond.plan_savepoint(checkpoint, f"s{len(seconds)}", count=kind != "uncounted").run()
    seconds.append(time.perf_counter() - begin)
    batches.add(made.manifest.batch)
    if len(seconds) > 3:
        millpond.plan_delete_savepoint(checkpoint, f"s{len(seconds) - 4}").run()
print(json.dumps({"seconds": seconds, "batches": len(batches), "processor_seconds": time.process_time() - began}), flush=True)
"""
BESIDE = {"archived": ARCHIVER, "saved": SAVER, "in a row": SAVER, "uncounted": SAVER}


def run_job(spark: Any, source: Path, checkpoint: Path) -> float:
    """Rows a second of one run of the job."""
    query = start_job(stream(spark, source, maxFilesPerTrigger="1"), checkpoint)
    query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"]]
    ends = [dt.datetime.fromisoformat(p["timestamp"]).timestamp() + p["durationMs"]["triggerExecution"] / 1000 for p in done]
    return float(sum(p["numInputRows"] for p in done[1:]) / (ends[-1] - ends[0]))


def measure(spark: Any, folder: Path, batches: int, rounds: int) -> list[dict[str, Any]]:
    """The rates of each kind, and the archiver's own figures, in each round."""
    found = []
    for number in range(rounds + 1):
        result: dict[str, Any] = {}
        for kind in KINDS:
            # Spark's maintenance may write to the old checkpoint for a second after the job's end.
            checkpoint, archive = folder / f"job-{uuid.uuid4().hex}", folder / "archive"
            if kind not in BESIDE:
                result[kind] = run_job(spark, folder / "in", checkpoint)
            else:
                command = [sys.executable, "-c", BESIDE[kind], str(checkpoint), str(archive), str(batches - 1), kind]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as beside:
                    assert beside.stdout is not None
                    assert beside.stdout.readline() == "there\n"
                    result[kind] = run_job(spark, folder / "in", checkpoint)
                    result[f"{kind} beside"] = json.loads(beside.stdout.readline())
                result[f"{kind} beside"]["checkpoint_bytes"] = tree_bytes(checkpoint)
                shutil.rmtree(archive, ignore_errors=True)
                shutil.rmtree(f"{checkpoint}.millpond", ignore_errors=True)
            shutil.rmtree(checkpoint, ignore_errors=True)
            subprocess.run(["sync"], check=True)
            time.sleep(0.5)
        print(result, file=sys.stderr, flush=True)
        if number:  # the first warms the JVM
            found.append(result)
    return found


def _saved(rounds: list[dict[str, Any]], kind: str) -> dict[str, float]:
    savers = [r[f"{kind} beside"] for r in rounds]
    seconds = sorted(second for saver in savers for second in saver["seconds"])
    return {
        "as_multiple_of_alone": round(statistics.median(r[kind] * 2 / (r["alone"] + r["again"]) for r in rounds), 3),
        "savepoints": round(statistics.median(len(saver["seconds"]) for saver in savers)),
        "of_batches": round(statistics.median(saver["batches"] for saver in savers)),
        "seconds_median": round(statistics.median(seconds), 4),
        "seconds_highest": round(seconds[-1], 4),
        "processor_seconds_each": round(statistics.median(s["processor_seconds"] / len(s["seconds"]) for s in savers), 4),
    }


def figures(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of the rounds of one provider."""
    archivers = [r["archived beside"] for r in rounds]
    lags = sorted(lag for archiver in archivers for lag in archiver["lags"])
    return {
        "median_rows_per_second": {kind: round(statistics.median(r[kind] for r in rounds)) for kind in KINDS},
        "archived_as_multiple_of_alone": round(statistics.median(r["archived"] * 2 / (r["alone"] + r["again"]) for r in rounds), 3),
        "saved": _saved(rounds, "saved"),
        "in_a_row": _saved(rounds, "in a row"),
        "uncounted": _saved(rounds, "uncounted"),
        "again_as_multiple_of_alone": {
            "lowest": round(min(r["again"] / r["alone"] for r in rounds), 3),
            "median": round(statistics.median(r["again"] / r["alone"] for r in rounds), 3),
            "highest": round(max(r["again"] / r["alone"] for r in rounds), 3),
        },
        "lag_seconds": {"median": round(statistics.median(lags), 4), "highest": round(lags[-1], 4)},
        "most_behind_batches": max(archiver["most_behind"] for archiver in archivers),
        "copied": {
            name: round(statistics.median(archiver[fact] / archiver["batches"] for archiver in archivers), 3)
            for name, fact in (
                ("files_per_batch", "files"),
                ("bytes_per_batch", "bytes"),
                ("processor_seconds_per_batch", "processor_seconds"),
            )
        },
    }


def main() -> None:
    """Write the job's input, run it by turns, and show the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=200_000, help="of a batch")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/archive.json")
    options = parser.parse_args()
    spark = spark_session("archive", "3g", **CLEAN_UP, **{_RECENT: str(options.batches + 10)})
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    rounds = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = spark.range(0, options.rows * options.batches, 1, options.batches)
        rows.selectExpr(f"pmod(xxhash64(id), {options.keys}) AS k", "id AS a").write.parquet(f"{folder}/in")
        for provider, provider_class in PROVIDERS.items():
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider_class)
            rounds[provider] = measure(spark, Path(folder), options.batches, options.rounds)
        spark.stop()
    result = {
        "what": "rows a second of a job that is archived, and of which savepoints are made in a row, beside the same job alone",
        "sizes": {name: getattr(options, name) for name in ("keys", "batches", "rows")},
        **{provider: figures(found) for provider, found in rounds.items()},
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("archive", result, rounds)


if __name__ == "__main__":
    main()
