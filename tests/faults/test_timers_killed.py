"""Sessions by timers, time-outs, TTLs and initial state, while the jobs, their JVM and their workers are killed.

The oracle is `timers_model`: tables after each batch, and rows that each batch told, as without any fault.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millpond
from faults.fed import SEED, Files, Rows, kill_workers, newest, sink_rows, wait_until
from faults.timers_model import Hosts, Model, Recent, Sessions, Totals, Undisturbed
from soak.processes import Process

pytest.importorskip("pyspark")
pytestmark = pytest.mark.faults
KILLS = int(os.environ.get("MILLPOND_KILLS", "2"))
BEGIN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
KEEP = millpond.Retention(history_batches=None, closed_seconds=None)


class Visits:
    """Requests whose time goes on from file to file, in no order and up to 5 minutes behind what came before: none is too late.

    Hosts come and go, so that their sessions end and they are forgotten.  All times are multiples of 5 minutes, so that ends,
    time-outs and watermarks meet, and a host has several at one time: their lines tell which was the last, and no file has its
    rows in that order.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._minute, self._lines = chance, 0, 0

    def next(self, first_page: int) -> Rows:
        before, self._minute = self._minute, self._minute + self._chance.choice((5, 10, 25))
        minutes = [self._minute, *(self._chance.randrange(before - 5, self._minute + 1, 5) for _ in range(11))]
        self._chance.shuffle(minutes)
        requests = [self._request(minute, first_page + self._chance.randrange(6)) for minute in minutes]
        self._chance.shuffle(requests)
        return requests

    def _request(self, minute: int, page: int) -> dict[str, Any]:
        host, when = self._chance.randrange(self._chance.choice((4, 30))), BEGIN + dt.timedelta(minutes=minute)
        self._lines += 1
        place = {"file": "log", "line": self._lines}
        return {"host": f"h{host}", "page": f"/{page}", "time": when.isoformat(), "ms": ms(when), **place}


def test_timers_timeouts_and_ttls_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    visits, pond, output, log = Visits(chance), tmp_path / "pond", tmp_path / "out", tmp_path / "log"
    old, files = Files(tmp_path / "before"), Files(tmp_path / "in")
    for into, first_page in ((old, 0), (old, 0), (files, 3)):
        into.add(visits.next(first_page))
    known = Counter(row["page"] for rows in old.rows for row in rows)
    models: dict[str, Model] = {"page_totals": Totals(known), "sessions": Sessions(), "counter": Hosts(), "recent": Recent()}
    runs = {job: Undisturbed(pond / "jobs" / job / "checkpoint", files, model) for job, model in models.items()}
    checks = {job: Checks(run) for job, run in runs.items()}
    folders = [str(folder) for folder in (old.folder, files.folder, pond, output)]
    job = Process("job", lambda: [sys.executable, "-m", "faults.timers_job", *folders], log)

    def done() -> int:
        """Files that the slowest job has read for good."""
        read = []
        for run in runs.values():
            committed = newest(run.checkpoint / "commits")
            run.go_on()
            read.append(run.files_read(committed) if committed >= 0 else 0)
        return min(read)

    def wait_for_files(more: int) -> None:
        """The slowest job reads so many more; there is always another one for it."""

        def came_on() -> bool:
            now = done()
            while len(files.rows) <= now + 1:
                files.add(visits.next(3))
            return now >= wanted

        wanted = done() + more
        wait_until(came_on, job)

    def start() -> None:
        """With something to do for each of the jobs."""
        files.add(visits.next(3))
        job.start()

    def within_batch() -> bool:
        done()
        return any(newest(run.checkpoint / "offsets") > newest(run.checkpoint / "commits") for run in runs.values())

    def tried() -> bool:
        """Whether sessions have ended, hosts were forgotten, and TTLs took rows out of the state."""
        recent = runs["recent"]
        expired = [table for table in recent.tables[-1] if len(recent.with_expired[-1][table]) > len(recent.tables[-1][table])]
        gone = [row for rows in runs["counter"].emitted for row in rows if row["gone"]]
        return bool(gone) and sum(map(len, runs["sessions"].emitted)) > 3 and expired == ["recent_last", "recent_pages"]

    def check() -> None:
        with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60, retention=KEEP) as opened:
            opened.catch_up(60)
            assert {row["page"]: row["hits"] for row in opened["page_hits"].scan()} == known, f"seed {SEED}"
            for name, run in runs.items():
                checks[name].hold(opened, name)
                check_emitted(output / name, name, run)

    job.start()
    try:
        # The initial state is taken in by a batch that is cut off when a part of it is written.
        totals = runs["page_totals"].checkpoint
        wait_until(lambda: any(totals.glob("state/0/[0-9]*/1.*")), job, pause_seconds=0.002)
        job.kill()
        assert (newest(totals / "offsets"), newest(totals / "commits")) == (0, -1), f"seed {SEED}"
        for kill in range(1, KILLS):
            start()
            wait_for_files(2)
            if kill == 1:
                files.add(visits.next(3))
                kill_workers(job, log, within_batch, pause_seconds=chance.uniform(0.2, 0.6))
                wait_for_files(1)
            time.sleep(chance.uniform(0.1, 1.5))
            job.kill()
            check()
        start()
        wait_for_files(2)
        while not tried():
            wait_for_files(1)
        wait_until(lambda: done() == len(files.rows), job)
    finally:
        job.kill()
    check()
    assert job.unwanted == []
    pages = {row["page"] for rows in files.rows for row in rows}
    assert set(known) & pages
    assert set(known) - pages


