"""Value, list and map with a TTL, of a job that is down: nothing is removed any more, and what is over isn't shown."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter

import pytest

import millpond

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark
TTL_SECONDS = 4.0
LINES = [("a", "/"), ("b", "/"), ("a", "/x"), ("a", "/")]


def test_rows_go_when_their_time_is_over_though_no_batch_runs(on_rocksdb, example, tmp_path) -> None:
    module = example("recent")
    log = tmp_path / "log.tsv"
    header = "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\treferer\tuseragent"
    log.write_text("\n".join([header, *(f"{host}\t-\t807256800\tGET\t{page}\t200\t1\t\t" for host, page in LINES)]) + "\n")
    from millpond.spark.accesslog import log_stream

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
            elif dt.datetime.now(dt.UTC) < ends:  # all was read in time
                assert [dict(row)["page"] for row in rows] == ["/", "/", "/x", "/", "/", "/x"]
                seen += 1
            time.sleep(0.05)
        assert last.get(host="a").evicted
        assert (last.count(), trail.count(), pages.count()) == (0, 0, 0)
        assert [row["page"] for row in trail.with_closed().scan(host="a")] == ["/", "/x", "/"]
        counted = {(row["host"], row["page"]): row["requests"] for row in pages.with_closed().scan()}
        assert counted == Counter(LINES)
        assert all(row.final for row in pages.with_closed().scan())
