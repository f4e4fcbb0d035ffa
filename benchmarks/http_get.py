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

Then `millpond`, `millpond_2` and `kafka_streams` are asked while each of them takes 1,000 changed rows a second: as a batch that is
committed by hand into the checkpoint, or as records on the broker.  Each has only its own changes, and a pond of its own.

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
import random
import shutil
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from peers import kafka_streams
from processes import processor_seconds
from results import write_result
from running import answers, free_port, running
from written import lz4_stream
from wrk import CONNECTIONS, load, require_wrk

from millpond.storage.names import path_of

# Short rounds, so that sides stand beside each other in time: the machine isn't equally fast at all times.
ROUNDS, SECONDS = 15, 3
SIDES = ["kafka_streams", "protocol_constant", "asgi_constant", "starlette_constant", "granian_constant"]
PATH = "/tables/page_views/rows?page=/page/"
WARM_SECONDS = 8
CHANGED_ROWS, CHANGE_SECONDS = 1000, 1.0

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
    def plain(self, headers):
        return dict(headers)

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
    address = f"http://127.0.0.1:{port}"
    with running(side, command, lambda: answers(f"{address}{PATH}0"), said=answer) as pid:
        yield address, pid


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


class CommittingJob:
    """Commits batches into a checkpoint that Spark wrote: random rows of its table, each with one hit more."""

    def __init__(self, pond: Path) -> None:
        from millpond.catalogue import open_jobs
        from millpond.checkpoint.log import read_batch
        from millpond.checkpoint.operators import read_stores
        from millpond.checkpoint.position import Batch
        from millpond.checkpoint.state import StateReader

        (job,) = open_jobs(pond)
        storage = job.open_checkpoint()
        batch = read_batch(storage, Batch(0))
        ((store,), _) = read_stores(storage, batch.batch)
        reader = StateReader(storage)
        self._rows = [
            (partition, key, value)
            for partition in range(batch.settings.partitions)
            for _, key, value in reader.iter_state(batch, store, partition)
        ]
        self._partitions = batch.settings.partitions
        self._folder = Path(path_of(job.checkpoint))
        self._newest = 0

    def change(self) -> None:
        """One more batch."""
        self._newest += 1
        changed: list[list[bytes]] = [[] for _ in range(self._partitions)]
        for place in random.sample(range(len(self._rows)), CHANGED_ROWS):
            partition, key, value = self._rows[place]
            # The first of its columns, behind the row's NULL bits, is the count of hits.
            value = value[:8] + (int.from_bytes(value[8:16], "little") + 1).to_bytes(8, "little") + value[16:]
            self._rows[place] = partition, key, value
            changed[partition] += [struct.pack(">i", len(key)), key, struct.pack(">i", len(value)), value]
        for partition, pieces in enumerate(changed):
            data = lz4_stream(b"".join([*pieces, struct.pack(">i", -1)]))
            self._write(f"state/0/{partition}/{self._newest + 1}.delta", data)
        planned = (self._folder / "offsets" / "0").read_text().split("\n")
        planned[1] = json.dumps({**json.loads(planned[1]), "batchTimestampMs": time.time_ns() // 1_000_000})
        self._write(f"offsets/{self._newest}", "\n".join(planned).encode())
        self._write(f"commits/{self._newest}", (self._folder / "commits" / "0").read_bytes())

    def check(self, address: str) -> None:
        """End the program unless a server has followed all batches."""
        deadline = time.monotonic() + 30
        while httpx.get(f"{address}{PATH}0").json()["batch"] != self._newest:
            if time.monotonic() > deadline:
                raise SystemExit(f"{address} doesn't answer from batch {self._newest}")
            time.sleep(0.05)

    def _write(self, name: str, data: bytes) -> None:
        target = self._folder / name
        target.with_name(f".{target.name}.tmp").write_bytes(data)
        target.with_name(f".{target.name}.tmp").rename(target)


class ChangingTopic:
    """Sends records to the topic of the Kafka Streams application: random rows, each with one hit more."""

    def __init__(self, rows: dict[str, tuple[int, int, int]]) -> None:
        from confluent_kafka import Producer
        from peers import broker_address

        self._rows, self._pages = dict(rows), list(rows)
        self._producer = Producer({"bootstrap.servers": broker_address(), "linger.ms": 5})

    def change(self) -> None:
        """So many records, which the broker has when this returns."""
        for page in random.sample(self._pages, CHANGED_ROWS):
            hits, size, visitors = self._rows[page]
            self._rows[page] = hits + 1, size, visitors
            self._producer.produce("page_views", key=page, value=struct.pack(">qqq", *self._rows[page]))
        assert self._producer.flush(60) == 0


@contextlib.contextmanager
def changing(source: CommittingJob | ChangingTopic) -> Iterator[None]:
    """Change rows each second; raises what ended the changes."""
    ending, failed = threading.Event(), []

    def run() -> None:
        try:
            while not ending.wait(CHANGE_SECONDS):
                source.change()
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    if failed:
        raise failed[0]


def idle_percent(pids: dict[str, int], seconds: float = 5) -> dict[str, float]:
    """What each server uses of a core while nobody asks it."""
    before = {side: processor_seconds(pid, children=True) for side, pid in pids.items()}
    time.sleep(seconds)
    return {side: round(100 * (processor_seconds(pid, children=True) - before[side]) / seconds, 1) for side, pid in pids.items()}


def medians(rounds: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of each side and figure."""
    return {side: {k: statistics.median(r[k] for r in many) for k in many[0]} for side, many in rounds.items()}


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
        sources: dict[str, CommittingJob | ChangingTopic] = {}
        for side in sides[:2]:  # the pond that was given stays as it is
            shutil.copytree(pond, Path(folder) / side)
            sources[side] = CommittingJob(Path(folder) / side)
        servers = {"millpond": opened.enter_context(serving("millpond", Path(folder) / "millpond", b""))}
        constant = one_answer(servers["millpond"][0], options.rows)
        for side in sides[1:]:
            if side == "kafka_streams":
                numbers = {f"/page/{n}": (1, n % 997, 1) for n in range(options.rows)}
                servers[side] = opened.enter_context(kafka_streams(numbers))
                compare(servers["millpond"][0], servers[side][0], options.rows)
                sources[side] = ChangingTopic(numbers)
            else:
                if side.startswith("millpond"):
                    os.environ["MILLPOND_HOME"] = f"{folder}/home-{side}"
                servers[side] = opened.enter_context(serving(side, Path(folder) / side, constant))
        for side in sides:
            load(servers[side][0], PATH, options.rows, WARM_SECONDS)
        idle = idle_percent({side: pid for side, (_, pid) in servers.items()})
        rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side in sides:
                rounds[side].append(measure(*servers[side], options.rows, options.seconds))
                print(side, rounds[side][-1], file=sys.stderr, flush=True)
        while_changing: dict[str, list[dict[str, float]]] = {side: [] for side in sources}
        for _ in range(options.rounds):
            for side, source in sources.items():
                with changing(source):
                    while_changing[side].append(measure(*servers[side], options.rows, options.seconds))
                print(side, "while rows change", while_changing[side][-1], file=sys.stderr, flush=True)
        for side, source in sources.items():
            if isinstance(source, CommittingJob):
                source.check(servers[side][0])

    def ratio(fact: str, side: str, *, of: str = "millpond", among: dict[str, list[dict[str, float]]] = rounds) -> float:
        return round(statistics.median(a[fact] / b[fact] for a, b in zip(among[of], among[side], strict=True)), 3)

    def beside_kafka_streams(fact: str) -> dict[str, float]:
        if "kafka_streams" not in sources:
            return {}
        return {of: ratio(fact, "kafka_streams", of=of, among=while_changing) for of in sides[:2]}

    result = {
        "what": "GET /tables/page_views/rows?page=… of a random key",
        "size": {
            "rows": options.rows,
            "answer_bytes": len(constant.partition(b"\r\n\r\n")[2]),
            "connections": CONNECTIONS,
            "seconds": options.seconds,
        },
        "median": medians(rounds),
        "ratio_of_requests": {side: ratio("requests_per_second", side) for side in sides[1:]},
        "ratio_of_requests_of_millpond_2": {side: ratio("requests_per_second", side, of="millpond_2") for side in sides[2:]},
        "ratio_of_p99": {side: ratio("p99_ms", side) for side in sides[1:]},
        "ratio_of_cpu_per_request": {side: ratio("cpu_us_per_request", side) for side in sides[1:]},
        "idle_percent_of_a_core": idle,
        "while_rows_change": {
            "rows_per_second": round(CHANGED_ROWS / CHANGE_SECONDS),
            "median": medians(while_changing),
            "ratio_of_requests": {
                of: ratio("requests_per_second", "kafka_streams", of=of, among=while_changing) for of in sides[:2]
            },
            "ratio_of_p99": {of: ratio("p99_ms", "kafka_streams", of=of, among=while_changing) for of in sides[:2]},
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("http_get", result, {**rounds, **{f"{side}, rows change": many for side, many in while_changing.items()}})


if __name__ == "__main__":
    main()