class Checks:
    """A job's tables against those of the undisturbed run.

    began:    the batch that the replica was built of: what had expired before isn't known to it
    checked:  the newest batch whose tables were held
    """

    def __init__(self, run: Undisturbed) -> None:
        self._run = run
        self.began: int | None = None
        self.checked = -1

    def hold(self, opened: millpond.Pond, name: str) -> None:
        """In one cut at the newest batch, and after each batch since the last time."""
        run = self._run
        with opened.cut(name) as cut:
            run.go_on()
            where = f"seed {SEED}: {name}, batch {cut.batch}"
            watermark = json.loads((run.checkpoint / "commits" / str(cut.batch)).read_text().splitlines()[1])[
                "nextBatchWatermarkMs"
            ]
            position = (cut.position.watermark_ms or 0, cut.position.batch_started_ms)
            assert position == (watermark, run.planned[cut.batch].started_ms), where
            assert watermark in run.watermarks[cut.batch], where
            self.began = cut.batch if self.began is None else self.began
            for table, expected in run.tables[cut.batch].items():
                rows = cut[table].scan()
                now_ms = rows.cut.judged_ms
                assert in_ms(rows) == [row for row in expected if now_ms is None or row["expires_at"] > now_ms], f"{where}: {table}"
                if now_ms is not None:
                    rows = cut[table].with_closed().scan()
                    assert in_ms(rows) == self._with_expired(table, cut.batch), f"{where}: {table}"
                    assert all(row.final == (ms(row["expires_at"]) <= rows.cut.judged_ms) for row in rows), f"{where}: {table}"
        for batch in range(max(self.checked + 1, self.began), cut.batch):
            for table, expected in run.tables[batch].items():
                assert in_ms(opened[table].at(batch=batch).scan()) == expected, f"{where}: {table} at batch {batch}"
        self.checked = cut.batch

    def _with_expired(self, table: str, batch: int) -> Rows:
        assert self.began is not None
        begin = self._run.tables[self.began][table]
        unknown = [row for row in self._run.with_expired[self.began][table] if row not in begin]
        return [row for row in self._run.with_expired[batch][table] if row not in unknown]


def check_emitted(output: Path, name: str, run: Undisturbed) -> None:
    """Hold what a job's sink got against what each batch tells: every attempt at it, and each batch that is committed."""
    committed = newest(run.checkpoint / "commits")
    run.go_on()
    if name == "sessions":
        found: dict[int, list[Rows]] = {batch: [[]] for batch in range(committed + 1)}
        for batch, row in sink_rows(output):
            found.setdefault(batch, [[]])[0].append(row)
    else:
        found = {}
        for path in output.glob("*.json"):
            found.setdefault(int(path.name.partition("-")[0]), []).append(json.loads(path.read_text()))
    assert set(range(committed + 1)) <= set(found), f"seed {SEED}: batches of {name} are missing"
    for batch, attempts in found.items():
        for rows in attempts:
            assert sorted(map(str, rows)) == sorted(map(str, run.emitted[batch])), f"seed {SEED}: {name}, batch {batch}"


def in_ms(rows: Any) -> Rows:
    """Rows with times as milliseconds."""
    return [{name: ms(value) if isinstance(value, dt.datetime) else value for name, value in row.items()} for row in rows]


def ms(time: dt.datetime) -> int:
    return round(time.timestamp() * 1000)
