"""A pond that is worth a look: a job with keys that try to be markup, samples, hot keys, savepoints."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.catalogue import JobFolder, create_job
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import SampleLog
from millpond.savepoint.create import plan_savepoint
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.definition.table import parse_definition
from millpond.schema.types import Field, atomic, struct_of
from spark_files.checkpoint import WrittenCheckpoint

KEY, VALUE = (Field("page", atomic("string")),), (Field("count", atomic("long")),)
HITS = {"op": "aggregate", "type": "long", "options": {"buffers": [0], "sql": "count(1)", "function": "count"}}
PARTITIONS = 24
# Markup, quotes, controls, a text that turns others round, and signs that look like nothing.
ODD = [
    '<img src=x onerror="document.title=1">',
    "a\tb\x00c\x1b[31m",
    "gpj\u202eexe",
    "zero\u200bwidth",
    "\"'&<>%2F/#?",
    "ünï 🦆",
    "",
    "</script>",
]
PAGES = ["/", "/index.html", *(f"/shop/{number:04d}" for number in range(400))]
MINUTE_MS = 60_000


@dataclass
class Seen:
    """A pond with one job, whose batches the test commits."""

    place: Path
    job: JobFolder
    checkpoint: WrittenCheckpoint
    hits: dict[str, int] = field(default_factory=dict)

    def batch(self, *pages: str) -> None:
        """Commit a batch in which each of these pages was seen once more."""
        for page in pages:
            self.hits[page] = self.hits.get(page, 0) + 1
        self.checkpoint.plan([((page,), self.hits[page]) for page in dict.fromkeys(pages)], snapshot=True)
        self.checkpoint.commit()

    def running(self) -> None:
        """Report that the job runs."""
        self.job.write_heartbeat("running")


def make_pond(place: Path, *, samples: int = 180) -> Seen:
    """A pond with some batches, samples of the last minutes, hot keys and two savepoints."""
    draw = random.Random(7)
    job = create_job(place, "page_views")
    job.write_definition(
        parse_definition(
            {
                "format": 1,
                "table": "page_views",
                "operator": 0,
                "store": "default",
                "key": [{"name": "page", "type": "string", "index": 0, "path": []}],
                "values": [{"name": "hits", "type": "long", "expression": HITS, "raw": None}],
                "having": None,
                "key_schema": struct_of(KEY).to_json(),
                "value_schema": struct_of(VALUE).to_json(),
                "derived": True,
                "warnings": [],
                "session_time_zone": "UTC",
                "meaning": {"grouping": ["page"], "aggregates": ["Count(int 1)"]},
            }
        )
    )
    seen = Seen(place, job, WrittenCheckpoint(place / "jobs/page_views/checkpoint", key=KEY, value=VALUE, partitions=PARTITIONS))
    seen.batch(*PAGES, *ODD)
    plan_savepoint(place, "before-upgrade", note="before the upgrade").run()
    for _ in range(5):
        seen.batch(*draw.choices(PAGES[:40], k=30), "/", *ODD)
    plan_savepoint(place, "nightly").run()
    columns = {"page": atomic("string")}
    job.write_hot_keys([HotKey(1, {"page": "/"}, 0.48, 3), HotKey(2, {"page": ODD[0]}, 0.11, 4)], columns)
    seen.running()
    write_samples(job, samples)
    return seen


def write_samples(job: JobFolder, count: int, **facts: Any) -> list[Sample]:
    """Samples of the last minutes, as a watcher keeps them."""
    draw, log, made = random.Random(11), SampleLog(job), []
    now, state = int(time.time() * 1000), 40_000_000
    for ago in range(count, 0, -1):
        at_ms = now - ago * MINUTE_MS
        slow = draw.random() ** 6
        state += draw.randrange(-20_000, 90_000)
        size = OperatorSize(
            operator=0,
            name="stateStoreSave",
            partitions=PARTITIONS,
            state_bytes=state,
            changed_bytes=120_000,
            largest_partition=3,
            largest_bytes=state // 6,
            median_bytes=state // 26,
        )
        measured = {
            "at_ms": at_ms,
            "job_state": "running",
            "batch": 4000 - 20 * ago,
            "committed_ms": at_ms - draw.randrange(200, 3000),
            "batches": draw.randrange(15, 24),
            "batch_seconds": 1 + slow,
            "longest_batch_seconds": 2 + 40 * slow,
            "watermark_ms": at_ms - 15_000 - draw.randrange(9000),
            "behind_records": int(4000 * slow),
            "checkpoint_bytes": state * 4,
            "operators": (size,),
            "sized_ms": at_ms,
        }
        sample = Sample(**{**measured, **facts})
        assert log.add(sample)
        made.append(sample)
    return made
