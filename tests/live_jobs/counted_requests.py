"""A real job on an S3 server that counts what Spark asks of its checkpoint, batch by batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from millpond.operate.cost.files import StateFiles
from millpond.operate.cost.requests import Requests, requests_of_batch, requests_of_clock
from servers.s3 import BUCKET, environment, moto
from servers.s3a import fetched_s3a_jars

JOB = Path(__file__).parents[1] / "spark" / "s3a_job.py"
MAINTENANCE_SECONDS = 5
_STORE = "spark.sql.streaming.stateStore"
_HDFS = f"{_STORE}.providerClass=org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
VARIANTS = {
    "hdfs": (_HDFS,),
    "rocksdb": (),
    "rocksdb-without-changelog": (f"{_STORE}.rocksdb.changelogCheckpointing.enabled=false",),
    "rocksdb-format-2": (f"{_STORE}.checkpointFormatVersion=2",),
}
# Spark cleans up in the batches that are counted.
_SETTINGS = (
    f"{_STORE}.maintenanceInterval={MAINTENANCE_SECONDS}s",
    f"{_STORE}.minDeltasForSnapshot=10",
    "spark.sql.streaming.minBatchesToRetain=5",
)
# The first batches have what a start asks.
_FIRST = 8
_PAGE = 1000
_LINE = re.compile(r'\[([^\]]+)\] "(\w+) (/\S*) HTTP/1\.1" \d+')
_COMMIT = re.compile(r"commits/(\d+)")
_KINDS = ("delta", "changelog", "snapshot", "zip", "SSTs")


@dataclass(frozen=True)
class Counted:
    """What Spark asked between two commits.

    batches:   how many were committed in that time
    seconds:   that they took
    requests:  (of which kind of file, put, list, get or delete) -> how many
    written:   kind of file -> how many
    partitions: of the job's one store
    provider, is_format_2: of its state
    """

    batches: int
    seconds: float
    requests: Counter[tuple[str, str]]
    written: Counter[str]
    partitions: int
    provider: str
    is_format_2: bool

    @property
    def asked(self) -> Requests:
        """The same by price."""
        kinds = Counter[str]()
        for (_, kind), count in self.requests.items():
            kinds[kind] += count
        return Requests(puts=kinds["put"] + kinds["list"], gets=kinds["get"])

    @property
    def expected(self) -> Requests:
        """What the formula says of so many files."""
        files = StateFiles(
            provider=self.provider,
            partitions=self.partitions,
            single=0,
            bytes=0,
            change_bytes=0,
            files=0,
            change_files=(self.written["delta"] + self.written["changelog"]) / self.batches,
            snapshots=(self.written["snapshot"] + self.written["zip"]) / self.batches,
            ssts=self.written["SSTs"] / self.batches,
            versions=self.batches,
            is_format_2=self.is_format_2,
        )
        clock = requests_of_clock(files, MAINTENANCE_SECONDS).times(self.seconds)
        return requests_of_batch(files).times(self.batches).plus(clock)


def count_requests(variant: str, partitions: int, batches: int, log: Path) -> tuple[Counted, str]:
    """Run a job of so many batches, and count; also the URI of its checkpoint.

    log:  gets what the job says
    """
    server, name = moto(_PAGE), uuid.uuid4().hex
    checkpoint = f"s3a://{BUCKET}/{name}/ck"
    words = [sys.executable, str(JOB), str(fetched_s3a_jars()), server.url, checkpoint, str(batches), "local[2]", str(partitions)]
    words += [*_SETTINGS, *VARIANTS[variant]]
    with log.open("w") as out:
        done = subprocess.run(
            ["timeout", "-k", "5", "600", *words],
            stdout=out,
            stderr=out,
            env={**os.environ, **environment(server.url)},
            check=False,
        )
    assert done.returncode == 0, log.read_text()[-3000:]
    found = _parsed(Path(server.log.name).read_text(errors="replace"), f"{name}/ck/")
    places = {int(m[1]): at for at, (_, kind, path) in enumerate(found) if kind == "put" and (m := _COMMIT.fullmatch(path))}
    begin, end = places[_FIRST], places[max(places)]
    between = found[begin + 1 : end + 1]
    counted = Counted(
        batches=max(places) - _FIRST,
        seconds=found[end][0] - found[begin][0],
        requests=Counter((_kind_of_file(path), kind) for _, kind, path in between),
        written=Counter(_kind_of_file(path) for _, kind, path in between if kind == "put" and "/." not in path),
        partitions=partitions,
        provider=variant.split("-")[0],
        is_format_2="format-2" in variant,
    )
    return counted, checkpoint


def _parsed(text: str, below: str) -> list[tuple[float, str, str]]:
    """(seconds since 1970, put, list, get or delete; path below the checkpoint) of each request of it."""
    requests = []
    for at, method, url in _LINE.findall(text):
        path, _, query = url.partition("?")
        prefix = re.search(r"prefix=([^&]*)", query)
        path = path.removeprefix(f"/{BUCKET}/") if prefix is None else prefix[1]
        if not path.startswith(below):
            continue
        kind = {"PUT": "put", "POST": "put", "GET": "get", "HEAD": "get", "DELETE": "delete"}[method]
        kind = "list" if prefix is not None else "delete" if method == "POST" and "delete" in query else kind
        moment = time.mktime(time.strptime(at, "%d/%b/%Y %H:%M:%S"))
        requests.append((moment, kind, path.removeprefix(below)))
    return requests


def _kind_of_file(path: str) -> str:
    if not path.startswith("state/"):
        return path.split("/", 1)[0]
    if path.endswith(".crc") or ".crc." in path:
        return "checksum"
    return next((kind for kind in _KINDS if f".{kind}" in path or f"/{kind}/" in path), "folder")
