"""Buckets computed anew after files were corrected, against a count of the corrected events."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest

from spark.reprocess.corrected import (
    Bucket,
    correct,
    count,
    draw_file,
    newest,
    shown,
    write,
)
from spark.reprocess.running import FORMS, Running
from suite.sizes import a_few, examples

CASES = [
    (form, dedupe, part) for form in FORMS for dedupe in (False, True) for part in ("whole", "days", "days and a key", "a key")
]


def in_part(bucket: Bucket, part: dict[str, Any]) -> bool:
    """Whether a bucket is computed anew; spans are of whole days."""
    page, _, start = bucket
    since, until = part.get("since"), part.get("until")
    if page != part.get("key", {"page": page})["page"]:
        return False
    day = dt.timedelta(days=1)
    begin = None if since is None else since.replace(hour=0, minute=0, second=0)
    end = None if until is None else until.replace(hour=0, minute=0, second=0) + day
    return (begin is None or begin.timestamp() <= start) and (end is None or start < end.timestamp())


@pytest.mark.parametrize(("form", "dedupe", "chosen"), a_few(CASES, 0, 7))
def test_corrected_files_repair_the_buckets_of_a_part(spark, tmp_path: Path, form: str, dedupe: bool, chosen: str) -> None:
    draw = random.Random(f"{form} {dedupe} {chosen}")
    number = examples(16, fewest=6)
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    sent: list[dict[str, Any]] = []
    files = {n: draw_file(draw, begin, n, sent) for n in range(number)}
    later = {number + n: draw_file(draw, begin, number + n, sent) for n in range(3)}
    options = {"dedupe": ("id", "60 days"), "dead_letters": "90 days"} if dedupe else {}
    job = Running(spark, tmp_path, form, **options)
    write(job.folder, files)
    job.run()
    before, letters = shown(job.pond)
    watermark = newest(files)
    assert before == count(files, watermark, dedupe=dedupe)
    day = begin + dt.timedelta(hours=5 * (number - 4))
    part: dict[str, Any] = {} if chosen in ("whole", "a key") else {"since": day, "until": day + dt.timedelta(seconds=100)}
    part |= {"key": {"page": "/a"}} if "key" in chosen else {}

    with job.plan(**part) as plan:  # nothing was corrected
        assert not any(each.added + each.removed + each.changed for each in plan.differences.values()), plan.describe()

    corrected = dict(files)
    for n in draw.sample(range(number), 3):
        corrected[n] = correct(draw, files[n])
    if dedupe:  # copies of an event are equal
        by_id = {row["id"]: row for rows in corrected.values() for row in rows}
        corrected = {n: [by_id[row["id"]] for row in rows] for n, rows in corrected.items()}
    write(job.folder, corrected)
    anew = count(corrected, watermark, dedupe=dedupe)
    expected = {bucket: values for bucket, values in before.items() if not in_part(bucket, part)}
    expected |= {bucket: values for bucket, values in anew.items() if in_part(bucket, part)}
    with job.plan(**part) as plan:
        for name, each in plan.differences.items():
            old, new = ({b: v for b, v in rows.items() if b[1] == name} for rows in (before, expected))
            assert each.added == len(new.keys() - old.keys()), plan.describe()
            assert each.removed == len(old.keys() - new.keys())
            assert each.changed == sum(old[b] != new[b] for b in old.keys() & new.keys())
        done = plan.run()
    assert done.batch is not None
    assert shown(job.pond) == (expected, letters)
    with job.plan(**part) as plan:
        assert not plan.found.differs, plan.describe()

    write(job.folder, later)
    job.run()
    # What is elsewhere stays as it was before the correction.  The job remembers ids of events that are gone now.
    known = {row["id"] for rows in files.values() for row in rows} if dedupe else set()
    new = {n: [row for row in rows if row["id"] not in known] for n, rows in later.items()}
    at_last = newest(files | later)
    both = {bucket: v for bucket, v in count(files | new, at_last, dedupe=dedupe).items() if not in_part(bucket, part)}
    both |= {bucket: v for bucket, v in count(corrected | new, at_last, dedupe=dedupe).items() if in_part(bucket, part)}
    assert shown(job.pond)[0] == both
