"""What the client does if a server is down, starts slowly, isn't Millpond's, or has a new definition."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError, ReplicaError
from millpond.settings import ClientSettings, Retention
from millpond.tables.cold.table import find_definition
from servers.ports import free_port
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few
from suite.waiting import wait_until

pa = pytest.importorskip("pyarrow")
QUICK = ClientSettings(tries=3, first_pause_seconds=0.01, last_pause_seconds=0.05, timeout_seconds=60)


class Asked(list[str]):
    """The paths of requests; the headers of the last one, and the addresses of all connections."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: dict[str, str] = {}
        self.connections: set[Any] = set()


@contextmanager
def _server(answers: list[tuple[int, dict[str, str], bytes] | None]) -> Iterator[tuple[str, Asked]]:
    """A server that gives these answers, one after the other, and then repeats the last.  For None it hangs up."""
    asked = Asked()

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            asked.headers = {name.lower(): value for name, value in self.headers.items()}
            asked.connections.add(self.client_address)
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", headers.get("x-length", str(len(body))))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = "x-length" in headers

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def _error(condition: str, **context: Any) -> bytes:
    return json.dumps({"error": {"condition": condition, "message": "m.", "hint": "h.", "context": context}}).encode()


TABLES = (200, {}, b'{"tables": [{"table": "t"}]}')
BUILDING = (503, {}, _error("REPLICA_BUILDING", partitions_done=1))
HTML = (502, {}, b"<html>bad gateway</html>")
CUT_OFF = (200, {"x-length": "100"}, b'{"tables"')
PACKED = gzip.compress(TABLES[2])
BAD_ADDRESSES = ["localhost:8642", "", "http://", "http:///x", "http://[::1", "http://a:864200", "http://a:0", "http://a\x00b"]
BAD_ADDRESSES += ["http://xn--:1", "http://a..b", f"http://{'a' * 70}"]


@pytest.mark.parametrize(
    "passing", [None, BUILDING, HTML, CUT_OFF, (429, {}, _error("TOO_MANY_REQUESTS", retry_after_seconds=0.01))]
)
def test_what_passes_is_asked_again(passing: Any) -> None:
    with _server([passing, passing, TABLES]) as (address, asked), millpond.connect(address, settings=QUICK) as server:
        assert server.tables() == ["t"]
        assert len(asked) == 3


@pytest.mark.parametrize(
    ("answer", "condition", "times"),
    [
        (None, "SERVER_UNAVAILABLE", 3),
        (BUILDING, "REPLICA_BUILDING", 3),
        (HTML, "SERVER_UNAVAILABLE", 3),
        (CUT_OFF, "SERVER_UNAVAILABLE", 3),
        ((200, {}, b"<html>hello</html>"), "NOT_A_SERVER", 1),
        ((404, {}, b"not here"), "NOT_A_SERVER", 1),
        ((200, {"content-encoding": "gzip"}, PACKED[:-9]), "NOT_A_SERVER", 1),
        ((200, {"content-encoding": "gzip"}, PACKED[:12] + b"~" + PACKED[13:]), "NOT_A_SERVER", 1),
        ((200, {"content-encoding": "gzip"}, b"{}"), "NOT_A_SERVER", 1),
        ((200, {"content-encoding": "br"}, TABLES[2]), "NOT_A_SERVER", 1),
        ((301, {"location": "/elsewhere"}, b""), "NOT_A_SERVER", 1),
        ((503, {}, _error("NOT_UP_TO_BOUND")), "NOT_UP_TO_BOUND", 1),
        ((503, {}, _error("READ_TOO_LONG")), "READ_TOO_LONG", 1),
        ((401, {}, _error("TOKEN_NEEDED")), "TOKEN_NEEDED", 1),
        ((500, {}, _error("NEW_IN_A_LATER_VERSION")), "NEW_IN_A_LATER_VERSION", 1),
    ],
)
def test_what_doesnt_pass_is_the_servers_own_error(answer: Any, condition: str, times: int) -> None:
    with _server([answer]) as (address, asked), millpond.connect(address, settings=QUICK) as server:
        with pytest.raises(MillpondError) as refused:
            server.tables()
        assert refused.value.condition == condition
        assert len(asked) == times
        if condition == "REPLICA_BUILDING":
            assert isinstance(refused.value, ReplicaError)
            assert refused.value.context == {"partitions_done": 1}


@pytest.mark.parametrize("name", ["gzip", "GZip", "x-gzip"])
def test_packed_answers_are_unpacked(name: str) -> None:
    with _server([(200, {"Content-Encoding": name}, PACKED)]) as (address, _), millpond.connect(address) as server:
        assert server.tables() == ["t"]


@pytest.mark.parametrize("connect", [millpond.connect, millpond.connect_async])
@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_an_address_that_is_none_is_refused_at_once(address: str, connect: Any) -> None:
    with pytest.raises(MillpondError) as refused:
        connect(address)
    assert refused.value.condition == "INVALID_REQUEST"


@pytest.mark.parametrize("connect", [millpond.connect, millpond.connect_async])
@pytest.mark.parametrize("token", ["secret\n", "geheim\u00fc", "a\r\nhost: other"])
def test_a_token_that_no_header_can_have_is_refused_at_once(token: str, connect: Any) -> None:
    with pytest.raises(MillpondError) as refused:
        connect("http://localhost:8642", token=token)
    assert refused.value.condition == "INVALID_REQUEST"


