"""Groups of three kinds over one stream: salted ones with live hot keys, and distinct visitors by a map and by a list."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond
from faults.fed import Files, Row, Rows
from faults.job import PARTITIONS, attempts, example, read
from faults.kind import Kind
from faults.undisturbed import Model, Planned, Tables, by, in_order

ROWS_A_FILE = 1500  # enough to decide which groups are hot


class Views(Model):
    """page -> its row."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        for page, events in by("page", rows).items():
            before = self._rows.get(page, {"hits": 0, "numbers": 0, "hosts": []})
            self._rows[page] = {
                "page": page,
                "hits": before["hits"] + len(events),
                "numbers": before["numbers"] + sum(event["n"] for event in events),
                "hosts": sorted({*before["hosts"], *(event["host"] for event in events)}),
            }
        return []

    def tables(self) -> Tables:
        return {"views": in_order(self._rows)}


class Visitors(Model):
    """page -> its hosts, in the order of their batches.  A batch emits only pages with new hosts, so a second run shows."""

    sink = "attempts"

    def __init__(self, way: str) -> None:
        self._way = way
        self._hosts: dict[str, list[str]] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        emissions = []
        for page, events in by("page", rows).items():
            known = self._hosts.setdefault(page, [])
            if new := sorted({event["host"] for event in events} - set(known)):
                known += new
                emissions.append({"page": page, "visitors": len(known)})
        return emissions

    def tables(self) -> Tables:
        def shown(page: str, hosts: list[str]) -> Rows:
            if self._way == "by_map":
                return [{"page": page, "host": host, "seen": True} for host in sorted(hosts)]
            return [{"page": page, "index": n, "host": host} for n, host in enumerate(hosts)]

        pages, table = sorted(self._hosts.items()), f"visitors_{self._way}"
        return {
            f"{table}_hosts": [row for page, hosts in pages for row in shown(page, hosts)],
            f"{table}_count": [{"page": page, "visitors": len(hosts)} for page, hosts in pages],
        }


class Groups(Kind):
    """`salted`, and the ways of examples/visitors.py that keep hosts in variables."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.events = Files(folder / "in")
        self.inputs = [self.events]
        self.jobs = {"views": Views(), **{f"visitors_{way}": Visitors(way) for way in ("by_map", "by_list")}}

    def feed(self) -> None:
        first = len(self.events.rows) * ROWS_A_FILE
        pages = {n: "/hot" if n % 2 else f"/{self.chance.randrange(40)}" for n in range(first, first + ROWS_A_FILE)}
        self.events.add([{"n": n, "page": page, "host": f"h{self.chance.randrange(60)}"} for n, page in pages.items()])

    def tried(self) -> bool:
        """One group is hot, and its rows were split."""
        return len(millpond.HotKeys(self.pond, "views").found()) == 1

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        from pyspark.sql import functions as sf

        visitors = example("visitors")
        events, pond = read(spark, folder / "in", "n long, page string, host string"), folder / "pond"
        hot = millpond.HotKeys(pond, "views", share=0.2)
        aggregates = [sf.count("*").alias("hits"), sf.sum("n").alias("numbers"), sf.collect_set("host").alias("hosts")]
        views = millpond.salted(events, by=["page"], salts=4, source=["n"], hot=hot).agg(*aggregates)
        yield millpond.start(views, table="views", pond=pond, partitions=PARTITIONS)
        for way in ("by_map", "by_list"):
            yield visitors.start(events, way, pond, **attempts(folder, f"visitors_{way}"))
