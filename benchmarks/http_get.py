"""Lookups a second over HTTP beside a Kafka Streams interactive query and beside a bare answer of the same server, in one run.

    python benchmarks/http_get.py [--rows 100000] [--seconds 3] [--write]

A real Spark job fills a table; `millpond serve` answers for it; wrk asks for random keys over 32 connections.  Beside it, by turns:

    kafka_streams       an interactive query of Kafka Streams (benchmarks/kafka_streams): the same rows, from a real broker, in a
                        persistent store (RocksDB); the JDK's HTTP server with 16 threads
    protocol_constant   Millpond's own HTTP server, answering as Millpond does on this route, with constant bytes of the same length
                        and no read
    asgi_constant, starlette_constant   the same bytes from uvicorn with a bare ASGI function, and with one Starlette route
    granian_constant    the same bytes from granian with a bare RSGI function, in one thread of one process
    millpond_2          `millpond serve --workers 2`: two processes answer, and a third one follows

Fairness: all servers run from before the first round to after the last, and each is asked for a while before it counts (a JVM wants
it).  One is asked at a time; what the others use when nobody asks them is in the result.  wrk and the server share the machine's
cores, which limits whoever could use both.  Kafka Streams has what is quickest for it: one partition, so that one store is asked;
values of 24 bytes, written as JSON without a library; rows alone as an answer, where ours names batch, position and lag.  Its
answers are compared with ours before anything is measured.  Ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from peers import free_port, kafka_streams, wait_for
from processes import processor_seconds
from results import write_result
from wrk import CONNECTIONS, load, require_wrk

# Short rounds, so that sides stand beside each other in time: the machine isn't equally fast at all times.
ROUNDS, SECONDS = 15, 3
SIDES = ["kafka_streams", "protocol_constant", "asgi_constant", "starlette_constant", "granian_constant"]
PATH = "/tables/page_views/rows?page=/page/"
WARM_SECONDS = 8

_BARE = """
import asyncio, sys, uvicorn, uvloop
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

head, body = sys.stdin.buffer.read().split(b"\\r\\n\\r\\n", 1)

async def constant(request):
    return Response(body, media_type="application/json")

async def bare(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})

whole = b"%b\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (head, len(body), body)

class Constant:
    def answer(self, url, headers, client):
        return whole

async def ours():
    from millpond.serve.connections.pool import Connections
    from millpond.serve.process.server import open_listener
    from millpond.settings import ServeSettings
    Connections(bare, Constant(), ServeSettings(), count=print).start(open_listener("127.0.0.1", int(sys.argv[2])))
    await asyncio.Event().wait()

async def rsgi(scope, protocol):
    protocol.response_bytes(200, [("content-type", "application/json")], body)

async def granian():
    from granian.constants import Interfaces
    from granian.server.embed import Server
    await Server(rsgi, port=int(sys.argv[2]), interface=Interfaces.RSGI, log_enabled=False).serve()

app = bare
if sys.argv[1] == "protocol_constant":
    uvloop.run(ours())
if sys.argv[1] == "granian_constant":
    uvloop.run(granian())
if sys.argv[1] == "starlette_constant":
    app = Starlette(routes=[Route("/tables/{table}/rows", constant)])
