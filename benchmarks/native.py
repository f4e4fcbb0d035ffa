"""What the compiled library brings: whole reads, each part of it alone, and lookups, with and without it by turns in one run.

    python benchmarks/native.py [--keys 400000] [--rounds 7] [--scratch FOLDER] [--write]

Spark writes three states (to_arrow.py: count, sum and maximum by a text key).  `millpond.read_arrow` reads each without a replica,
and `millpond.open` builds a replica of it, with the library and without (as `MILLPOND_NATIVE=0` does).  Then each part of the
library is switched off alone, in the read that uses it most.  Last, two servers answer lookups of one key: as they are, and with
`row_json` off; once for rows of one number, once for those of http_get.py, which have an `approx_count_distinct`.  32 connections
ask at once.  All times are of the processor, since other programs may share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from http_get import PATH, write_pond
from processes import processor_seconds
from results import write_result
from running import answers, free_port, running

import millpond
from millpond.native import library
from spark_files.checkpoint import WrittenCheckpoint

STATES = ("hdfs", "rocksdb-changelog", "rocksdb-snapshots")
# Part -> state, what uses it most, and what is switched off for it; `keys.c` is used where the pass over all files isn't.
CALLS = "millpond.native.calls"
PARTS = {
    "lz4.c, lz4_stream.c, checksums.c": ("rocksdb-changelog", "read_arrow", ["unpack_streams"], []),
    "newest_records.c": ("rocksdb-changelog", "read_arrow", ["newest_records"], []),
    "keys.c": ("rocksdb-changelog", "read_arrow", ["mark_newest"], ["newest_records"]),
    "records.c": ("hdfs", "build", ["find_whole_records"], []),
    "blocks.c": ("rocksdb-snapshots", "read_arrow", ["unpack_blocks", "find_entries"], []),
    "newest_entries.c": ("rocksdb-snapshots", "read_arrow", ["newest_entries"], []),
    "rows.c": ("hdfs", "read_arrow", ["read_words", "find_parts"], []),
    "gather.c": ("hdfs", "build", ["to_list"], []),
    "order.c": ("hdfs", "build", ["order_keys"], []),
}
SERVER = """
import sys
from millpond.native import rows
if sys.argv.pop(1) == "without":
    rows.row_writer = lambda *_: None
from millpond.cli import main
main()
"""
# Connections, questions of each in a round; rows that are written in a round.
CONNECTIONS, LOOKUPS, ROWS = 32, 2000, 5000
LOOKUP_ROWS = 20_000


def read_arrow(checkpoint: Path) -> int:
    """The rows of a whole table."""
    return int(millpond.read_arrow(str(checkpoint), f"{checkpoint.name}.aggregate_0").num_rows)


def build(checkpoint: Path) -> int:
    """The rows of a new replica."""
    with tempfile.TemporaryDirectory() as home, millpond.open(str(checkpoint), replica_dir=home, wait_seconds=600) as pond:
        return int(pond[f"{checkpoint.name}.aggregate_0"].count())


WORK: dict[str, Callable[[Path], int]] = {"read_arrow": read_arrow, "build": build}


@contextlib.contextmanager
def off(calls: list[str]) -> Iterator[None]:
    """As if these calls rejected all input."""
    with contextlib.ExitStack() as patches:
        for name in calls:
            patches.enter_context(patch(f"{CALLS}.{name}", lambda *_, **__: None))
        yield


def seconds_of(work: str, checkpoint: Path, keys: int) -> float:
    """Processor seconds of one read."""
    began = time.process_time()
    rows = WORK[work](checkpoint)
    seconds = time.process_time() - began
    assert rows == keys, (rows, keys)
    return round(seconds, 4)


def by_turns(
    sides: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]], rounds: int, measure: Callable[[], float]
) -> dict[str, list[float]]:
    """Each side's figures, round by round; a first round that doesn't count warms all up."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, context in sides.items():
            with context():
                figure = measure()
            if number:
                found[side].append(figure)
    return found


