"""Four ways to count distinct visitors agree with a set in plain Python, for a real log."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict

import httpx
import pandas as pd
import pytest

import millpond
from suite.programs import started
from suite.waiting import wait_until

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


@pytest.fixture
def hosts_of(real_log, pages_of):
    hosts = defaultdict(set)
    for host, page, _ in pages_of(real_log):
        hosts[page].add(host)
    assert len(hosts) > 300
    return dict(hosts)


def run(module, way, frame, pond):
    with module.start(frame, way, str(pond), trigger="available-now", partitions=2) as job:
        assert job.wait_for_end(240)


@pytest.mark.long
def test_all_ways_agree_with_a_recomputation(on_rocksdb, example, read_log, real_log, hosts_of, tmp_path) -> None:
    visitors = example("visitors")
    for way in visitors.WAYS:
        run(visitors, way, read_log(real_log), tmp_path / "pond")
    expected = {page: len(hosts) for page, hosts in hosts_of.items()}
    page = max(expected, key=lambda name: (expected[name], name))
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        for way in ("by_list", "by_map"):
            assert {r["page"]: r["visitors"] for r in pond[f"visitors_{way}_count"].scan()} == expected
            found = defaultdict(set)
            for row in pond[f"visitors_{way}_hosts"].scan():
                found[row["page"]].add(row["host"])
            assert found == hosts_of
            assert pond[f"visitors_{way}_hosts"].count() == sum(expected.values())
        assert {r["page"]: r["visitors"] for r in pond["visitors_by_drop_duplicates"].scan()} == expected
        assert {r["page"]: set(r["hosts"]) for r in pond["visitors_by_set"].scan()} == hosts_of
        assert pond["visitors_by_map_hosts"].get(page=page, host=min(hosts_of[page]))["seen"] is True
    command = [
        sys.executable,
        "-m",
        "millpond.cli",
        "serve",
        str(tmp_path / "pond"),
        "--port",
        "0",
        "--json",
        "--replica-dir",
        "memory://",
    ]
    with started(command, stdout=subprocess.PIPE) as server:
        try:
            address = json.loads(server.stdout.readline())["url"]
            wait_until(
                lambda: httpx.get(f"{address}/readyz", timeout=60).status_code == 200,
                "the server's yes at /readyz",
                unless=lambda: server.poll() is not None,
            )
            answer = httpx.get(f"{address}/tables/visitors_by_list_count/rows", params={"page": page}, timeout=60)
            assert answer.json()["rows"] == [{"page": page, "visitors": expected[page]}]
        finally:
            server.terminate()
            server.wait(60)


@pytest.mark.parametrize("way", ["ByList", "ByMap"])
def test_a_visitor_counts_once(example, way: str) -> None:
    from pyspark.sql.streaming.tws_tester import TwsTester

    tester = TwsTester(getattr(example("visitors"), way)())
    seen = [tester.testInPandas("/", pd.DataFrame({"host": hosts})) for hosts in (["a", "b", "a"], ["b"], ["c", "a"])]
    assert [frame.to_dict("records") for frame in seen] == [[{"page": "/", "visitors": 2}], [], [{"page": "/", "visitors": 3}]]
    assert tester.peekValueState("count", "/") == (3,)


@pytest.mark.long
def test_a_request_of_nobody_is_no_visitor_in_any_of_the_ways(on_rocksdb, example, tmp_path) -> None:
    visitors, pond, folder = example("visitors"), tmp_path / "pond", tmp_path / "in"
    folder.mkdir()
    requests = [("/", "b"), ("/", None), ("/", "a"), ("/nobody", None)]
    (folder / "1.json").write_text("\n".join(json.dumps({"page": page, "host": host}) for page, host in requests))
    frame = on_rocksdb.readStream.schema("page string, host string").json(str(folder))
    for way in visitors.WAYS:
        run(visitors, way, frame, pond)
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
        for table in ("visitors_by_list_count", "visitors_by_map_count", "visitors_by_drop_duplicates"):
            assert [dict(row) for row in opened[table].scan()] == [{"page": "/", "visitors": 2}], table
        assert [(row["page"], sorted(row["hosts"])) for row in opened["visitors_by_set"].scan()] == [("/", ["a", "b"])]
