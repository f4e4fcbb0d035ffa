"""Targets of every kind, and what is at them: all rows by key, and each record once."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from servers.kafka import kafka_broker
from servers.postgres import postgres_server
from suite.waiting import wait_until

Rows = dict[Any, Any]
Logged = list[tuple[str, int, Any, Any, Any]]
"""kind, batch, key, value before, value after"""


class Place(ABC):
    """One target, and a look at it.

    is_log:     whether it has every change; else only the newest rows
    resyncs:    whether a whole read removes what is gone
    """

    is_log = False
    to: str
    options: dict[str, str]

    def __init__(self) -> None:
        self.options = {}

    @abstractmethod
    def rows(self) -> Rows:
        """Value by key."""

    def expired(self) -> set[Any]:
        """The keys of rows that are marked as expired, with --keep-expired."""
        raise NotImplementedError

    def logged(self) -> Logged:
        """All changes, in order of their key at least."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what it started."""


def folded(changes: list[dict[str, Any]]) -> Rows:
    """The rows after all changes, which are in the order of their keys at least; a whole read replaces the runs before it."""
    rows: Rows = {}
    newest = max((change["run"] for change in changes), default=0)
    for change in changes:
        _, _, key, _, new = parse(change)
        if change["run"] == newest and new is None:
            rows.pop(key, None)
        elif change["run"] == newest:
            rows[key] = new
    return rows


def parse(change: dict[str, Any]) -> tuple[str, int, Any, Any, Any]:
    row = change["new"] or change["final"] or change["old"]
    old, new = change["old"], change["new"]
    return change["kind"], change["batch"], row["k"], old and old["v"], new and new["v"]


class Sqlite(Place):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / "sent.db"
        self.to = f"sqlite://{self._file}?table=sent"

    def rows(self) -> Rows:
        with sqlite3.connect(self._file) as database:
            return dict(database.execute("SELECT k, v FROM sent").fetchall())

    def expired(self) -> set[Any]:
        with sqlite3.connect(self._file) as database:
            return {key for (key,) in database.execute("SELECT k FROM sent WHERE _expired").fetchall()}


class Postgres(Place):
    def __init__(self, folder: Path, address: str | None = None) -> None:
        super().__init__()
        self.address = address or postgres_server()
        self._table = f"sent {uuid.uuid4().hex}%"
        self.to = f"{self.address}?table={self._table.replace(' ', '+').replace('%', '%25')}"
        self.options = {"options": "-c synchronous_commit=off"}

    def rows(self) -> Rows:
        import psycopg

        with psycopg.connect(self.address) as connection:
            return dict(connection.execute(f'SELECT k, v FROM "{self._table}"'.encode()).fetchall())

    def expired(self) -> set[Any]:
        import psycopg

        with psycopg.connect(self.address) as connection:
            return {key for (key,) in connection.execute(f'SELECT k FROM "{self._table}" WHERE _expired'.encode()).fetchall()}


class Files(Place):
    is_log = True

    def __init__(self, folder: Path, form: str) -> None:
        super().__init__()
        self.folder, self._form = folder / "sent", form
        self.to = f"{self.folder.as_uri()}?format={form}"

    def _changes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for file in sorted(self.folder.glob(f"[!.]*.{self._form}")):
            if self._form == "ndjson":
                found += map(json.loads, file.read_text().splitlines())
            else:
                from pyarrow import parquet

                found += parquet.read_table(file).to_pylist()
        return found

    def logged(self) -> Logged:
        return [parse(change) for change in self._changes()]

    def rows(self) -> Rows:
        return folded(self._changes())


class Kafka(Place):
    def __init__(self, form: str, broker: str | None = None) -> None:
        super().__init__()
        self.broker, self._form = broker or kafka_broker(), form
        self.topic = f"sent-{uuid.uuid4().hex}"
        self.to = f"kafka://{self.broker}/{self.topic}?form={form}"
        self.options = {"topic.partitions": "2"}
        self.is_log = form == "changelog"

    def _records(self) -> Iterator[tuple[Any, Any]]:
        """Committed records; those of a partition in order."""
        yield from committed_records(self.broker, self.topic)

    def logged(self) -> Logged:
        return [parse(change) for _, change in self._records()]

    def rows(self) -> Rows:
        records = list(self._records())
        if self.is_log:
            return folded([change for _, change in records])
        rows: Rows = {}
        for key, row in records:
            if row is None:
                rows.pop(key["k"], None)
            else:
                rows[key["k"]] = row["v"]
        return rows


def committed_records(broker: str, topic: str) -> list[tuple[Any, Any]]:
    """Key and value of all records that a reader of committed records sees, once the broker has ended all transactions.

    A sender's commit has succeeded some time before the broker shows it in each partition.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    common = {"bootstrap.servers": broker, "group.id": "look", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    all_records = Consumer({**common, "isolation.level": "read_uncommitted"})
    consumer = Consumer({**common, "isolation.level": "read_committed"})
    partitions = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, timeout=60).topics[topic].partitions]
    ends = {each.partition: all_records.get_watermark_offsets(each, timeout=60)[1] for each in partitions}
    all_records.close()
    consumer.assign(partitions)
    records: list[tuple[Any, Any]] = []

    def is_read() -> bool:
        while (message := consumer.poll(1)) is not None:
            if message.error() is None:
                value = message.value()
                records.append((json.loads(message.key()), None if value is None else json.loads(value)))
                continue
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            if message.offset() >= ends[message.partition()]:
                left.discard(message.partition())
            if not left:
                return True
        return False

    left = set(ends)
    wait_until(is_read, "the end of each partition, without an open transaction")
    consumer.close()
    return records


class Webhook(Place):
    """A receiver that checks signatures, and leaves out ids that it has seen."""

    is_log = True
    SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123").decode()

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.answers.pop(0) if receiver.answers else 204
                if status != 503:  # 500: it was received, and the answer is lost
                    receiver.requests.append((dict(self.headers.items()), body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._handler = Handler
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._port = self._server.server_port
        self.to = f"http://127.0.0.1:{self._port}/hook?a=1"
        self.options = {"secret": self.SECRET, "positions": str(folder / "positions"), "header.x-own": "1"}

    def _changes(self) -> list[dict[str, Any]]:
        seen: set[str] = set()
        found: list[dict[str, Any]] = []
        for headers, body in self.requests:
            if headers["webhook-id"] not in seen:
                seen.add(headers["webhook-id"])
                found += json.loads(body)["changes"]
        return found

    logged = Files.logged
    rows = Files.rows

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reopen(self) -> None:
        """Receive again, at the same port, after `close`."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def _make(kind: str, folder: Path) -> Place:
    match kind:
        case "sqlite":
            return Sqlite(folder)
        case "postgres":
            return Postgres(folder)
        case "webhook":
            return Webhook(folder)
        case "ndjson" | "parquet":
            return Files(folder, kind)
        case _:
            return Kafka(kind)


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Place]:
    """A new target of a kind."""
    made = _make(kind, folder)
    try:
        yield made
    finally:
        made.close()


BROKERED = ("compacted", "changelog")
KINDS = ("sqlite", "ndjson", "parquet", "webhook", "postgres", "compacted", "changelog")