def compared(found: dict[str, list[float]]) -> dict[str, float]:
    """Medians, and how many times as much the way without takes: the median of the rounds' own ratios."""
    ratios = [without / own for own, without in zip(found["with"], found["without"], strict=True)]
    return {**{side: float(f"{median(each):.3g}") for side, each in found.items()}, "times": round(median(ratios), 2)}


def shapes() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Tables with a text key, and a stored value row of each."""
    from millpond.replica.record import StoresRecord
    from millpond.schema.definition.expression import Expression, buffer_column
    from millpond.schema.definition.table import TableDefinition, ValueColumn, key_columns
    from millpond.schema.store import StoreSchema
    from millpond.schema.types import Field, atomic
    from millpond.tables.finish.buffers.hllpp import sketch
    from millpond.tables.scan.binding import bind

    long, double, key = atomic("long"), atomic("double"), (Field("page", atomic("string")),)

    def table(fields: tuple[Field, ...], values: tuple[ValueColumn, ...]) -> Any:
        definition = TableDefinition(
            table="t", operator=0, key=key_columns(key), values=values, key_schema=key, value_schema=fields
        )
        store = StoreSchema(
            operator=0, operator_name="stateStoreSave", store="default", index=0, key=key, value=fields, single=True
        )
        stores = StoresRecord(format=1, job_id="", lineage="", checkpoint="", stores=[store], unread=[])
        return bind(definition, stores, None)

    def aggregate(name: str, type_: Any, buffers: list[int], **options: Any) -> ValueColumn:
        return ValueColumn(name, type_, Expression("aggregate", type_, options={"function": name, "buffers": buffers, **options}))

    numbers = tuple(Field(name, long) for name in ("count", "sum", "max"))
    plain = table(numbers, tuple(ValueColumn(f.name, long, buffer_column(i, long)) for i, f in enumerate(numbers)))
    precision = 9  # Spark's own where nobody names one
    words = sketch(precision).words
    fields = (Field("n", long), Field("sum", double), Field("count", long), *(Field(f"w{i}", long) for i in range(words)))
    columns = (
        aggregate("count", long, [0]),
        aggregate("avg", double, [1, 2], mode="legacy"),
        aggregate("approx_count_distinct", long, list(range(3, 3 + words)), precision=precision),
    )
    registers = [sum((1 + (w + i) % 5 if (w + i) % 7 == 0 else 0) << 6 * i for i in range(10)) for w in range(words)]
    return {
        "three whole numbers": (plain, (5, 5000, 1700)),
        "count, average and approx_count_distinct": (table(fields, columns), (5, 12.5, 5, *registers)),
    }


def rows_alone(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds to write a row as JSON."""
    from millpond.checkpoint.rows.unsaferow import encoder
    from millpond.replica.row_stamp import stamp
    from millpond.serve.hot.row_json import RowWriter

    found = {}
    for name, (binding, buffers) in shapes().items():
        stored = encoder(binding.definition.value_schema)(buffers) + stamp(41)
        with library.switched_off():
            python = RowWriter(binding)
        writers = {"with": RowWriter(binding), "without": python}
        assert writers["with"].write_of_text(b"/page/17", stored) == python.write_of_text(b"/page/17", stored)
        of_side: dict[str, list[float]] = {side: [] for side in writers}
        for _ in range(rounds):
            for side, writer in writers.items():
                began = time.process_time()
                for _ in range(ROWS):
                    writer.write_of_text(b"/page/17", stored)
                of_side[side].append(round(1e6 * (time.process_time() - began) / ROWS, 3))
        found[name] = of_side
    return found


def write_ponds(scratch: Path) -> dict[str, tuple[Path, str]]:
    """Where the tables for lookups lie, and the path of a lookup without its number."""
    pond, numbers = scratch / "page_views", scratch / "numbers"
    if not pond.exists():
        write_pond(pond, LOOKUP_ROWS)
    if not numbers.exists():
        written = WrittenCheckpoint(numbers)
        written.plan([(f"/page/{n}", n) for n in range(LOOKUP_ROWS)], snapshot=False)
        written.commit()
    return {
        "one number": (numbers, "/tables/numbers.aggregate_0/rows?k=/page/"),
        "count, sum and approx_count_distinct": (pond, PATH),
    }