@pytest.mark.parametrize(("given", "sent"), [("me:a%20b", b"me:a b"), ("me", b"me:"), ("me:a:b%3A", b"me:a:b:")])
def test_a_name_and_password_in_the_address_are_for_a_proxy(given: str, sent: bytes) -> None:
    with _server([TABLES]) as (address, asked), millpond.connect(address.replace("//", f"//{given}@") + "/pond/") as server:
        assert server.tables() == ["t"]
        assert asked == ["/pond/tables"]
        assert base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")) == sent
        assert asked.headers["host"] == address.removeprefix("http://")
    with pytest.raises(MillpondError, match="one authorization"):
        millpond.connect(address.replace("//", f"//{given}@"), token="mp_x")


def test_a_closed_client_asks_nobody() -> None:
    with _server([TABLES]) as (address, asked):
        with millpond.connect(address) as server:
            assert server.tables() == ["t"]
        with pytest.raises(MillpondError) as refused:
            server.tables()
        assert refused.value.condition == "REPLICA_CLOSED"
        assert len(asked) == 1


def test_a_closed_awaited_client_asks_nobody() -> None:
    async def ask(address: str) -> str:
        async with millpond.connect_async(address) as server:
            assert await server.tables() == ["t"]
        with pytest.raises(MillpondError) as refused:
            await server.tables()
        return refused.value.condition

    with _server([TABLES]) as (address, asked):
        assert asyncio.run(ask(address)) == "REPLICA_CLOSED"
        assert len(asked) == 1


@pytest.mark.long
def test_threads_share_a_client_and_its_connections() -> None:
    """Each connection is one thread's at a time, and few threads at a time need few."""
    with _server([TABLES]) as (address, asked), millpond.connect(address) as server, ThreadPoolExecutor(4) as threads:
        assert all(found == ["t"] for found in threads.map(lambda _: server.tables(), range(200)))
        assert len(asked) == 200
        assert len(asked.connections) < 50


def test_nobody_there_is_an_error_of_ours() -> None:
    port = free_port()
    with millpond.connect(f"http://127.0.0.1:{port}", settings=QUICK) as server, pytest.raises(MillpondError) as refused:
        server["t"]
    assert refused.value.condition == "SERVER_UNAVAILABLE"


def test_rows_are_read_by_the_definition_that_they_were_written_by(serve: Any, tmp_path: Path) -> None:
    """The client learns of a new definition from the answer itself, and asks again."""
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("7", 1)], snapshot=False)
    job.commit()
    folder = tmp_path / "job.millpond" / "tables"
    with serve(job.path) as (address, _), millpond.connect(address) as server:
        wait_until(lambda: "job.aggregate_0" in server, "the table")
        table = server["job.aggregate_0"]
        assert table.get(k="7") == {"k": "7", "v": 1}
        definition = table.definition.to_json()
        for value in definition["values"]:
            value["name"] = "hits"
        definition |= {"derived": True}
        (tmp_path / "job.millpond").mkdir()
        (tmp_path / "job.millpond" / "job.json").write_text(json.dumps({"format": 1, "job": "job", "checkpoint": str(job.path)}))
        folder.mkdir()
        (folder / "job.aggregate_0.json").write_text(json.dumps(definition))
        wait_until(lambda: table.get(k="7") == {"k": "7", "hits": 1}, "the row by the new definition")
        assert [dict(r) for r in table.scan()] == [{"k": "7", "hits": 1}]


@pytest.mark.long
@pytest.mark.parametrize(
    "words", a_few([{"keep_closed": "forever", "history": "100"}, {"keep_closed": "24h"}, {"history": "90m"}], 1)
)
def test_a_table_with_a_retention_of_its_own_is_read_through_a_server(serve: Any, tmp_path: Path, words: dict[str, str]) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("7", 1)], snapshot=False)
    job.commit()
    kept = Retention.parse(**words)
    definition = replace(find_definition(job.path, "job.aggregate_0"), table="t", derived=True, warnings=(), retention=kept)
    create_job(tmp_path / "pond", "job", str(job.path)).write_definition(definition)
    with serve(tmp_path / "pond") as (address, _), millpond.connect(address) as server:
        assert server["t"].get(k="7") == {"k": "7", "v": 1}
        assert server["t"].definition.retention == kept


def test_a_servers_table_takes_bare_keys_and_shows_itself(serve: Any, tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("/x", 1), ("", 2)], snapshot=False)
    job.commit()
    with serve(job.path) as (address, _), millpond.connect(address) as server:
        wait_until(lambda: "job.aggregate_0" in server, "the table")
        table = server["job.aggregate_0"]
        assert table.get("/x") == {"k": "/x", "v": 1}
        assert (table.get(""), table.count("/x"), table.scan("/x")) == ({"k": "", "v": 2}, 1, [{"k": "/x", "v": 1}])
        assert [dict(row) for row in table.get_all(["", "/x"])] == [{"k": "", "v": 2}, {"k": "/x", "v": 1}]
        for wrong, condition in ((lambda: table.get("/x", v=1), "KEY_MISSING"), (lambda: table.get_all("/x"), "INVALID_REQUEST")):
            with pytest.raises(MillpondError) as refused:
                wrong()
            assert refused.value.condition == condition
        assert repr(table) == "<Table job.aggregate_0: k string (key), v bigint>"
        assert repr(server) == f"<RemotePond {address}>"
        assert "<td>/x</td>" in table._repr_html_()
        assert (
            f"<tr><td>job.aggregate_0</td><td>job</td><td>k string (key), v bigint</td></tr></tbody></table><p>{address}</p>"
            in (server._repr_html_())
        )
        assert table.to_pandas("/x").to_dict("list") == {"k": ["/x"], "v": [1]}
        assert pa.table(table).num_rows == 2
