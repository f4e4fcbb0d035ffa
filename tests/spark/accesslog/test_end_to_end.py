"""The demo on a real log, read over HTTP while it runs and at its end.

There are two runs, each read in a loop from its first batch on:

    cut    3,000 lines; some are late, some appear twice, some are no requests.  The main job follows the growing file on four
           partitions, and stops; `millpond demo --once` reads the rest from the same checkpoints.
    whole  `millpond demo --once` on all 30,969 requests, if that log is there

The oracle is the csv module over the same lines, and Spark's own batch query for approximate functions.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest

from inputs.real_log import NO_WHOLE_LOG, WHOLE_LOG, first_lines
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long]
COMMAND = Path(sys.executable).with_name("millpond")
# A cold Spark on a busy machine with two cores.
LONG_SECONDS = 300
PARTITIONS = 4
CUT_LINES = 3000
# So many of these are in the followed file when its job stops.
FOLLOWED_LINES = 2400
AHEAD_LINES = 400
# A server's errors for a table whose job has no batch yet.
EARLY = {"UNKNOWN_TABLE", "NO_CHECKPOINT", "NO_COMMITTED_BATCH", "REPLICA_BUILDING"}
TABLES = ("page_views", "page_visitors", "hosts", "bad_lines")
BUSY_PAGE = "/images/NASA-logosmall.gif"

FOLLOWING_JOB = f"""
import sys
from millpond.spark.accesslog.source import log_stream
from millpond.spark.job import run_until_stopped
from millpond.demo.pageviews import main_job
from millpond.spark.session import session

