"""A job that begins with another job's table has counted what both have read."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

import millpond

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


def test_the_new_job_goes_on_from_the_old_ones_table(on_rocksdb, example, read_log, real_log, pages_of, tmp_path) -> None:
    module = example("initial_state")
    lines = real_log.read_bytes().splitlines(keepends=True)
    logs = (tmp_path / "before.tsv", tmp_path / "after.tsv")
    for log, part in zip(logs, (lines[1:2500], lines[2500:]), strict=True):
        log.write_bytes(b"".join([lines[0], *part]))
    pond = str(tmp_path / "pond")
    for start, log in zip((module.start_before, module.start_after), logs, strict=True):
        with start(read_log(log), pond, trigger="available-now", partitions=2) as job:
            assert job.wait_for_end(240)
    before, after = ([page for _, page, _ in pages_of(log)] for log in logs)
    hosts = {page: host for host, page, _ in pages_of(logs[1])}
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
        rows = {row["page"]: row for row in opened["page_totals_total"].scan()}
        assert {page: row["hits"] for page, row in rows.items()} == Counter(before + after)
        assert {page for page, row in rows.items() if row["last_host"] is None} == set(before) - set(after)
        assert {page: row["last_host"] is not None for page, row in rows.items() if page in hosts} == dict.fromkeys(hosts, True)
        assert set(before) - set(after)
        assert set(before) & set(after)


def test_what_was_known_is_added_to(example) -> None:
    from pyspark.sql.streaming.tws_tester import TwsTester

    known = [("/", pd.DataFrame({"page": ["/"], "hits": [40]}))]
    tester = TwsTester(example("initial_state").Totals(), initialStatePandas=known)
    tester.testInPandas("/", pd.DataFrame({"host": ["a", "b"]}))
    tester.testInPandas("/new", pd.DataFrame({"host": ["c"]}))
    assert tester.peekValueState("total", "/") == (42, "b")
    assert tester.peekValueState("total", "/new") == (1, "c")
