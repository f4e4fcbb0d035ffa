"""How many records each part of the input has, and whether they are those that the job has read.

A topic that was deleted and made anew counts its offsets from 0 again.  Nothing in a checkpoint
names the topic itself, but a job can't have read what was written after its batch began.  So if all
records of a topic up to some step are newer than the step, it is another topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.spark.audit.input import NAME, OFFSET, PART, Input, file_name, input_gone
from millpond.spark.audit.steps import Part, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLOCKS_DIFFER_MS = 10_000
"""how much later than Spark's the clock of a producer or broker may be"""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of each part.

    Shape:  (source, name, step) -> count; a file's step is 0
    """

    counts: Counter[tuple[int, str, int]]

    def of(self, step: Step, part: Part) -> int:
        """How many records the source has in a part."""
        return self.counts[part.source, file_name(part), step.number if part.end is not None else 0]


def count_records(source: Input, steps: Sequence[Step], *, files: bool) -> Records:
    """Count the records of each part in the sources themselves.

    files:   also those of files
    Raises:  INPUT_GONE if a topic was made anew; as `Input.raw`.
    """
    from pyspark.sql import functions as sf

    counts: Counter[tuple[int, str, int]] = Counter()
    for number in sorted({part.source for step in steps for part in step.parts}):
        each = [(step, part) for step in steps for part in step.parts if part.source == number]
        if each[0][1].end is None:
            if files:
                raw = source.raw(number, (part for _, part in each))
                for r in raw.groupBy(sf.col(f"{PART}.{NAME}").alias("name")).count().collect():
                    counts[number, r["name"], 0] = r["count"]
            continue
        oldest_ms: dict[tuple[str, int], int] = {}
        for r in _by_step(source.raw(number, (part for _, part in each)), each):
            counts[number, r["name"], r["step"]] = r["n"]
            oldest_ms[r["name"], r["step"]] = r["oldest_ms"]
        _check_age(each, oldest_ms)
    return Records(counts)


def _by_step(raw: DataFrame, each: Sequence[tuple[Step, Part]]) -> list[Any]:
    from pyspark.sql import functions as sf

    spans = [(part.name, part.first, part.end, step.number) for step, part in each]
    table = sf.broadcast(raw.sparkSession.createDataFrame(spans, "name string, first long, end long, step int"))
    offset = sf.col(f"{PART}.{OFFSET}")
    joined = raw.join(table, (sf.col(f"{PART}.{NAME}") == sf.col("name")) & (offset >= sf.col("first")) & (offset < sf.col("end")))
    oldest = sf.unix_millis(sf.min("timestamp")).alias("oldest_ms")
    return list(joined.groupBy("name", "step").agg(sf.count("*").alias("n"), oldest).collect())


def _check_age(each: Sequence[tuple[Step, Part]], oldest_ms: dict[tuple[str, int], int]) -> None:
    until: dict[str, int] = {}
    for step, part in each:  # in the order of the steps
        topic = part.name.rpartition(":")[0]
        if (oldest := oldest_ms.get((part.name, step.number))) is not None:
            until[topic] = min(until.get(topic, oldest), oldest)
        if topic in until and until[topic] > step.clock_ms[1] + _CLOCKS_DIFFER_MS:
            raise input_gone(
                f"All records of {topic} up to {part.words()} are newer than {step.batches}, which has read these offsets: "
                "the topic was made anew"
            )
