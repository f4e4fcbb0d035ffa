"""Lookups that the server answers itself while their job is replaced by one with other columns."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.schema.types import Field, atomic
from servers.ports import free_port
from servers.serving import serving
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import IS_LONG
from suite.waiting import wait_until

pytest.importorskip("duckdb")
psycopg = pytest.importorskip("psycopg")
TABLE = "job.aggregate_0"
WORDS = {"bigint": "long", "string": "string", "int": "integer", "double": "double"}
TYPES = {"bigint": int, "string": str, "int": int, "double": float}


def shown(kind: str, number: int) -> Any:
    return TYPES[kind](number)


@pytest.mark.long
def test_no_answer_or_description_is_of_columns_that_were(tmp_path: Path) -> None:
    """The values of version `n` are all `n`; a name of a column says its type."""
    port, draw = free_port(), random.Random(3)
    place, home = tmp_path / "job", tmp_path / "home"

    def replaced(version: int, kind: str) -> None:
        made = WrittenCheckpoint(tmp_path / f"job-{version}", f"job-{version}", value=(Field("v", atomic(WORDS[kind])),))
        made.plan([("a", shown(kind, version)), ("b", None)], snapshot=True)
        made.commit()
        if place.exists():
            place.rename(tmp_path / f"old-{version}")
        made.path.rename(place)

    kinds = ["bigint"]
    replaced(0, "bigint")
    options = ("--postgres-port", str(port), "--sql-processes", "2")
    with serving(place, *options, home=home) as (url, _), httpx.Client(base_url=url, timeout=60) as http:
        with millpond.connect(url) as server:
            server.wait_for_table(TABLE)
        body = json.dumps({"statement": f'SELECT v FROM "{TABLE}" WHERE k = ?', "parameters": ["a"]})
        stop, wrong, counts = threading.Event(), list[Any](), [0, 0]

        def ask_http() -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                while not stop.is_set():
                    answer = client.post("/sql", content=body)
                    if answer.status_code == 200:
                        counts[0] += 1
                        found = answer.json()
                        (row,) = found["rows"] or [None]
                        version = None if row is None else int(float(row["v"]))
                        if version is None or found["columns"][0]["type"] != kinds[version]:
                            wrong.append(found)
                    elif answer.status_code not in (503, 410, 409):
                        wrong.append((answer.status_code, answer.text))

        def ask_postgres() -> None:
            oids = {"bigint": 20, "string": 25, "int": 23, "double": 701}
            text = f'SELECT v FROM "{TABLE}" WHERE k = $1'.encode()
            with psycopg.connect(f"postgresql://reader@127.0.0.1:{port}/x", autocommit=True) as client:
                while not stop.is_set():
                    found = client.pgconn.exec_params(text, [b"a"], [25], None, 0)
                    if found.error_message:
                        if b"REPLICA" not in found.error_message and b"JOB_REPLACED" not in found.error_message:
                            wrong.append(found.error_message)
                    else:
                        counts[1] += 1
                        version = int(float(found.get_value(0, 0))) if found.ntuples else None
                        if version is None or found.ftype(0) != oids[kinds[version]]:
                            wrong.append((version, found.ftype(0), found.get_value(0, 0)))

        threads = [threading.Thread(target=each) for each in (ask_http, ask_postgres)]
        for each in threads:
            each.start()
        try:
            for version in range(1, 6 if IS_LONG else 3):
                kinds.append(draw.choice([each for each in TYPES if each != kinds[-1]]))
                replaced(version, kinds[-1])

                def newest() -> int | None:
                    answer = http.post("/sql", content=body)
                    rows = answer.json()["rows"] if answer.status_code == 200 else []
                    return int(float(rows[0]["v"])) if rows else None

                wait_until(lambda version=version: newest() == version, f"version {version}")
                stop.wait(0.3)
            wait_until(lambda: min(counts) > 20, "enough answers to both")
        finally:
            stop.set()
            for each in threads:
                each.join()
        assert not wrong, wrong[:5]
        assert min(counts) > 20, counts
