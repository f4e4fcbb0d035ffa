"""Sessions by timers are those of a recomputation: the ended ones in the sink, the open ones in the table."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
import pytest

import millpond

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


def recomputed(module, requests):
    """All sessions of a log: (host, started, last, requests)."""
    times = defaultdict(list)
    for host, _, ms in requests:
        times[host].append(ms)
    out = []
    for host, found in times.items():
        begun = None
        for ms in sorted(found):
            if begun is not None and ms < begun[1] + module.GAP_MS:
                begun = [begun[0], ms, begun[2] + 1]
                continue
            if begun is not None:
                out.append((host, *begun))
            begun = [ms, ms, 1]
        out.append((host, *begun))
    return sorted(out)


@pytest.mark.long
def test_ended_and_open_sessions_are_those_of_a_recomputation(on_rocksdb, example, read_log, real_log, pages_of, tmp_path) -> None:
    module, ended = example("sessions"), []
    expected = recomputed(module, pages_of(real_log))

    def collect(frame, batch):
        ended.extend((row.host, row.started_ms, row.last_ms, row.requests) for row in frame.collect())

    with module.start(read_log(real_log), str(tmp_path / "pond"), trigger="available-now", partitions=2, sink=collect) as job:
        assert job.wait_for_end(240)
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        rows = pond["sessions_open"].scan()
        there = [(row["host"], row["started_ms"], row["last_ms"], row["requests"]) for row in rows]
        assert len(ended) > 100
        assert len(there) > 10
        assert sorted(ended + there) == expected
        # Each open session has a timer at its end, which the watermark hasn't passed.
        ends = {(row["host"], int(row["expires_at"].timestamp() * 1000)) for row in pond["sessions_timers"].scan()}
        assert ends == {(host, last + module.GAP_MS) for host, _, last, _ in there}
        assert min(ms for _, ms in ends) > rows.position.watermark_ms
        host = there[0][0]
        assert [dict(row)["host"] for row in pond["sessions_open"].scan(host=host)] == [host]


def test_late_requests_join_sessions_and_ends_are_told_once(example) -> None:
    from pyspark.sql.streaming.tws_tester import TwsTester

    module = example("sessions")
    gap = module.GAP_MS
    tester = TwsTester(module.Sessions(), timeMode="EventTime", eventTimeExtractor=lambda row: int(row["ms"]))

    def see(*times: int) -> list[tuple[int, ...]]:
        tester.testInPandas("h", pd.DataFrame({"ms": times}))
        return tester.peekListState("open", "h")

    assert see(gap, 1) == [(1, gap, 2)]
    assert see(3 * gap - 2) == [(1, gap, 2), (3 * gap - 2, 3 * gap - 2, 1)]
    assert see(2 * gap - 1) == [(1, 3 * gap - 2, 4)]  # close to both sessions, so they become one
    assert see(5 * gap) == [(1, 3 * gap - 2, 4), (5 * gap, 5 * gap, 1)]
    assert len(tester.setWatermark(4 * gap - 3)) == 0
    ended = tester.setWatermark(4 * gap - 2)
    assert ended.to_dict("records") == [{"host": "h", "started_ms": 1, "last_ms": 3 * gap - 2, "requests": 4}]
    assert tester.peekListState("open", "h") == [(5 * gap, 5 * gap, 1)]
    assert len(tester.setWatermark(6 * gap)) == 1
    assert tester.peekListState("open", "h") == []
