"""A prepared SELECT of one key over PostgreSQL's protocol from `millpond serve`, beside PostgreSQL with the same rows.

    python benchmarks/postgres_get.py [--keys 100000] [--seconds 5] [--rounds 5] [--write]

Needs PostgreSQL with pgbench (Debian: postgresql).  By turns, each server answers 1 and 16 connections, which ask for
random keys one after the other.  Both servers and the clients share the machine's cores.  A sample of the rows is compared
first.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results import write_result
from written import write_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers.postgres import PostgresServer, _program

CONNECTIONS = (1, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    postgres = PostgresServer()
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "checkpoint", options.keys)
        postgres.start()
        try:
            with millpond_server(Path(folder)) as ours:
                table = fill(ours, postgres.address, options.keys)
                servers = {"millpond": ours, "postgres": postgres.address}
                rounds = [one_round(Path(folder), table, servers, options) for _ in range(options.rounds)]
        finally:
            postgres.remove()
    figures: dict[str, Any] = {"what": "SELECT of one key by pgbench, prepared, random keys", "keys": options.keys}
    for count in CONNECTIONS:
        name = f"{count} connections"
        figures[name] = {
            **{server: round(statistics.median(r[name][server] for r in rounds)) for server in ("millpond", "postgres")},
            "ratio": round(statistics.median(r[name]["millpond"] / r[name]["postgres"] for r in rounds), 3),
        }
    print(json.dumps(figures, indent=1))
    if options.write:
        print(write_result("postgres_get", figures, rounds))


@contextmanager
def millpond_server(folder: Path) -> Iterator[str]:
    import psycopg

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    words = [
        "serve",
        str(folder / "checkpoint"),
        "--port",
        "0",
        "--postgres-port",
        str(port),
        "--replica-dir",
        str(folder / "home"),
    ]
    with subprocess.Popen([sys.executable, "-m", "millpond.cli", *words, "--json"], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            address = f"postgresql://millpond@127.0.0.1:{port}/postgres"
            with psycopg.connect(address, autocommit=True) as client:
                while not client.execute("SELECT tablename FROM pg_tables").fetchall():
                    time.sleep(0.1)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def fill(ours: str, theirs: str, keys: int) -> str:
    """Give PostgreSQL the rows that Millpond has, and compare some of them.  The table's name, quoted."""
    import psycopg

    with psycopg.connect(ours, autocommit=True) as source, psycopg.connect(theirs, autocommit=True) as target:
        ((name,),) = source.execute("SELECT tablename FROM pg_tables").fetchall()
        target.execute(f'CREATE TABLE "{name}" (k bigint PRIMARY KEY, n bigint, total bigint)')
        with target.cursor().copy(f'COPY "{name}" FROM STDIN') as copy:
            for row in source.cursor().stream(f'SELECT k, n, total FROM "{name}"'):
                copy.write_row(row)
        target.execute("VACUUM ANALYZE")
        for key in random.sample(range(keys), 200):
            text = f'SELECT n, total FROM "{name}" WHERE k = %s'
            found = source.execute(text, [key]).fetchall()
            assert found, f"the key {key} has no row"
            assert found == target.execute(text, [key]).fetchall()
        return f'"{name}"'


def one_round(folder: Path, table: str, servers: dict[str, str], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    script = folder / "select.sql"
    script.write_text(f"\\set key random(0, {options.keys - 1})\nSELECT n, total FROM {table} WHERE k = :key;\n")
    pgbench = shutil.which("pgbench") or str(Path(_program("postgres")).with_name("pgbench"))
    found: dict[str, dict[str, float]] = {}
    for count in CONNECTIONS:
        for server, address in servers.items():
            words = [pgbench, "-n", "-M", "prepared", "-f", str(script), "-c", str(count), "-T", str(options.seconds), address]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            (rate,) = re.findall(r"tps = ([0-9.]+) \(without", said)
            found.setdefault(f"{count} connections", {})[server] = float(rate)
    return found


if __name__ == "__main__":
    main()
