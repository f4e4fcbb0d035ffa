"""A whole table over Arrow Flight SQL, beside `Table.to_arrow` in process, by turns in one run.

    python benchmarks/flight.py [--keys 1000000] [--rounds 9] [--write]

A Spark job counts and adds by a key of type long (benchmarks/states.py).  `millpond serve` follows it.
adbc-driver-flightsql reads `SELECT * FROM table` to a `pyarrow.Table`, and this process reads the same
replica with `to_arrow`.  The tables must be equal.

Each runs once untimed, then by turns; the ratio is the median of the rounds' own.  The memory is how
much more the server had at its peak than before the first read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import write_result
from running import free_port, listens, running
from states import peak_mib, spark_session, write_state


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and what it gives."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def measure(connection: Any, table: Any, name: str, rounds: int) -> list[dict[str, float]]:
    """The seconds of each round."""

    def fetch() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f'SELECT * FROM "{name}"')
            return cursor.fetch_arrow_table()

    found: list[dict[str, float]] = []
    for number in range(rounds + 1):
        took, answers = {}, {}
        took["flight"], answers["flight"] = timed(fetch)
        took["to_arrow"], answers["to_arrow"] = timed(table.to_arrow)
        assert answers["flight"].replace_schema_metadata(None).equals(answers["to_arrow"].replace_schema_metadata(None))
        if number:
            found.append(took)
    return found


def main() -> None:
    """Write the state, serve it, and read it both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/flight.json")
    options = parser.parse_args()
    import adbc_driver_flightsql.dbapi as dbapi

    import millpond

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, port, http = Path(folder, "checkpoint"), free_port(), free_port()
        spark = spark_session("flight")
        write_state(spark, checkpoint, "hdfs", options.keys)
        spark.stop()
        home = Path(folder, "home")
        with millpond.open(checkpoint, replica_dir=home, wait_seconds=600) as pond:
            (name,) = pond.tables()
            command = [
                sys.executable,
                "-m",
                "millpond.cli",
                "serve",
                str(checkpoint),
                "--port",
                str(http),
                "--flight-port",
                str(port),
            ]
            environment = {**os.environ, "MILLPOND_HOME": str(home)}
            with (
                running("millpond serve", command, lambda: listens(port) and listens(http), env=environment) as server,
                dbapi.connect(f"grpc://127.0.0.1:{port}", autocommit=True) as connection,
            ):
                before = peak_mib(server)
                found = measure(connection, pond[name], name, options.rounds)
                grown = peak_mib(server) - before
                size = pond[name].to_arrow().nbytes
    result = {
        "what": "seconds of a whole table over Flight SQL, beside to_arrow in process",
        "keys": options.keys,
        "table_mib": round(size / 2**20, 1),
        "server_grew_mib": grown,
        "median_milliseconds": {who: round(1000 * statistics.median(r[who] for r in found), 1) for who in found[0]},
        "as_multiple_of_to_arrow": round(statistics.median(r["flight"] / r["to_arrow"] for r in found), 2),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("flight", result, {"rounds": found})


if __name__ == "__main__":
    main()