quiet = {"log_level": "warning", "access_log": False, "server_header": False}
uvicorn.run(app, http="httptools", port=int(sys.argv[2]), lifespan="off", **quiet)
"""


def write_pond(pond: Path, rows: int) -> None:
    """Run a Spark job that leaves a table page_views of so many rows."""
    from pyspark.sql import functions as F

    import millpond

    spark = millpond.session("http_get", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
    with tempfile.TemporaryDirectory() as source:
        visits = spark.range(rows).selectExpr(
            "concat('/page/', id) AS page", "id % 997 AS bytes", "concat('host', id % 101) AS host"
        )
        visits.write.mode("overwrite").parquet(source)
        stream = spark.readStream.schema(visits.schema).parquet(source)
        views = stream.groupBy("page").agg(
            F.count("*").alias("hits"), F.sum("bytes").alias("bytes"), F.approx_count_distinct("host").alias("visitors")
        )
        with millpond.start(views, table="page_views", pond=pond, trigger="available-now", partitions=4) as job:
            job.wait_for_end(600)
    spark.stop()


@contextlib.contextmanager
def serving(side: str, pond: Path, answer: bytes) -> Iterator[tuple[str, int]]:
    """The address and the process id of one of our servers, once it answers.

    answer:  headers and body of what constant sides say
    """
    port = free_port()
    if side.startswith("millpond"):
        command = [sys.executable, "-m", "millpond.cli", "serve", str(pond), "--port", str(port)]
        command += ["--workers", side.rpartition("_")[2]] if "_" in side else []
    else:
        command = [sys.executable, "-c", _BARE, side, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        assert server.stdin is not None
        server.stdin.write(answer)
        server.stdin.close()
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(side, lambda: _is_ready(f"{address}{PATH}0"), server)
            yield address, server.pid
        finally:
            server.terminate()
            server.wait(30)


def _is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=5).status_code == 200
    return False


def one_answer(address: str, rows: int) -> bytes:
    """Headers that this route adds, and the body, of one answer."""
    answer = httpx.get(f"{address}{PATH}{rows // 2}", headers={"accept-encoding": "identity"})
    ours = [(k, v) for k, v in answer.headers.items() if k not in ("date", "content-length")]
    return b"".join(f"{k}: {v}\r\n".encode() for k, v in ours) + b"\r\n" + answer.content


def compare(ours: str, theirs: str, rows: int) -> None:
    """Hold a sample of the answers against each other."""
    with httpx.Client() as client:
        for n in range(0, rows, max(1, rows // 97)):
            found, expected = client.get(f"{ours}{PATH}{n}").json()["rows"], client.get(f"{theirs}{PATH}{n}").json()
            assert found == [expected], (found, expected)


def measure(address: str, pid: int, rows: int, seconds: int) -> dict[str, float]:
    """One round."""
    before = processor_seconds(pid, children=True)
    counts = load(address, PATH, rows, seconds)
    used = processor_seconds(pid, children=True) - before
    return {**counts, "cpu_us_per_request": round(used / counts["requests"] * 1e6, 1)}


def idle_percent(pids: dict[str, int], seconds: float = 5) -> dict[str, float]:
    """What each server uses of a core while nobody asks it."""
    before = {side: processor_seconds(pid, children=True) for side, pid in pids.items()}
    time.sleep(seconds)
    return {side: round(100 * (processor_seconds(pid, children=True) - before[side]) / seconds, 1) for side, pid in pids.items()}


def main() -> None:
    """Start all servers, then ask them by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each of the rounds")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--pond", type=Path, help="a pond that an earlier run left, or is to leave, here")
    parser.add_argument("--sides", nargs="+", default=SIDES)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/http_get.json")
    options = parser.parse_args()
    require_wrk()
    sides = ["millpond", "millpond_2", *options.sides]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        pond = options.pond or Path(folder) / "pond"
        if not pond.exists():
            write_pond(pond, options.rows)
        os.environ["MILLPOND_HOME"] = f"{folder}/home"
        servers = {"millpond": opened.enter_context(serving("millpond", pond, b""))}
        constant = one_answer(servers["millpond"][0], options.rows)
        for side in sides[1:]:
            if side == "kafka_streams":
                numbers = {f"/page/{n}": (1, n % 997, 1) for n in range(options.rows)}
                servers[side] = opened.enter_context(kafka_streams(numbers))
                compare(servers["millpond"][0], servers[side][0], options.rows)
            else:
                if side.startswith("millpond"):
                    os.environ["MILLPOND_HOME"] = f"{folder}/home-{side}"
                servers[side] = opened.enter_context(serving(side, pond, constant))
        for side in sides:
            load(servers[side][0], PATH, options.rows, WARM_SECONDS)
        idle = idle_percent({side: pid for side, (_, pid) in servers.items()})
        rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side in sides:
                rounds[side].append(measure(*servers[side], options.rows, options.seconds))
                print(side, rounds[side][-1], file=sys.stderr, flush=True)

    def ratio(fact: str, side: str, *, of: str = "millpond") -> float:
        return round(statistics.median(a[fact] / b[fact] for a, b in zip(rounds[of], rounds[side], strict=True)), 3)

    result = {
        "what": "GET /tables/page_views/rows?page=… of a random key",
        "size": {
            "rows": options.rows,
            "answer_bytes": len(constant.partition(b"\r\n\r\n")[2]),
            "connections": CONNECTIONS,
            "seconds": options.seconds,
        },
        "median": {side: {k: statistics.median(r[k] for r in many) for k in many[0]} for side, many in rounds.items()},
        "ratio_of_requests": {side: ratio("requests_per_second", side) for side in sides[1:]},
        "ratio_of_requests_of_millpond_2": {side: ratio("requests_per_second", side, of="millpond_2") for side in sides[2:]},
        "ratio_of_p99": {side: ratio("p99_ms", side) for side in sides[1:]},
        "ratio_of_cpu_per_request": {side: ratio("cpu_us_per_request", side) for side in sides[1:]},
        "idle_percent_of_a_core": idle,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("http_get", result, rounds)


if __name__ == "__main__":
    main()
