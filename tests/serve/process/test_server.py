"""The server as a process: its port, its end, and unreadable data."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from millpond.errors import SetupError
from millpond.serve.access.tokens import add_token
from millpond.serve.process.server import address_of, open_listener
from servers.serving import serving, write_certificate
from servers.sockets import is_read
from soak.processes import children
from spark_files.golden import GOLDEN
from suite.programs import started
from suite.sizes import a_few
from suite.waiting import stays, wait_until

BODY = b'{"keys": [{"k": null}]}'
REQUEST = b"POST /tables/long/rows:get HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def test_a_port_that_is_taken_is_named() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(SetupError) as refused:
            open_listener("127.0.0.1", port)
    assert refused.value.condition == "PORT_TAKEN"
    assert refused.value.context == {"host": "127.0.0.1", "port": port}


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_that_isnt_ours_is_refused(host: str) -> None:
    with pytest.raises(SetupError) as refused:
        open_listener(host, 0)
    assert refused.value.condition == "PORT_TAKEN"


def test_a_taken_port_ends_the_command_with_its_exit_code(types_pond: Path, tmp_path: Path) -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
        done = _millpond("serve", str(types_pond), "--port", port, home=tmp_path)
    assert done.returncode == 6
    assert done.stderr.startswith("[PORT_TAKEN]")
    assert "Traceback" not in done.stderr


def test_without_its_libraries_the_door_says_what_to_install(types_pond: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['starlette'] = None; from millpond.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", str(types_pond), "--port", "0"],
        env={**os.environ, "MILLPOND_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 6
    assert "[LIBRARY_MISSING]" in done.stderr
    assert "pip install 'millpond[serve]'" in done.stderr


def test_sigterm_answers_what_runs_and_then_ends_well(serve: Any, types_pond: Path) -> None:
    with serve(types_pond) as (address, server):
        place = urlsplit(address)
        _wait_until_ready(address)
        with socket.create_connection((place.hostname, place.port), timeout=30) as running:
            running.sendall(REQUEST + BODY[:8])
            wait_until(lambda: is_read(running), "the server to take half a request")
            server.send_signal(signal.SIGTERM)
            stays(lambda: server.poll() is None, "it waits for the request that runs")
            running.sendall(BODY[8:])
            answer = b""
            while part := running.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert server.wait(60) == 0


@pytest.mark.long
def test_an_idle_server_ends_at_once_also_with_open_connections(serve: Any, types_pond: Path) -> None:
    with serve(types_pond) as (address, server), httpx.Client(base_url=address, timeout=60) as client:
        client.get("/livez")
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0  # it gives a request that runs longer than this


@pytest.mark.long
def test_what_cant_be_read_is_said_by_readiness_and_each_read_while_others_are_answered(serve: Any, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    shutil.copytree(GOLDEN / "types", pond)
    changes = pond / "jobs" / "long" / "checkpoint" / "state" / "0" / "0" / "2.delta"
    changes.write_bytes(changes.read_bytes()[:-10])
    with serve(pond) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        _wait_for_table(client, "string")

        def not_ready() -> Any:
            error = client.get("/readyz").json().get("error", {})
            return error if error.get("condition") == "REPLICA_BEHIND" else None

        refused = client.get("/readyz") if wait_until(not_ready, "what /readyz says of the damaged job") else None
        assert refused is not None
        assert refused.status_code == 503
        assert "long" in refused.json()["error"]["message"]
        assert client.get("/livez").status_code == 200
        assert set(client.get("/tables/long/rows?k=1").json()) == {"error"}
        assert client.get("/tables/string/rows?k=").json()["rows"][0]["n"] == 2
        listed = {t["table"]: t for t in client.get("/tables").json()["tables"]}
        assert "error" in listed["long"]
        assert listed["string"]["row_count"] == 5


def test_an_answer_doesnt_wait_for_an_acknowledgement() -> None:
    """Two small packets without TCP_NODELAY cost 40 ms each time: the second waits for the other side's delayed acknowledgement."""
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_no_key_stands_in_the_log(types_pond: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", "--json"]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path)}
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["url"]
        httpx.get(f"{address}/tables/string/rows?k=secret", timeout=60)
        server.terminate()
        out, err = server.communicate(timeout=30)
    assert b"secret" not in out + err


def _millpond(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millpond.cli", *words]
    return subprocess.run(command, env={**os.environ, "MILLPOND_HOME": str(home)}, capture_output=True, text=True, timeout=60)


def _wait_until_ready(address: str) -> None:
    wait_until(lambda: httpx.get(f"{address}/readyz", timeout=60).status_code == 200, "a server that is ready")


def _wait_for_table(client: httpx.Client, table: str) -> None:
    wait_until(lambda: client.get(f"/tables/{table}").status_code == 200, f"the table {table}")


@pytest.mark.long
@pytest.mark.parametrize("workers", a_few(["1", "2"], 1))
def test_a_hangup_has_tokens_and_certificate_read_again_and_ends_nothing(workers: str, types_pond: Path, tmp_path: Path) -> None:
    """The server leads its own session, without a terminal, as daemons do."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = write_certificate(tmp_path / "old"), write_certificate(tmp_path / "new")
    used = tmp_path / "cert.pem", tmp_path / "key.pem"
    tokens = tmp_path / "readers.json"
    token = add_token(tokens, "reader", tables=["*"])
    _put(old, used)
    with serving(
        types_pond,
        *("--tokens", str(tokens), "--workers", workers, "--tls-cert", str(used[0]), "--tls-key", str(used[1])),
        home=tmp_path / "home",
        apart=True,
    ) as (address, server):
        processes = children(server.pid)
        asked = {"headers": {"authorization": f"Bearer {token}"}, "timeout": 30}
        with httpx.Client(verify=ssl.create_default_context(cafile=str(old[0])), **asked) as running:
            assert running.get(f"{address}/tables").status_code == 200
            _put(new, used)
            more = add_token(tokens, "another", tables=["*"])
            os.killpg(server.pid, signal.SIGHUP)
            trust = ssl.create_default_context(cafile=str(new[0]))

            def is_new() -> bool:
                try:
                    with httpx.Client(verify=trust, timeout=30) as fresh:
                        return fresh.get(f"{address}/tables", headers={"authorization": f"Bearer {more}"}).status_code == 200
                except httpx.ConnectError:
                    return False

            for _ in range(8 * int(workers)):
                wait_until(is_new, "the new certificate at each door")
            used[0].write_text("no certificate")
            os.killpg(server.pid, signal.SIGHUP)
            stays(is_new, "a certificate that can't be read leaves the one before")
            assert running.get(f"{address}/tables").status_code == 200, "connections stay"
        assert server.poll() is None
        assert children(server.pid) == processes


@pytest.mark.long
@pytest.mark.parametrize("workers", a_few([2, 1], 1))
def test_a_hangup_has_the_file_of_options_read_again(workers: int, types_pond: Path, tmp_path: Path) -> None:
    options, tokens = tmp_path / "millpond.toml", tmp_path / "readers.json"
    token = add_token(tokens, "reader", tables=["*"])
    options.write_text(f"workers = {workers}\nmax-url-bytes = 100\n")
    log = tmp_path / "err"
    with (
        log.open("wb") as err,
        serving(types_pond, "--config", str(options), home=tmp_path / "home", stderr=err) as (address, server),
    ):

        def all_answer(path: str, status: int, **headers: str) -> bool:
            """Whether all requests get an answer.  Each comes over its own connection, so most likely they reach each door."""
            return all(httpx.get(address + path, headers=headers, timeout=60).status_code == status for _ in range(6 * workers))

        long = f"/livez?{'a' * 150}"
        assert all_answer(long, 414)
        options.write_text(f"workers = {workers}\nmax-url-bytes = 1000\ntokens = 'readers.json'\nmax-seconds = 7\n")
        server.send_signal(signal.SIGHUP)
        wait_until(lambda: all_answer(long, 400), "the new limit at each door")
        wait_until(lambda: all_answer("/tables", 401), "the file of tokens at each door")
        assert all_answer("/tables", 200, authorization=f"Bearer {token}")
        wait_until(lambda: log.read_text().count("config.waits") == workers, "each door to say what must wait")
        assert "max_seconds" in log.read_text()
        for wrong in ("max-url-bytes = 'many'", "nonsense = 1", "max-url-bytes = ", "tokens = 'nowhere.json'"):
            seen = log.read_text().count("config.unreadable")
            options.write_text(f"workers = {workers}\n{wrong}\n")
            server.send_signal(signal.SIGHUP)
            wait_until(lambda seen=seen: log.read_text().count("config.unreadable") == seen + workers, "each door's error")
            assert all_answer(long, 400)
            assert all_answer("/tables", 401)


@pytest.mark.parametrize(
    ("number", "workers"),
    a_few([(signal.SIGTERM, "1"), (signal.SIGTERM, "2"), (signal.SIGINT, "2"), (signal.SIGINT, "1")], 1),
)
def test_a_server_says_by_which_signal_it_ends(number: int, workers: str, types_pond: Path, tmp_path: Path) -> None:
    with (
        (tmp_path / "err").open("wb") as err,
        serving(types_pond, "--workers", workers, home=tmp_path / "home", stderr=err) as (_, server),
    ):
        server.send_signal(number)
        assert server.wait(30) == 0
    assert (tmp_path / "err").read_text().count(f"server.ends signal={signal.Signals(number).name}") == 1


@pytest.mark.long
def test_a_hangup_ends_a_server_whose_terminal_is_gone(types_pond: Path, tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["MILLPOND_HOME"] = str(tmp_path / "home")
        os.execv(sys.executable, [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", "--json"])
    written = b""
    while b"http://" not in written:
        written += os.read(terminal, 1000)
    os.close(terminal)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0), "the end of the server")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory of its own for a server; its path is short, as paths of sockets must be."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.long
@pytest.mark.parametrize("is_followed", [True, False], ids=["all go on", "all are killed"])
def test_a_killed_parent_leaves_no_folder(is_followed: bool, types_pond: Path, tmp_path: Path, temporary: Path) -> None:
    """The server's processes remove the folder at their end; if they were killed too, the next server removes it."""
    with serving(types_pond, "--workers", "2", home=tmp_path / "home", TMPDIR=str(temporary)) as (_, server):
        assert len(list(temporary.glob("millpond-serve-*"))) == 1
        processes = children(server.pid)
        for pid in [server.pid] if is_followed else [server.pid, *processes]:
            os.kill(pid, signal.SIGKILL)
        server.wait(30)
    if not is_followed:
        wait_until(lambda: not any(map(is_running, processes)), "the end of its processes")
        (left,) = temporary.glob("millpond-serve-*")
        with serving(types_pond, "--workers", "2", home=tmp_path / "home", TMPDIR=str(temporary)):
            assert [folder != left for folder in temporary.glob("millpond-serve-*")] == [True]
    wait_until(lambda: not list(temporary.glob("millpond-serve-*")), "a temporary directory without a server's folder")


def is_running(pid: int) -> bool:
    """Whether it really runs: a process that has ended stays in the list until its parent waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _put(files: tuple[Path, Path], places: tuple[Path, Path]) -> None:
    for file, place in zip(files, places, strict=True):
        shutil.copy(file, place)
