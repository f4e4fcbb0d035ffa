"""Value, list and map with a TTL, of a job that is down: nobody removes rows any more, but Millpond hides expired ones."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter

import pandas as pd
import pytest

import millpond

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark
TTL_SECONDS = 4.0
LINES = [("a", "/"), ("b", "/"), ("a", "/x"), ("a", "/")]


@pytest.mark.long
def test_rows_go_when_their_time_is_over_though_no_batch_runs(on_rocksdb, example, tmp_path) -> None:
    module = example("recent")
    log = tmp_path / "log.tsv"
    header = "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\treferer\tuseragent"
    log.write_text("\n".join([header, *(f"{host}\t-\t807256800\tGET\t{page}\t200\t1\t\t" for host, page in LINES)]) + "\n")
    from millpond.spark.accesslog.source import log_stream

    frame, pond = log_stream(on_rocksdb, str(log), partitions=1).where("error IS NULL"), tmp_path / "pond"
    with module.start(frame, str(pond), TTL_SECONDS, trigger="1 minute", partitions=2) as job:
        job.wait_for_batch(0, 120)
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
        last, trail, pages = (opened[f"recent_{name}"] for name in ("last", "trail", "pages"))
        ends = last.with_closed().get(host="a")["expires_at"]
        seen = 0
        while (now := dt.datetime.now(dt.UTC)) < ends + dt.timedelta(seconds=0.5):
            rows = [last.get(host="a"), *trail.scan(host="a"), *pages.scan(host="a")]
            if now >= ends:
                assert not any(rows)
            elif dt.datetime.now(dt.UTC) < ends:  # the job read everything in time
                assert [dict(row)["page"] for row in rows] == ["/", "/", "/x", "/", "/", "/x"]
                seen += 1
            time.sleep(0.05)
        assert last.get(host="a").evicted
        assert (last.count(), trail.count(), pages.count()) == (0, 0, 0)
        assert [row["page"] for row in trail.with_closed().scan(host="a")] == ["/", "/x", "/"]
        counted = {(row["host"], row["page"]): row["requests"] for row in pages.with_closed().scan()}
        assert counted == Counter(LINES)
        assert all(row.final for row in pages.with_closed().scan())


def test_the_last_page_is_the_last_by_time_in_whatever_order_rows_come(example) -> None:
    from pyspark.sql.streaming.tws_tester import TwsTester

    columns, tester = ["ms", "file", "line", "page"], TwsTester(example("recent").Recent(TTL_SECONDS), timeMode="ProcessingTime")
    first = [(2, "log", 11, "/last"), (1, "log", 3, "/second"), (2, "log", 9, "/third"), (1, "log", 2, "/first")]
    tester.testInPandas("h", pd.DataFrame(first, columns=columns))
    assert tester.peekValueState("last", "h") == ("/last", 2)
    trail = [("/first",), ("/second",), ("/third",), ("/last",)]
    assert tester.peekListState("trail", "h") == trail
    # This request came in a later batch, but has an earlier time.
    tester.testInPandas("h", pd.DataFrame([(1, "log", 12, "/late")], columns=columns))
    assert tester.peekValueState("last", "h") == ("/last", 2)
    assert tester.peekListState("trail", "h") == [*trail, ("/late",)]
    tester.testInPandas("h", pd.DataFrame([(2, "log", 14, "/same"), (2, "log", 13, "/first")], columns=columns))
    assert tester.peekValueState("last", "h") == ("/same", 2)
    assert tester.peekMapState("pages", "h")[("/first",)] == (2,)


@pytest.mark.long
def test_a_request_without_a_page_is_no_visit(on_rocksdb, example, tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    requests = [
        {"host": "a", "page": page, "time": f"1995-08-01T00:00:0{second}Z", "file": "log", "line": second}
        for second, page in enumerate(("/", "/x", None, "/", None))
    ]
    (folder / "1.json").write_text("\n".join(map(json.dumps, requests)))
    frame = on_rocksdb.readStream.schema("host string, page string, time timestamp, file string, line long").json(str(folder))
    with example("recent").start(frame, str(tmp_path / "pond"), 600.0, trigger="1 minute", partitions=2) as job:
        job.wait_for_batch(0, 120)
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as opened:
        assert opened["recent_last"].get(host="a")["page"] == "/"
        assert {row["page"]: row["requests"] for row in opened["recent_pages"].scan()} == {"/": 2, "/x": 1}
