"""A job that begins with another job's table counts what both have read."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

import millpond

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long]


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
    requests = sorted(enumerate(pages_of(logs[1])), key=lambda numbered: (numbered[1][2], numbered[0]))
    hosts = {page: host for _, (host, page, _) in requests}
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
        rows = {row["page"]: row for row in opened["page_totals_total"].scan()}
        assert {page: row["hits"] for page, row in rows.items()} == Counter(before + after)
        assert {page for page, row in rows.items() if row["last_host"] is None} == set(before) - set(after)
        assert {page: row["last_host"] for page, row in rows.items() if page in hosts} == hosts
        assert set(before) - set(after)
        assert set(before) & set(after)


def test_what_was_known_is_added_to(example) -> None:
    from pyspark.sql.streaming.tws_tester import TwsTester

    known = [("/", pd.DataFrame({"page": ["/"], "hits": [40]}))]
    tester = TwsTester(example("initial_state").Totals(), initialStatePandas=known)
    columns = ["ms", "file", "line", "host"]
    first = [(2, "log", 9, "b"), (1, "log", 3, "a"), (2, "log", 8, "a")]  # Spark passes on a key's rows in no order
    tester.testInPandas("/", pd.DataFrame(first, columns=columns))
    tester.testInPandas("/new", pd.DataFrame([(5, "log", 4, "c")], columns=columns))
    assert tester.peekValueState("total", "/") == (43, "b", 2)
    assert tester.peekValueState("total", "/new") == (1, "c", 5)
    # This request came in a later batch, but has an earlier time.
    tester.testInPandas("/", pd.DataFrame([(1, "log", 10, "late")], columns=columns))
    assert tester.peekValueState("total", "/") == (44, "b", 2)
    tester.testInPandas("/", pd.DataFrame([(2, "log", 11, "d")], columns=columns))
    assert tester.peekValueState("total", "/") == (45, "d", 2)
