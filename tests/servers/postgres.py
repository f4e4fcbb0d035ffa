"""A PostgreSQL for each process that runs tests, of the machine's own packages."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from servers.ports import free_port
from suite.waiting import wait_until


@cache
def postgres_server() -> str:
    """The address of a server.  Skips the test if the machine has no PostgreSQL."""
    server = PostgresServer()
    server.start()
    atexit.register(server.remove)
    return server.address


def said(pg: Any, text: str, *, is_extended: bool) -> Any:
    """What a server says to a statement, by libpq: SQLSTATE, or tag, columns with their types, and rows."""
    from psycopg.pq import DiagnosticField

    found = pg.exec_params(text.encode(), None) if is_extended else pg.exec_(text.encode())
    columns = range(found.nfields)
    rows = [[found.get_value(n, m) for m in columns] for n in range(found.ntuples)]
    state = found.error_field(DiagnosticField.SQLSTATE)
    return state or (found.command_status, [(found.fname(m), found.ftype(m)) for m in columns], rows)


class PostgresServer:
    """A server that can be killed and started again."""

    def __init__(self) -> None:
        initdb = _program("initdb")
        self._postgres = _program("postgres")
        user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        owner = pwd.getpwnam(user)
        self._folder = tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True)
        os.chmod(self._folder.name, 0o755)
        self._data = Path(self._folder.name) / "data"
        self._data.mkdir(mode=0o700)
        os.chown(self._data, owner.pw_uid, owner.pw_gid)
        self._as_owner: dict[str, Any] = {"user": user, "group": owner.pw_gid} if os.geteuid() == 0 else {}
        make = [initdb, "-D", str(self._data), "-U", "millpond", "--auth=trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd="/", **self._as_owner)
        self._port = free_port()
        self.address = f"postgresql://millpond@127.0.0.1:{self._port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"port": self._port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        command = [self._postgres, "-D", str(self._data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/", **self._as_owner)
        import psycopg

        wait_until(
            lambda: psycopg.connect(self.address, connect_timeout=20),
            "a connection to PostgreSQL",
            unless=lambda: server.poll() is not None,
            ignoring=(psycopg.OperationalError,),
        ).close()

    def stop(self) -> None:
        """End it at once; its sessions end too."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """End it, and delete its data."""
        self.stop()
        self._folder.cleanup()


def _program(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = str(folders[-1] / name) if folders else shutil.which(name)
    if found is None or not os.access(found, os.X_OK):
        pytest.skip("this machine has no PostgreSQL")
    return found
