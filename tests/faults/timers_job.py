"""Four of the examples over one stream, killed as one process group: `python -m faults.timers_job BEFORE INPUT POND OUTPUT`.

Sessions by timers go to Spark's file sink (OUTPUT/sessions); the others are of update mode, and each attempt at a batch leaves a
file with what it told: OUTPUT/<job>/<batch>-<any>.json.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quick_java import QUICK_JAVA
from soak.orphans import end_with_parent

if TYPE_CHECKING:
    from millpond.spark.job import Job

PARTITIONS, TTL_SECONDS, FORGOTTEN_AFTER_SECONDS = 2, 6.0, 1500.0
SCHEMA = "host string, page string, time timestamp, file string, line long"


def main(before: str, incoming: str, pond: str, output: str) -> None:
    """Run until killed."""
    import millpond
    from millpond.spark.job import run_until_stopped

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import counter
    import initial_state
    import recent
    import sessions
    from pyspark import cloudpickle

    for example in (counter, initial_state, recent, sessions):
        cloudpickle.register_pickle_by_value(example)
    conf = {
        "spark.master": "local[2,4]",  # a task may fail three times: its Python worker is killed as well
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.minBatchesToRetain": "10000",  # the log says what each batch had
        **QUICK_JAVA,
    }
    spark = millpond.session("timers", **conf)
    spark.sparkContext.setLogLevel("ERROR")

    def requests(folder: str) -> Any:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(folder)

    def options(name: str, trigger: str = "200 milliseconds") -> dict[str, Any]:
        return {"partitions": PARTITIONS, "trigger": trigger, "sink": attempts(Path(output, name))}

    # The old job has come to its end before the new one begins with its table, also where it was killed before.
    initial_state.start_before(requests(before), pond, partitions=PARTITIONS, trigger="available-now").wait_for_end()
    events = requests(incoming)
    files = {"sink": lambda writer: writer.format("parquet").option("path", f"{output}/sessions")}
    starts: list[Callable[[], Job]] = [
        lambda: initial_state.start_after(events, pond, **options("page_totals")),
        lambda: sessions.start(events, pond, **{**options("sessions"), **files}),
        lambda: counter.start(events, pond, "event-time", FORGOTTEN_AFTER_SECONDS, **options("counter")),
        lambda: recent.start(events, pond, TTL_SECONDS, **options("recent", "1 second")),
    ]
    jobs = []
    for start in starts:
        jobs.append(start())
        wait_for_progress(jobs[-1])
    run_until_stopped(jobs)


def wait_for_progress(job: Job) -> None:
    """Until it has done a batch, or has none to do.

    Its first one starts a Python process for which Spark waits 10 seconds: too short for three at a time on a busy machine.
    """
    deadline = time.monotonic() + 10
    while job.query.isActive and not job.query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.1)


def attempts(folder: Path) -> Callable[[Any, int], None]:
    """A sink that keeps what each attempt at a batch has told."""
    folder.mkdir(parents=True, exist_ok=True)

    def tell(frame: Any, batch: int) -> None:
        hidden = folder / f".{uuid.uuid4().hex}"
        hidden.write_text(json.dumps([row.asDict() for row in frame.collect()]))
        hidden.rename(folder / f"{batch}-{hidden.name[1:]}.json")

    return tell


if __name__ == "__main__":
    end_with_parent(group=True)
    main(*sys.argv[1:])