conf = {{"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}}
spark = session("following", **conf)
events = log_stream(spark, sys.argv[1])
run_until_stopped(main_job(events, pond=sys.argv[2], trigger="100 milliseconds", partitions={PARTITIONS}))
"""

_LONG_LINE = "x" * 70_000
# Lines that are no requests, each with its reason; the cut has them, too.
BAD_LINES = {
    "gibberish": "9 columns expected, 1 found",
    "h.example\t-\t807256800\tGET\t/x\t200\t1": "9 columns expected, 7 found",
    "\t-\t807256800\tGET\t/\t200\t1\t\t": "no host",
    "h.example\t-\tnoon\tGET\t/\t200\t1\t\t": "the time 'noon' isn't a whole number from 0 to 253402300799",
    "h.example\t-\t807256800\tG T\t/\t200\t1\t\t": "'G T' isn't an HTTP method",
    "h.example\t-\t807256800\tGET\t\t200\t1\t\t": "no URL",
    "h.example\t-\t807256800\tGET\t/\t2000\t1\t\t": "the response '2000' isn't a whole number from 0 to 999",
    "h.example\t-\t807256800\tGET\t/\t200\t1e3\t\t": "the bytes '1e3' isn't a whole number from 0 to 9223372036854775807",
    _LONG_LINE: "longer than 65536 bytes; the text is its beginning",
}
# Odd lines that are requests.
ODD_LINES = [
    b"h.example\t-\t807256800\tGET\t/ksc.html?a=1#b\t200\t7\t\t",
    b"h.example\t-\t807256800\tGET\thttp://www.ksc.nasa.gov/ksc.html\t500\t-\t\t",
    b"caf\xe9.example\t-\t807256800\tHEAD\t/%7Euser/\xc3\xbc\xff\t404\t\t\t",
    b"",
]


# ---------------------------------------------------------------- the oracle


@dataclass(frozen=True, slots=True)
class Visit:
    line: int
    host: str
    seconds: int
    page: str
    status: int
    size: int


def read_log(path: Path) -> tuple[list[Visit], dict[int, tuple[str, str]]]:
    """The requests of a TSV log; and for each other line, its reason and text."""
    visits, bad = [], {}
    with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file:
        for line, fields in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), start=1):
            text = "\t".join(fields)
            if text in BAD_LINES:
                bad[line] = (BAD_LINES[text], text[:65536])
            elif fields and line > 1:
                host, _, seconds, _, url, status, size, _, _ = fields
                # urlsplit takes "//ksc.html" for a host, a server takes it for a path.
                page = urlsplit(url).path if url.startswith("http") else url.partition("#")[0].partition("?")[0]
                visits.append(Visit(line, host, int(seconds), page, int(status), int(size) if size.isdecimal() else 0))
    return visits, bad


def clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Bucket = tuple[str, str, str]
"""A page, a resolution, and the start of one of its buckets; of a total, the latter two are empty."""

# Resolution -> length and keeping time of its buckets, in seconds.
RESOLUTIONS: dict[str, tuple[int, int | None]] = {
    "1 minute": (60, 2 * 86_400),
    "1 hour": (3600, 90 * 86_400),
    "1 day": (86_400, None),
}
PAGE_VIEWS = ("hits", "bytes", "status_2xx", "status_3xx", "status_4xx", "status_5xx")


def buckets_of(visit: Visit) -> list[Bucket]:
    """The buckets that a visit is in, and the total of its page."""
    starts = {name: clock(visit.seconds - visit.seconds % length) for name, (length, _) in RESOLUTIONS.items()}
    return [(visit.page, "", ""), *((visit.page, name, start) for name, start in starts.items())]


def page_views_at(visits: Sequence[Visit], last_line: int) -> dict[Bucket, tuple[int, ...]]:
    """The numbers of page_views by bucket, totals too, over the lines up to `last_line`."""
    hits, size, status = Counter[Bucket](), Counter[Bucket](), Counter[tuple[Bucket, int]]()
    for visit in visits:
        if visit.line <= last_line:
            for bucket in buckets_of(visit):
                hits[bucket] += 1
                size[bucket] += visit.size
                status[bucket, visit.status // 100] += 1
    return {one: (n, size[one], *(status[one, digit] for digit in (2, 3, 4, 5))) for one, n in hits.items()}


def visitors_at(visits: Sequence[Visit], last_line: int) -> dict[str, int]:
    """How many hosts by page, over the lines up to `last_line`."""
    hosts = defaultdict(set)
    for visit in visits:
        if visit.line <= last_line:
            hosts[visit.page].add(visit.host)
    return {page: len(seen) for page, seen in hosts.items()}


_ENDS = 4


def approx_visitors_at(spark: SparkSession, visits: Sequence[Visit], last_lines: set[int]) -> dict[int, dict[Bucket, int]]:
    """Spark's batch approx_count_distinct by bucket, totals too, over the lines up to each of `last_lines`."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    each = [(v.line, v.host, *bucket) for v in visits for bucket in buckets_of(v)]
    names = ("line", "host", "page", "resolution", "start")
    rows = spark.createDataFrame(pa.table(dict(zip(names, map(list, zip(*each, strict=True)), strict=True))))
    found: dict[int, dict[Bucket, int]] = defaultdict(dict)
    # A few at a time: the answer for all is too large for the memory of a session that has run for an hour.
    every = sorted(last_lines)
    for first in range(0, len(every), _ENDS):
        ends = spark.createDataFrame(pa.table({"end": every[first : first + _ENDS]}))
        grouped = rows.join(F.broadcast(ends), F.col("line") <= F.col("end")).groupBy("end", "page", "resolution", "start")
        for row in grouped.agg(F.approx_count_distinct("host").alias("n")).collect():
            found[row["end"]][row["page"], row["resolution"], row["start"]] = row["n"]
    return found


def shown_buckets(rows: list[dict[str, Any]]) -> dict[Bucket, dict[str, Any]]:
    """Rows of page_views by bucket; each expires at its time, and none is a dead letter."""
    found = {}
    for row in rows:
        length, keep = RESOLUTIONS[row["resolution"]]
        begin = datetime.fromisoformat(row["bucket_start"]).timestamp()
        assert row["expires_at"] == (None if keep is None else clock(int(begin) + length + keep))
        assert row["dead_letter"] is None
        found[row["page"], row["resolution"], row["bucket_start"]] = row
    assert len(found) == len(rows)
    return found


def check_page_views(
    found: dict[Bucket, dict[str, Any]], numbers: dict[Bucket, tuple[int, ...]], approx: dict[Bucket, int]
) -> None:
    assert {one: tuple(row[name] for name in PAGE_VIEWS) for one, row in found.items()} == numbers
    assert {one: row["approx_visitors"] for one, row in found.items()} == {one: approx[one] for one in numbers}


def buckets_alone(numbers: dict[Bucket, tuple[int, ...]]) -> dict[Bucket, tuple[int, ...]]:
    """Without totals."""
    return {bucket: row for bucket, row in numbers.items() if bucket[1]}


# ---------------------------------------------------------------- reading over HTTP


class Door:
    """One connection to `millpond serve`."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(str(address.hostname), address.port, timeout=60)

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def answer(self, path: str, body: Any = None) -> Any:
        status, answer = self.ask(path, body)
        assert status == 200, answer
        return answer

    def all_rows(self, table: str) -> list[dict[str, Any]]:
        """Every row of a finished table, read with growing limits; each answer begins with the one before."""
        rows: list[dict[str, Any]] = []
        for limit in (100, 2_000, 100_000):
            answer = self.answer(f"/tables/{table}/rows?_limit={limit}")
            assert answer["rows"][: len(rows)] == rows
            rows = answer["rows"]
            if not answer["more"]:
                return rows
            assert len(rows) == limit
        raise AssertionError(f"{table} has more than 100,000 rows")


@dataclass(frozen=True, slots=True)
class Seen:
    """The answers of a batch: the last line that the job had read by then, and the rows."""

    line: int
    rows: list[dict[str, Any]]


def last_line_of(answer: Any) -> int:
    """The last line of the log that an answer includes; every source that Spark names must have the same.

    Spark names one stream once for each branch of a query that reads it.
    """
    (line,) = {file["line"] for source in answer["position"]["offsets"].values() for file in source["files"].values()}
    assert isinstance(line, int)
    return line


class Reader(threading.Thread):
    """Reads in a loop.

    answers:   by table and batch
    totals:    batch -> the total of the busy page, by page_views
    problems:  answers that went back or differ from another of their batch, and errors after the first answer
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self._ended = threading.Event()
        self._newest: dict[str, int] = {}
        self.answers: dict[str, dict[int, Seen]] = {"page_views": {}, "page_visitors": {}}
        self.totals: dict[int, Seen] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        try:
            door = Door(self.url)
            while not self._ended.wait(0.1):
                for table, answers in self.answers.items():
                    self._read(door, table, f"/tables/{table}/rows?_limit=100000", answers)
                self._read(door, "page_views", f"/tables/page_views/total?page={quote(BUSY_PAGE)}", self.totals)
        except Exception as broken:
            self.problems.append(repr(broken))
            raise

    def _read(self, door: Door, table: str, path: str, answers: dict[int, Seen]) -> None:
        status, answer = door.ask(path)
        if status != 200:
            if table in self._newest or answer["error"]["condition"] not in EARLY:
                self.problems.append(f"{path}: {answer}")
            return
        batch = answer["batch"]
        if batch < self._newest.get(table, 0):
            self.problems.append(f"{path}: batch {batch} after {self._newest[table]}")
        seen = Seen(last_line_of(answer), answer["rows"] if "rows" in answer else [answer["row"]])
        if answer.get("more") or answers.setdefault(batch, seen) != seen:
            self.problems.append(f"{path}: two answers of batch {batch} differ")
        self._newest[table] = batch

    def last_line(self) -> int:
        """The line that every table includes by now; 0 before the first answers."""
        newest = [answers[max(answers)] for answers in self.answers.values() if answers]
        return min(seen.line for seen in newest) if len(newest) == len(self.answers) else 0

    def end(self) -> None:
        self._ended.set()
        self.join(90)
        assert not self.is_alive()


# ---------------------------------------------------------------- the runs


@contextlib.contextmanager
def running(command: Sequence[str | Path], folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own group, with output in <folder>/<name>.out and .err; killed at the end of the block."""
    env = {**os.environ, "MILLPOND_HOME": str(folder / "home"), "TMPDIR": str(folder)}
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        process = subprocess.Popen(
            command, env=env, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def wait_for(condition: Callable[[], Any], what: str, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait, unless the process ends before."""

    def ended() -> str:
        if process is None or process.poll() is None or condition():
            return ""
        return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.err"))) or "nothing said"

    wait_until(condition, what, seconds=LONG_SECONDS, unless=ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """A finished run, with its server still running.

    lines:  the lines of the log, with the header
    """

    name: str
    log: Path
    lines: int
    pond: Path
    door: Door
    reader: Reader


def make_cut() -> list[bytes]:
    """The first lines of the real log, with late, repeated, bad and odd lines."""
    header, *lines = first_lines(CUT_LINES - 101).splitlines()
    lines += lines[::97]  # a repeated line, and late
    for number, extra in enumerate([*(text.encode() for text in BAD_LINES), *ODD_LINES]):
        lines.insert(number * 211 + 50, extra)
    lines[100:1500:7] = reversed(lines[100:1500:7])
    return [header, *lines]


def follow_a_growing_log(log: Path, pond: Path, reader: Callable[[], Reader], lines: list[bytes]) -> None:
    """Write these lines to the log, sometimes half a line at first, while the main job follows it; then stop the job."""
    folder = log.parent
    data = b"".join(line + b"\n" for line in lines)
    with running([sys.executable, "-c", FOLLOWING_JOB, str(log), str(pond)], folder, "following") as job, log.open("ab") as file:
        wait_for((pond / "pond.json").exists, "a pond", folder, job)
        reading = reader()
        written = 0

        def not_far_ahead() -> bool:
            """Whether to write the next lines.  Slow writing gives more batches and answers."""
            return written < reading.last_line() + AHEAD_LINES

        while data:
            wait_for(not_far_ahead, "answers of all but the last lines", folder, job)
            part, data = data[:631], data[631:]
            file.write(part)
            file.flush()
            written += part.count(b"\n")
            time.sleep(0.02)
        wait_for(lambda: reading.last_line() == len(lines), "answers of all lines", folder, job)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0, (folder / "following.err").read_text()


WHOLE = pytest.param("whole", marks=pytest.mark.skipif(not WHOLE_LOG.exists(), reason=NO_WHOLE_LOG))


@pytest.fixture(scope="module", params=["cut", WHOLE])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    folder = tmp_path_factory.mktemp(request.param)
    pond, log = folder / "pond", folder / "access.tsv"
    readers: list[Reader] = []

    with contextlib.ExitStack() as stack:

        def start_reading() -> Reader:
            """Start the server on a new pond, and a reader."""
            if not readers:
                server = stack.enter_context(running([COMMAND, "serve", pond, "--port", "0", "--json"], folder, "serve"))
                out = folder / "serve.out"
                wait_for(lambda: out.read_text().endswith("\n"), "the server's address", folder, server)
                readers.append(Reader(json.loads(out.read_text())["url"]))
                readers[0].start()
                stack.callback(readers[0].end)
            return readers[0]

        if request.param == "cut":
            cut = make_cut()
            follow_a_growing_log(log, pond, start_reading, cut[:FOLLOWED_LINES])
            with log.open("ab") as file:
                file.write(b"\n".join(cut[FOLLOWED_LINES:]))  # the last line without its line end
            count = len(cut)
        else:
            log.write_bytes(WHOLE_LOG.read_bytes())
            count = log.read_bytes().count(b"\n")
        demo = stack.enter_context(running([COMMAND, "demo", "--log", log, "--pond", pond, "--once"], folder, "demo"))
        wait_for((pond / "pond.json").exists, "a pond", folder, demo)
        reader = start_reading()
        assert demo.wait(LONG_SECONDS) == 0, (folder / "demo.err").read_text()
        door = Door(reader.url)
        # The server follows all five jobs by itself, and may get their last batches a moment after the demo ends.
        wait_for(
            lambda: all(last_line_of(door.answer(f"/tables/{table}")) == count for table in TABLES),
            "all lines in all tables",
            folder,
        )
        wait_for(lambda: reader.last_line() == count or reader.problems, "answers of all lines", folder)
        reader.end()
        yield DemoRun(name=request.param, log=log, lines=count, pond=pond, door=door, reader=reader)


@pytest.fixture(scope="module")
def expected_of_log(run: DemoRun) -> tuple[list[Visit], dict[int, tuple[str, str]]]:
    """The oracle's reading of the run's log: requests and bad lines."""
    visits, bad = read_log(run.log)
    assert visits[-1].line == run.lines
    assert len(bad) == (len(BAD_LINES) if run.name == "cut" else 0)
    return visits, bad


Visits = tuple[list[Visit], dict[int, tuple[str, str]]]


def test_at_the_end_page_views_are_what_the_file_says(run: DemoRun, expected_of_log: Visits, spark: SparkSession) -> None:
    expected = page_views_at(expected_of_log[0], run.lines)
    approx = approx_visitors_at(spark, expected_of_log[0], {run.lines})[run.lines]
    rows = run.door.all_rows("page_views")
    check_page_views(shown_buckets(rows), buckets_alone(expected), approx)
    pages = sorted({page for page, _, _ in expected}, key=str.encode)
    assert sorted({row["page"] for row in rows}, key=str.encode) == pages
    totals = {page: run.door.answer(f"/tables/page_views/total?page={quote(page, safe='')}") for page in pages}
    assert all({used["resolution"] for used in answer["used"]} == {"1 day"} for answer in totals.values())
    found = {(page, "", ""): answer["row"] for page, answer in totals.items()}
    check_page_views(found, {bucket: row for bucket, row in expected.items() if not bucket[1]}, approx)


def test_at_the_end_visitors_are_what_the_file_says(run: DemoRun, expected_of_log: Visits) -> None:
    rows = run.door.all_rows("page_visitors")
    assert {row["page"]: row["visitors"] for row in rows} == visitors_at(expected_of_log[0], run.lines)
    assert [row["page"] for row in rows] == sorted((row["page"] for row in rows), key=str.encode)


def test_at_the_end_hosts_are_what_the_file_says(run: DemoRun, expected_of_log: Visits) -> None:
    times = defaultdict(list)
    for visit in expected_of_log[0]:
        times[visit.host].append(visit.seconds)
    rows = run.door.all_rows("hosts")
    expected = {host: (len(seen), clock(min(seen)), clock(max(seen))) for host, seen in times.items()}
    assert {row["host"]: (row["hits"], row["first_seen"], row["last_seen"]) for row in rows} == expected
    assert len(rows) == len(expected)


def test_at_the_end_every_bad_line_is_told_with_its_number_and_reason(run: DemoRun, expected_of_log: Visits) -> None:
    rows = run.door.all_rows("bad_lines")
    assert [(row["file"], row["line"], row["error"], row["text"]) for row in rows] == [
        (str(run.log), line, *said) for line, said in sorted(expected_of_log[1].items())
    ]


def test_every_row_of_a_scan_is_found_by_its_key(run: DemoRun) -> None:
    for table in TABLES:
        shown = run.door.answer(f"/tables/{table}")
        rows = run.door.all_rows(table)
        assert shown["row_count"] == len(rows)
        keys = [{column: row[column] for column in shown["key"]} for row in rows]
        for at in range(0, len(keys), 5_000):
            part = run.door.answer(f"/tables/{table}/rows:get", {"keys": keys[at : at + 5_000]})
            assert part["rows"] == rows[at : at + 5_000]


def test_while_it_runs_no_answer_fails_goes_back_or_differs_from_another_of_its_batch(run: DemoRun) -> None:
    assert run.reader.problems == []
    assert len(run.reader.answers["page_views"]) >= 5
    assert len(run.reader.answers["page_visitors"]) >= 5
    partitions = {path.name for path in (run.pond / "jobs/page_views/checkpoint/state/0").iterdir() if path.name.isdecimal()}
    assert len(partitions) == (PARTITIONS if run.name == "cut" else 2)


def test_while_it_runs_every_answer_is_what_the_lines_of_its_batch_say(
    run: DemoRun, expected_of_log: Visits, spark: SparkSession
) -> None:
    visits, _ = expected_of_log
    seen, totals = run.reader.answers["page_views"], run.reader.totals
    approx = approx_visitors_at(spark, visits, {one.line for one in [*seen.values(), *totals.values()]})
    for one in seen.values():
        check_page_views(shown_buckets(one.rows), buckets_alone(page_views_at(visits, one.line)), approx[one.line])
    for one in totals.values():
        total = BUSY_PAGE, "", ""
        numbers = page_views_at([visit for visit in visits if visit.page == BUSY_PAGE], one.line)
        (row,) = one.rows
        check_page_views({} if row is None else {total: row}, {total: numbers[total]} if total in numbers else {}, approx[one.line])
    for batch, one in run.reader.answers["page_visitors"].items():
        assert {row["page"]: row["visitors"] for row in one.rows} == visitors_at(visits, one.line), (batch, one.line)
