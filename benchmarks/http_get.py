"""Lookups a second over HTTP, beside a bare answer of the same HTTP server, in one run.

    python benchmarks/http_get.py [--rows 100000] [--seconds 8] [--out benchmarks/results/http_get.json]

A real Spark job fills a table; `millpond serve` answers for it; wrk asks for random keys over 32 connections.  Beside it, in turns,
what answers with constant bytes of the same length and reads nothing: uvicorn with a bare ASGI function; uvicorn with one Starlette
route; and uvicorn's protocol answering by itself, below ASGI, which is where Millpond answers this route.
wrk and the server share the machine's cores, and perhaps with others: requests a second of two rounds compare only where the load
average says that nobody else ran.  CPU time a request is the server's own and compares on a busy machine too.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

CONNECTIONS = 32
ROUNDS = 3
SIDES = ("millpond", "asgi_constant", "starlette_constant", "protocol_constant")

_LUA = """
math.randomseed(os.time())
request = function()
  return wrk.format("GET", "/tables/page_views/rows?page=/page/" .. math.random(0, {rows} - 1))
end
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), summary.errors.status, summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
"""

_BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

body = sys.stdin.buffer.read()

async def constant(request):
    return Response(body, media_type="application/json")

async def bare(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})

class Constant:
    def answer(self, url, headers, client):
        return b"content-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (len(body), body)

app, http = bare, "httptools"
if sys.argv[1] == "starlette_constant":
    app = Starlette(routes=[Route("/tables/{table}/rows", constant)])
elif sys.argv[1] == "protocol_constant":
    from millpond.serve.hot import hot_protocol
    http = hot_protocol(Constant())
uvicorn.run(app, http=http, port=int(sys.argv[2]), lifespan="off", log_level="warning", access_log=False, server_header=False)
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
def serving(side: str, pond: Path, body: bytes) -> Iterator[tuple[str, int]]:
    """The address and the process id of one of the three servers, once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if side == "millpond":
        command = [sys.executable, "-m", "millpond.cli", "serve", str(pond), "--port", str(port)]
    else:
        command = [sys.executable, "-c", _BARE, side, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        assert server.stdin is not None
        server.stdin.write(body)
        server.stdin.close()
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(f"{address}/tables/page_views/rows?page=/page/0")
            yield address, server.pid
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(url: str) -> None:
    for _ in range(1200):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"{url} never answered")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(address: str, pid: int, rows: int, seconds: int) -> dict[str, float]:
    """One round of wrk: requests/s, p50 and p99 in ms, CPU time a request.  Ends the run where any request failed."""
    before = cpu_seconds(pid)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA.format(rows=rows))
        script.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", script.name, address]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", out)
    if found is None:
        raise SystemExit(f"wrk said: {out}")
    requests, micros, p50, p99, wrong, broken = map(int, found.groups())
    if wrong or broken:
        raise SystemExit(f"{wrong} answers were errors, {broken} connections broke")
    return {
        "requests_per_second": round(requests / micros * 1e6),
        "p50_ms": p50 / 1000,
        "p99_ms": p99 / 1000,
        "cpu_us_per_request": round((cpu_seconds(pid) - before) / requests * 1e6, 1),
    }


def machine() -> dict[str, Any]:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""
    )
    packages = ("starlette", "uvicorn", "h11", "httptools", "uvloop", "lmdb", "msgspec", "pyspark")
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "load_average_before": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=8, help="of each of the rounds")
    parser.add_argument("--pond", type=Path, help="a pond that an earlier run left, or is to leave, here")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("This needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        pond = options.pond or Path(folder) / "pond"
        if not pond.exists():
            write_pond(pond, options.rows)
        os.environ["MILLPOND_HOME"] = f"{folder}/home"
        about = machine()
        with serving("millpond", pond, b"") as (address, _):
            body = httpx.get(f"{address}/tables/page_views/rows?page=/page/{options.rows // 2}").content
        rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(ROUNDS):
            for side in SIDES:
                with serving(side, pond, body) as (address, pid):
                    load(address, pid, options.rows, 1)
                    rounds[side].append(load(address, pid, options.rows, options.seconds))
    median = {side: {k: statistics.median(r[k] for r in many) for k in many[0]} for side, many in rounds.items()}
    rate = {side: median[side]["requests_per_second"] for side in SIDES}
    cost = {side: median[side]["cpu_us_per_request"] for side in SIDES}
    result = {
        "what": "GET /tables/page_views/rows?page=… of a random key, one process",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": about,
        "size": {
            "rows": options.rows,
            "answer_bytes": len(body),
            "connections": CONNECTIONS,
            "seconds": options.seconds,
            "rounds": ROUNDS,
        },
        "median": median,
        "ratio_of_requests": {side: round(rate["millpond"] / rate[side], 3) for side in SIDES[1:]},
        "ratio_by_cpu": {side: round(cost[side] / cost["millpond"], 3) for side in SIDES[1:]},
        "load_average_after": os.getloadavg()[0],
        "rounds": rounds,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
