"""Cut-overs of a name as readers see them: reads that fail, that are of the wrong version, and what the others take longer.

    python benchmarks/cut_over.py [--readers 2] [--seconds 4] [--rounds 10] [--write]

Two versions of a table are written by hand, so that each row says its version.  `millpond serve` answers for the name; readers,
each a process with one connection, scan the table in a loop.  Rounds go by turns: in one nobody cuts over, in the other the name is
cut over and back again five times a second.  Each answer is compared with the rule: a read that begins after a cut-over was done is
of the new version, one that ended before it began is of the old one, and all rows of an answer are of one version.  Ratios are
medians of the pairs' own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
from asked import Process
from results import write_result

from millpond.tables.versions.cut_over import plan_cut_over
from millpond.versions import begin_name
from servers.serving import serving, wait_until_ready
from tables.versions.jobs import OF_VERSION, WrittenVersion

_READER = """
import http.client, json, sys, time
from urllib.parse import urlsplit

address, of_version = urlsplit(sys.argv[1]), int(sys.argv[2])
connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
print("{}", flush=True)
for line in sys.stdin:
    reads, failed, until = [], [], time.monotonic() + float(line)
    while time.monotonic() < until:
        begun = time.monotonic()
        try:
            connection.request("GET", "/tables/views/rows")
            answer = connection.getresponse()
            body = answer.read()
            ended = time.monotonic()
            assert answer.status == 200, body
            (version,) = {row["v"] // of_version for row in json.loads(body)["rows"]}
            reads.append((begun, ended, version))
        except Exception as error:
            failed.append(repr(error)[:300])
            connection.close()
    print(json.dumps({"reads": reads, "failed": failed}), flush=True)
"""
_INTERVAL_SECONDS = 0.2


def cut_over_for(pond: Path, seconds: float) -> list[tuple[float, float, int]]:
    """Cut over back and forth: when each began and was done, and to which version."""
    done, to, until = [], 1, time.monotonic() + seconds
    while time.monotonic() < until:
        to, begun = 3 - to, time.monotonic()
        plan_cut_over(pond, "views", to=to).run()
        done.append((begun, time.monotonic(), to))
        time.sleep(max(0.0, begun + _INTERVAL_SECONDS - time.monotonic()))
    if to != 1:
        begun = time.monotonic()
        plan_cut_over(pond, "views", to=1).run()
        done.append((begun, time.monotonic(), 1))
    return done


def wrong(reads: list[list[float]], cut_overs: list[tuple[float, float, int]]) -> int:
    """How many reads are of a version that the name didn't mean at any time while they ran."""
    begun, ended, versions = [c[0] for c in cut_overs], [c[1] for c in cut_overs], [1, *(c[2] for c in cut_overs)]
    count = 0
    for begin, end, version in reads:
        allowed = versions[bisect_right(ended, begin) : bisect_right(begun, end) + 1]
        count += version not in allowed
    return count


def round_of(readers: list[Process], pond: Path, seconds: float, *, with_cut_overs: bool) -> dict[str, Any]:
    """One round of all readers at once."""
    for reader in readers:
        reader.send(seconds)
    cut_overs = cut_over_for(pond, seconds - 0.5) if with_cut_overs else []
    answers = [reader.receive() for reader in readers]
    reads = [read for answer in answers for read in answer["reads"]]
    failed = [error for answer in answers for error in answer["failed"]]
    assert not failed, failed[:3]
    taken = sorted(end - begin for begin, end, _ in reads)
    return {
        "reads": len(reads),
        "failed": len(failed),
        "of_a_wrong_version": wrong(reads, cut_overs),
        "cut_overs": len(cut_overs),
        "versions_read": sorted({version for _, _, version in reads}),
        "reads_per_second": round(len(reads) / seconds),
        "p50_ms": round(1000 * taken[len(taken) // 2], 3),
        "p99_ms": round(1000 * taken[int(len(taken) * 0.99)], 3),
        "slowest_ms": round(1000 * taken[-1], 3),
    }


def main() -> None:
    """All rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/cut_over.json")
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        pond = Path(scratch, "pond")
        for version in (1, 2):
            WrittenVersion(pond, version)
            begin_name(pond, "views", version)
        with serving(pond, home=Path(scratch, "home")) as (url, _):
            with httpx.Client(base_url=url) as client:
                wait_until_ready(client)
            readers = [Process(_READER, url, OF_VERSION) for _ in range(options.readers)]
            for number in range(options.rounds + 1):
                pair = {
                    name: round_of(readers, pond, options.seconds, with_cut_overs=name == "cut_over")
                    for name in (("alone", "cut_over") if number % 2 else ("cut_over", "alone"))
                }
                if number:  # the first warms the server
                    rounds.append(pair)
            for reader in readers:
                reader.end()
    over = [pair["cut_over"] for pair in rounds]
    assert all(each["versions_read"] == [1, 2] for each in over)

    def ratio(name: str) -> float:
        return round(statistics.median(pair["cut_over"][name] / pair["alone"][name] for pair in rounds), 3)

    result = {
        "readers": options.readers,
        "cut_overs": sum(each["cut_overs"] for each in over),
        "reads_while_cut_over": sum(each["reads"] for each in over),
        "failed": sum(each["failed"] for each in over),
        "of_a_wrong_version": sum(each["of_a_wrong_version"] for each in over),
        "reads_per_second_to_alone": ratio("reads_per_second"),
        "p50_to_alone": ratio("p50_ms"),
        "p99_to_alone": ratio("p99_ms"),
        "slowest_ms": max(each["slowest_ms"] for each in over),
        "slowest_alone_ms": max(pair["alone"]["slowest_ms"] for pair in rounds),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("cut_over", result, rounds)


if __name__ == "__main__":
    main()
