"""SQL over a replica, beside DuckDB on a Parquet file of the same rows, by turns in one process.

    python benchmarks/sql.py [--keys 1000000] [--rounds 7] [--write]

A Spark job counts and adds by a key of type long (benchmarks/states.py).  The same rows are written to a Parquet file, sorted by
key, in DuckDB's usual row groups.  DuckDB reads it with as many threads as there are cores; ours reads in one.  Each statement
runs once untimed on both sides, then by turns; the ratio is the median of the rounds' own.  Answers must be equal.

    top     the ten keys with the largest sum
    group   a count and a sum by a hundred groups of keys
    one     one row, by its key; beside it `Table.get` of the same
    range   a thousand rows, from one key on

Then `millpond serve` answers the statement `one` by `POST /sql`, and `GET /tables/…/rows` of the same row, one after the other on
one connection.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from results import write_result
from states import spark_session, write_state

STATEMENTS = {
    "top": "SELECT k, total FROM {t} ORDER BY total DESC, k LIMIT 10",
    "group": "SELECT k % 100 AS g, count(*) AS n, sum(total) AS s FROM {t} GROUP BY g ORDER BY g",
    "one": "SELECT n, total FROM {t} WHERE k = ?",
    "range": "SELECT k, total FROM {t} WHERE k >= ? AND k < ? + 1000 ORDER BY k",
}

_SERVED = 500


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and what it gives."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def _fetched(plain: Any, text: str, parameters: list[int]) -> list[tuple[Any, ...]]:
    return plain.execute(text, parameters).fetchall()  # type: ignore[no-any-return]


def measure(pond: Any, name: str, parquet: Path, keys: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """The seconds of each statement in each round, ours and DuckDB's."""
    import duckdb

    found: dict[str, list[dict[str, float]]] = {}
    plain = duckdb.connect()
    plain.execute(f"CREATE VIEW t AS SELECT * FROM '{parquet}'").fetchall()
    for statement, text in STATEMENTS.items():
        ours, theirs = text.format(t=f'"{name}"'), text.format(t="t")
        for number in range(rounds + 1):
            drawn = [random.randrange(keys)] * ours.count("?")
            took, answers = {}, {}
            took["ours"], answers["ours"] = timed(partial(pond.sql, ours, drawn))
            took["parquet"], answers["parquet"] = timed(partial(_fetched, plain, theirs, drawn))
            assert answers["ours"].values() == answers["parquet"], (statement, drawn)
            if statement == "one":
                took["get"], _ = timed(partial(pond[name].get, k=drawn[0]))
            if number:
                found.setdefault(statement, []).append(took)
    plain.close()
    return found


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """A server on the replica that is there; its port."""
    words = ["serve", str(folder / "checkpoint"), "--port", "0", "--replica-dir", str(folder / "home"), "--json"]
    with subprocess.Popen([sys.executable, "-m", "millpond.cli", *words], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield int(json.loads(server.stdout.readline())["url"].rsplit(":", 1)[1])
        finally:
            server.terminate()
            server.wait(30)


def measure_served(port: int, table: str, columns: dict[str, str], keys: int, rounds: int) -> list[dict[str, float]]:
    """The median seconds of a statement of one key and of a get, in each round.  Both must find the same row."""
    statement = f'SELECT "{columns["n"]}", "{columns["total"]}" FROM "{table}" WHERE "{columns["k"]}" = ?'
    found = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(rounds + 1):
            took: dict[str, list[float]] = {"get": [], "sql": []}
            for _ in range(_SERVED):
                key = random.randrange(keys)
                body = json.dumps({"statement": statement, "parameters": [key]}).encode()
                get = f"GET /tables/{table}/rows?{columns['k']}={key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                sql = b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                rows = {}
                for who, request in (("get", get), ("sql", sql)):
                    seconds, answer = timed(partial(_ask, connection, request))
                    took[who].append(seconds)
                    rows[who] = [row and {name: row[columns[name]] for name in ("n", "total")} for row in answer["rows"]]
                assert rows["get"] == rows["sql"], (key, rows)
            if number:
                found.append({who: statistics.median(each) for who, each in took.items()})
    return found


def _ask(connection: socket.socket, request: bytes) -> Any:
    connection.sendall(request)
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(1 << 16)
    head, _, body = got.partition(b"\r\n\r\n")
    size = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")).split(b":")[1])
    while len(body) < size:
        body += connection.recv(1 << 16)
    return json.loads(body)


def main() -> None:
    """Write the state and the file, and ask both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/sql.json")
    options = parser.parse_args()
    import pyarrow.parquet as pq

    import millpond

    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session("sql")
        write_state(spark, Path(folder, "checkpoint"), "hdfs", options.keys)
        spark.stop()
        with millpond.open(Path(folder, "checkpoint"), replica_dir=Path(folder, "home"), wait_seconds=600) as pond:
            (name,) = pond.tables()
            rows = pond[name].to_arrow()
            columns = dict(zip(("k", "n", "total"), rows.column_names[:3], strict=True))
            assert columns["k"] == "k", columns
            named = rows.select(list(columns.values())).rename_columns(list(columns))
            pq.write_table(named.sort_by("k").replace_schema_metadata(None), f"{folder}/rows.parquet", row_group_size=122_880)
            view = ", ".join(f'"{column}" AS {alias}' for alias, column in columns.items())
            found = measure(_Renamed(pond, name, view), name, Path(folder, "rows.parquet"), options.keys, options.rounds)
        with serving(Path(folder)) as port:
            served = measure_served(port, name, columns, options.keys, options.rounds)
    result = {
        "what": "seconds of SQL statements over a replica, beside DuckDB on Parquet of the same rows",
        "keys": options.keys,
        "statements": {statement: figures(rounds) for statement, rounds in found.items()},
        "one_over_http": {
            "median_microseconds": {who: round(1e6 * statistics.median(r[who] for r in served)) for who in served[0]},
            "as_multiple_of_get": round(statistics.median(r["sql"] / r["get"] for r in served), 2),
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("sql", result, {**found, "one_over_http": served})


class _Renamed:
    """A pond whose table has the columns `k`, `n` and `total`: nobody has defined it."""

    def __init__(self, pond: Any, name: str, view: str) -> None:
        self._pond, self._name, self._view = pond, name, view

    def __getitem__(self, name: str) -> Any:
        return self._pond[name]

    def sql(self, text: str, parameters: list[int]) -> Any:
        """The same statement over the renamed columns."""
        text = text.replace(f'"{self._name}"', f'(SELECT {self._view} FROM "{self._name}")')
        return self._pond.sql(text, parameters or None)


def figures(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Medians, and how many times DuckDB's seconds ours are."""
    out: dict[str, Any] = {
        "median_milliseconds": {who: round(1000 * statistics.median(r[who] for r in rounds), 2) for who in rounds[0]},
        "as_multiple_of_parquet": round(statistics.median(r["ours"] / r["parquet"] for r in rounds), 2),
    }
    if "get" in rounds[0]:
        out["as_multiple_of_get"] = round(statistics.median(r["ours"] / r["get"] for r in rounds), 1)
    return out


if __name__ == "__main__":
    main()