@contextlib.contextmanager
def serving(side: str, place: Path, path: str) -> Iterator[tuple[int, int]]:
    """The port and the process id of a server, once it answers."""
    port = free_port()
    command = [sys.executable, "-c", SERVER, side, "serve", str(place), "--port", str(port)]
    url = f"http://127.0.0.1:{port}{path}0"
    with running(side, command, lambda: answers(url), stderr=subprocess.DEVNULL) as pid:
        yield port, pid


def lookups(place: Path, path: str, rounds: int) -> dict[str, list[float]]:
    """Microseconds of the server's processor for a lookup.  All connections ask at once, and wait for all answers."""
    with contextlib.ExitStack() as opened:
        servers = {side: opened.enter_context(serving(side, place, path)) for side in ("with", "without")}
        connections = {
            side: [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(CONNECTIONS)]
            for side, (port, _) in servers.items()
        }
        found: dict[str, list[float]] = {side: [] for side in servers}
        for number in range(rounds + 1):
            for side, (_, pid) in servers.items():
                before = processor_seconds(pid)
                for asked in range(LOOKUPS):
                    for place_, connection in enumerate(connections[side]):
                        page = (CONNECTIONS * asked + place_) * 7919 % LOOKUP_ROWS
                        connection.sendall(f"GET {path}{page} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
                    for connection in connections[side]:
                        answer = connection.recv(1 << 16)
                        assert answer.startswith(b"HTTP/1.1 200"), answer
                        assert answer.endswith(b"}"), answer
                if number:
                    found[side].append(round(1e6 * (processor_seconds(pid) - before) / LOOKUPS / CONNECTIONS, 2))
        return found


def main() -> None:
    """Have the states written, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scratch", help="keep the states here, and use those that are there")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/native.json")
    options = parser.parse_args()
    if library.library() is None:
        raise SystemExit("The compiled library isn't built: python hatch_build.py")
    keys, rounds = options.keys, options.rounds
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["MILLPOND_HOME"] = f"{temporary}/home"
        scratch = Path(options.scratch or temporary)
        states = {state: scratch / f"{state}-text" for state in STATES}
        if not all(path.exists() for path in states.values()):
            writer = str(Path(__file__).with_name("to_arrow.py"))
            subprocess.run([sys.executable, writer, "--write-states", str(scratch), "--keys", str(keys)], check=True)
        sides = {"with": contextlib.nullcontext, "without": library.switched_off}
        each: dict[str, Any] = {"whole": {}, "parts": {}}
        for state, path in states.items():
            for work in WORK:
                found = by_turns(sides, rounds, partial(seconds_of, work, path, keys))
                each["whole"].setdefault(state, {})[work] = found
                print(state, work, compared(found), flush=True)
        for part, (state, work, calls, always) in PARTS.items():
            with off(always):
                found = by_turns(
                    {"with": contextlib.nullcontext, "without": partial(off, calls)},
                    rounds,
                    partial(seconds_of, work, states[state], keys),
                )
            each["parts"][part] = found
            print(part, compared(found), flush=True)
        each["row_json"] = {
            "rows": rows_alone(rounds),
            "lookups": {name: lookups(*table, rounds) for name, table in write_ponds(scratch).items()},
        }
    result = {
        "what": "processor time with the compiled library and without it, by turns; without all of it, and without a part of it",
        "keys": keys,
        "whole_processor_seconds": {
            state: {work: compared(found) for work, found in works.items()} for state, works in each["whole"].items()
        },
        "parts_processor_seconds": {
            part: {"state": PARTS[part][0], "read": PARTS[part][1], **compared(found)} for part, found in each["parts"].items()
        },
        "row_json_microseconds_of_a_row": {name: compared(found) for name, found in each["row_json"]["rows"].items()},
        "row_json_microseconds_of_a_lookup": {name: compared(found) for name, found in each["row_json"]["lookups"].items()},
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("native", result, each)


if __name__ == "__main__":
    main()
