"""A reader of the soak: it asks all the time, and writes each answer to its log, one on each line. Others judge the log.

`python -m soak.reader NAME DOOR PLACE HOME LOG SEED`: DOOR is `http` (PLACE is the server's address), `router` (a router's),
`shards` (the addresses of all servers of shards, with commas), `attached` (PLACE is the pond; others follow) or `following`.
After a kill it goes on from the last token in its log, as a program would from its database.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

import millpond
from millpond.client.reads import Known
from millpond.errors import MillpondError
from millpond.schema.values import decode_json
from millpond.tables.history.changes import Changes
from millpond.wire.answers import ChangesAnswer
from soak.model import PAGES, WINDOW_MS, Values
from soak.orphans import end_with_parent

TABLE = "views"
# The same rows with the window as one column.  Only such keys, with the state's own columns, take the server's short way.
BY_WINDOW = "views_by_window"
RETENTION = millpond.Retention(closed_seconds=20.0, history_batches=1_000_000)
_PAUSE_SECONDS = 0.04
_GET_SECONDS = 5.0


class Log:
    """A log of JSON lines, each written at once: a kill can only tear the last one."""

    def __init__(self, path: Path) -> None:
        whole = path.read_bytes() if path.exists() else b""
        kept = whole[: whole.rfind(b"\n") + 1]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(self._file, len(kept))
        os.lseek(self._file, 0, os.SEEK_END)
        self.token: str | None = None
        for line in kept.splitlines():
            self._follow(json.loads(line))

    def write(self, **line: Any) -> None:
        self._follow(line)
        left = json.dumps(line).encode() + b"\n"
        while left:
            left = left[os.write(self._file, left) :]

    def _follow(self, line: dict[str, Any]) -> None:
        if line["op"] in ("begin", "changes"):
            self.token = line["token"]
        elif line["op"] == "gone":
            self.token = None


def row_of(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row for the log, with times in milliseconds; None if there is no row."""
    if not row:
        return None
    start, values = round(row["start"].timestamp() * 1000), {name: row[name] for name in Values._fields}
    return {"page": row["page"], "start": start, **values}


def found_of(row: Any) -> dict[str, Any] | None:
    """A row for the log, and whether it is final."""
    plain = row_of(row)
    return plain and {**plain, "final": row.final}


def changes_of(answer: Any) -> dict[str, Any]:
    """Changes for the log."""
    changes = [
        {
            "kind": c.kind,
            "batch": int(c.batch),
            "first": int(c.first_batch),
            **{name: row_of(getattr(c, name)) for name in ("old", "new", "final")},
        }
        for c in answer
    ]
    return {"changes": changes, "token": answer.token, "more": answer.more}


def source_of(answer: Any) -> dict[str, Any]:
    """The position of an answer."""
    position = answer.position
    return {
        "batch": int(answer.batch),
        "offsets": position.offsets,
        "watermark_ms": position.watermark_ms,
        "started_ms": position.batch_started_ms,
        "at": time.time(),
    }


