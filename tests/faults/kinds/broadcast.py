"""Each record meets rules or models, which are put, removed and swapped while the job runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond
from faults.fed import Files, Row, Rows
from faults.job import PARTITIONS, read, to_files
from faults.kind import Kind
from faults.undisturbed import Model, Planned, Tables, in_order
from inputs.small_models import linear


def match(events: Any, control: Any) -> Any:
    """The rules that each event passes, with their values."""
    rules = sorted((rule, row["least"]) for rule, row in control.items())
    met = [",".join(f"{rule}>{least}" for rule, least in rules if amount > least) for amount in events["amount"]]
    return events.assign(rules=met)


class Control(Model):
    """Control state: the row of each key, and all versions.

    table:  the beginning of the names of the job's tables
    key:    the column of the control records that is their key
    """

    sink = "files"

    def __init__(self, table: str, key: str, current: str = "control") -> None:
        self.table, self.key, self._current = table, key, current
        self.control: dict[str, Row] = {}
        self.versions: Rows = []

    def change(self, planned: Planned, record: Row, values: Row) -> None:
        """Take a control record that puts or removes."""
        key, action, before = record[self.key], record["action"], self.control.pop(record[self.key], None)
        row = {"version": len(self.versions) + 1, **values, "since": planned.started_ms, "since_batch": planned.batch}
        row["replaced"] = before and before["version"]
        if action == "put":
            self.control[key] = {self.key: key, **row}
        self.versions.append({**row, self.key: key, "action": action, "removed": action == "remove"})

    def tables(self) -> Tables:
        names = {self._current: in_order(self.control), "versions": list(self.versions)}
        return {f"{self.table}_{name}": rows for name, rows in names.items()}

    def tried(self) -> bool:
        return len(self.versions) > 2


class Rules(Control):
    """rule -> its row."""

    def take(self, planned: Planned, rows: Rows) -> Rows:
        for record in sorted((row for row in rows if "seq" in row), key=lambda row: row["seq"]):
            self.change(planned, record, {"least": record["least"]})
        events = [row for row in rows if "id" in row]
        rules = [(rule, row["least"]) for rule, row in sorted(self.control.items())]
        return [
            {
                **event,
                "rules": ",".join(f"{rule}>{least}" for rule, least in rules if event["amount"] > least),
                "control_version": len(self.versions),
            }
            for event in events
        ]


class Broadcast(Kind):
    """`broadcast` alone."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.events, self.rules = Files(folder / "events"), Files(folder / "rules")
        self.inputs, self.jobs = [self.events, self.rules], {"matched": Rules("matched", "rule")}
        self._there: set[str] = set()
        self._seq = 0

    def feed(self) -> None:
        if self.chance.random() < 0.5:
            self.rules.add([self._record() for _ in range(self.chance.randrange(1, 4))])
        first = len(self.events.rows) * 20
        self.events.add([{"id": n, "amount": self.chance.randrange(100)} for n in range(first, first + 20)])

    def _record(self) -> Row:
        self._seq += 1
        rule = f"r{self.chance.randrange(6)}"
        if rule in self._there and self.chance.random() < 0.3:
            self._there.remove(rule)
            return {"rule": rule, "least": None, "action": "remove", "seq": self._seq}
        self._there.add(rule)
        return {"rule": rule, "least": self.chance.randrange(100), "action": "put", "seq": self._seq}

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        matched = millpond.broadcast(
            read(spark, folder / "events", "id long, amount long"),
            read(spark, folder / "rules", "rule string, least long, action string, seq long"),
            match,
            output="id long, amount long, rules string",
            key="rule",
            order="seq",
            shards=2,
            partitions=PARTITIONS,
        )
        yield millpond.start(matched, table="matched", pond=folder / "pond", **to_files(folder, "matched"))


class Served(Control):
    """type -> the model that serves it; version -> how many records it has scored."""

    unknown = frozenset({"average", "duration_seconds", "fastest", "seconds", "slowest"})

    def __init__(self) -> None:
        super().__init__("model", "type", "models")
        self._statistics: dict[tuple[str, int], dict[str, Any]] = {}
        self._weights = (0, 0)

    def take(self, planned: Planned, rows: Rows) -> Rows:
        for record in sorted((row for row in rows if "weights" in row), key=lambda row: row["seq"]):
            values = {
                name: record.get(name) for name in ("name", "description", "format", "share", "shadow", "sha256", "size_bytes")
            }
            self.change(planned, record, values)
            self._weights = record["weights"]
            serving = {"version": len(self.versions), "since": planned.started_ms, "usage": 0, "errors": 0}
            row = {"type": "all", "name": record["name"], "description": record["description"], **serving}
            self._statistics[record["name"], len(self.versions)] = row
        records, serving = [row for row in rows if "id" in row], self.control.get("all")
        if serving is None:
            return [
                {**row, "result": None, "model": None, "model_version": None, "error": "no model serves 'all'"} for row in records
            ]
        name, version = serving["name"], serving["version"]
        counted = self._statistics[name, version]
        self._statistics[name, version] = {**counted, "usage": counted["usage"] + len(records)}
        (a, b), emissions = self._weights, {"model": name, "model_version": version, "error": None}
        return [{**row, "result": float(a * row["a"] + b * row["b"]), **emissions} for row in records]

    def tables(self) -> Tables:
        statistics = [row for _, row in sorted(self._statistics.items())]
        return {**super().tables(), "model_statistics": statistics, "model_model_errors": []}


class Published(Files):
    """A folder into which models are published."""

    def publish(self, weights: tuple[int, int]) -> None:
        """The next model."""
        number, content = len(self.rows) + 1, linear(list(map(float, weights)), 0.0)
        said = {"name": f"model{number}", "description": f"{weights}"}
        published = millpond.publish_model(self.folder, content, **said)
        row = {"type": "all", "action": "put", "format": "onnx", **said, "sha256": published.sha256, "size_bytes": len(content)}
        self.rows[published.record.rsplit("/", 1)[-1]] = [{**row, "seq": number, "weights": weights}]


class Models(Kind):
    """`serve_models`."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.records, self.published = Files(folder / "records"), Published(folder / "published")
        self.inputs, self.jobs = [self.records, self.published], {"model": Served()}

    def feed(self) -> None:
        first = len(self.records.rows) * 20
        if first and self.chance.random() < 0.5:
            self.published.publish((len(self.published.rows) + 1, self.chance.randrange(-50, 50)))
        self.records.add([{"id": n, "a": float(n % 7), "b": float(n % 11)} for n in range(first, first + 20)])

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        scored = millpond.serve_models(
            read(spark, folder / "records", "id long, a double, b double"),
            millpond.read_models(spark, folder / "published"),
            pond=folder / "pond",
            inputs=["a", "b"],
            shards=2,
            partitions=PARTITIONS,
        )
        yield millpond.start(scored, table="model", pond=folder / "pond", **to_files(folder, "model"))