class Reader:
    """Asks one table in every way."""

    def __init__(self, table: Any, log: Log, chance: random.Random, door: str, place: str) -> None:
        self._table = table
        self._log = log
        self._chance = chance
        self._known: list[dict[str, Any]] = []
        self._newest = 0
        asks = {self._get: 5, self._get_all: 2, self._scan: 2, self._pages: 2, self._changes: 5, self._bounded: 2}
        if door not in ("router", "shards"):
            asks[self._at] = 2
        if door in ("http", "router"):
            self._server, self._http = urlsplit(place), httpx.Client(base_url=place, timeout=_GET_SECONDS)
            asks[self._get_by_url] = 5
        if door == "http":
            asks[self._stream] = 2
        self._asks = list(asks), list(asks.values())

    def ask(self) -> None:
        """Ask one question."""
        self._chance.choices(*self._asks)[0]()

    def _keys(self, count: int) -> list[dict[str, Any]]:
        """Keys that were there lately, and some that never exist."""
        keys = [{"page": r["page"], "start": r["start"]} for r in self._chance.choices(self._known, k=count)] if self._known else []
        while len(keys) < count or self._chance.random() < 0.1:
            keys.append({"page": self._chance.choice(PAGES), "start": dt.datetime(2026, 2, 1, tzinfo=dt.UTC)})
        return keys

    def _facts(self, keys: list[dict[str, Any]], rows: list[Any], answer: Any) -> None:
        asked = [[key["page"], round(key["start"].timestamp() * 1000)] for key in keys]
        self._log.write(op="get", keys=asked, rows=[found_of(row) for row in rows], **source_of(answer))

    def _get(self) -> None:
        key = self._keys(1)[0]
        row = self._table.get(**key)
        self._facts([key], [row], row)

    def _get_by_url(self) -> None:
        """Get a row as programs without our client do: `GET …/rows` with the whole key, without a second try."""
        key = self._keys(1)[0]
        window = {"start": key["start"].isoformat(), "end": (key["start"] + dt.timedelta(milliseconds=WINDOW_MS)).isoformat()}
        try:
            answer = self._http.get(f"/tables/{BY_WINDOW}/rows", params={"page": key["page"], "window": json.dumps(window)})
        except httpx.TransportError as broken:
            self._log.write(op="error", condition="SERVER_UNAVAILABLE", message=str(broken))
            return
        body = answer.json()
        if answer.status_code != 200 and body["error"]["condition"] == "UNKNOWN_TABLE":
            return  # the starting job removes this definition for a moment
        if answer.status_code != 200:
            raise MillpondError(body["error"]["condition"], body["error"]["message"], hint=body["error"]["hint"])
        row, position = (body["rows"] or [None])[0], body["position"]
        if row is not None:
            start = dt.datetime.fromisoformat(row.pop("window")["start"])
            row |= {"start": round(start.timestamp() * 1000), "final": body["final"] == [0]}
        self._log.write(
            op="get",
            by_url=True,
            keys=[[key["page"], round(key["start"].timestamp() * 1000)]],
            rows=[row],
            batch=body["batch"],
            offsets=position["offsets"],
            watermark_ms=position["watermark_ms"],
            started_ms=position["batch_started_ms"],
            at=time.time(),
        )

    def _get_all(self) -> None:
        keys = self._keys(5)
        rows = self._table.get_all(keys)
        self._facts(keys, list(rows), rows)

    def _scan(self) -> None:
        page = self._chance.choice([None, *PAGES])
        reverse = self._chance.random() < 0.3
        rows = self._table.scan({} if page is None else {"page": page}, reverse=reverse)
        if page is None:
            self._known = list(rows)
        self._log.write(op="scan", page=page, reverse=reverse, rows=[found_of(r) for r in rows], **source_of(rows))

    def _pages(self) -> None:
        size = self._chance.choice([5, 10, 20])
        page = self._table.scan(limit=size)
        rows, first = [found_of(r) for r in page], source_of(page)
        while page.more:
            page = self._table.scan(limit=size, token=page.token)
            rows += [found_of(r) for r in page]
            if source_of(page)["batch"] != first["batch"]:
                self._log.write(op="wrong", what="pages of two batches", **source_of(page))
        self._log.write(op="scan", page=None, reverse=False, rows=rows, **first)

    def _at(self) -> None:
        """Read all rows as of an earlier batch."""
        batch = self._chance.randint(max(0, self._newest - 20), self._newest)
        try:
            table = self._table.at(batch=batch)
            rows = table.scan()
        except MillpondError as error:
            if error.condition not in ("HISTORY_GONE", "NOT_UP_TO_BOUND"):  # of the old job
                raise
            facts = {name: error.context.get(name) for name in ("batch", "first", "newest")}
            self._log.write(op="not kept", batch=batch, condition=error.condition, context=facts)
            return
        if int(rows.batch) != batch:
            self._log.write(op="wrong", what=f"batch {batch} was asked for", **source_of(rows))
        self._log.write(op="at", page=None, reverse=False, rows=[found_of(r) for r in rows], **source_of(rows))

    def _bounded(self) -> None:
        """Read a row with a bound: a batch that exists or will soon."""
        wanted, key = self._newest + self._chance.choice([0, 0, 1]), self._keys(1)[0]
        try:
            row = self._table.get(key, bounds=millpond.Bounds(min_batch=wanted, wait_seconds=0.3))
        except MillpondError as error:
            if error.condition != "NOT_UP_TO_BOUND":
                raise
            self._log.write(op="not yet", batch=wanted, here=error.context["here"])
            return
        if int(row.batch) < wanted:
            self._log.write(op="wrong", what=f"batch {wanted} or later was asked for", **source_of(row))
        self._facts([key], [row], row)

    def _stream(self) -> None:
        """Read some changes from the server's stream, from the end of the last stream or look."""
        if self._log.token is None:
            return
        connection = http.client.HTTPConnection(self._server.hostname or "", self._server.port, timeout=0.5)
        known, lines = Known(self._table.definition, ""), list[bytes]()
        try:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": self._log.token}
            connection.request("GET", f"/tables/{TABLE}/changes", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                return  # asking without a stream gives the reason
            for _ in range(self._chance.choice([10, 20, 40])):
                line = answer.readline()
                if line.strip():
                    lines.append(line)
                elif lines:
                    self._sent(dict(read.decode().rstrip("\n").split(": ", 1) for read in lines), known)
                    lines.clear()
        except (OSError, http.client.HTTPException):
            pass  # the stream is quiet, or its server was killed: the changes so far count
        finally:
            connection.close()

    def _sent(self, event: dict[str, str], known: Known) -> None:
        if event.get("event") != "changes":
            return  # the next look gives the reason
        answer = msgspec.convert(decode_json(event["data"]), ChangesAnswer)
        changes = Changes(map(known.change, answer.changes), answer.cut, token=event["id"], more=answer.more)
        self._log.write(op="changes", sent=True, **changes_of(changes), **source_of(changes))

    def _changes(self) -> None:
        if self._log.token is None:
            begin = self._table.changes()
            self._log.write(op="begin", token=begin.token, **source_of(begin))
            return
        limit = self._chance.choice([1, 3, 10, 100, 1000])
        try:
            answer = self._table.changes(self._log.token, limit=limit, wait_seconds=self._chance.choice([0.0, 0.0, 0.3]))
        except MillpondError as error:
            if error.condition != "HISTORY_GONE":
                raise
            self._log.write(op="gone", message=error.message)
            return
        self._newest = int(answer.batch)
        self._log.write(op="changes", **changes_of(answer), **source_of(answer))


def open_pond(door: str, place: str, home: str) -> Any:
    """Open the pond or server at a door."""
    if door in ("http", "router"):
        return millpond.connect(place)
    if door == "shards":
        return millpond.connect_shards(place.split(","))
    return millpond.open(place, replica_dir=home, follow=door == "following", wait_seconds=10, retention={TABLE: RETENTION})


def main(name: str, door: str, place: str, home: str, path: str, seed: str) -> None:
    """Ask until a signal ends it."""
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    log, chance = Log(Path(path)), random.Random(f"{seed}/{name}/{os.getpid()}")
    pond: Any = None
    reader: Reader | None = None
    while not ending:
        try:
            pond = pond or open_pond(door, place, home)
            reader = reader or Reader(pond[TABLE], log, chance, door, place)
            reader.ask()
        except MillpondError as error:
            log.write(op="error", condition=error.condition, message=str(error))
            time.sleep(0.1)
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    end_with_parent(group=False)
    main(*sys.argv[1:])
