"""Models come on one topic of a real broker, records on another: each row is compared with the model that it names.

The job is the manual's own code (docs/models.md), and so is the client that sends a large model and reads what became of it.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import millpond
from faults.fed import sink_rows
from inputs.manual import code_below
from inputs.small_models import linear
from servers.kafka import connector_jars, create_topic, kafka_broker
from soak.processes import Process
from suite.waiting import wait_until

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long]
PARTITIONS = 3
# A loaded machine takes seconds for a batch.
WAIT = 120


class Version(NamedTuple):
    """A line of the table of versions."""

    version: int
    type: str
    action: str
    name: str | None
    description: str | None
    batch: int


class Serving:
    """A running job, the pond that follows it, and all that was sent.

    weights:  description -> the model's weights of a and b
    written:  id -> record
    """

    def __init__(self, broker: str, jars: Path, folder: Path) -> None:
        from confluent_kafka import Producer

        self.folder = folder
        self.pond: millpond.Pond
        self.weights: dict[str, tuple[float, float]] = {}
        self.written: dict[int, dict[str, Any]] = {}
        self.broker, self._producer = broker, Producer({"bootstrap.servers": broker, "linger.ms": 20})
        self._ids = itertools.count()
        self._sending = threading.Lock()
        program = [sys.executable, str(Path(__file__).with_name("models_job.py")), str(jars), broker]
        self.log = folder / "job.log"
        self.job = Process("job", lambda: ["env", "-C", str(folder), *program], self.log)

    def send(self, topic: str, *records: tuple[str | None, bytes | None]) -> list[str]:
        """Write these (key, value) at once; returns the place of each on the broker, such as "models:0:17"."""
        places: dict[int, str] = {}

        def delivered(number: int, error: Any, message: Any) -> None:
            assert error is None, error
            places[number] = f"{topic}:{message.partition()}:{message.offset()}"

        with self._sending:
            for number, (key, value) in enumerate(records):
                self._producer.produce(topic, value, key=key, on_delivery=partial(delivered, number))
            assert self._producer.flush(60) == 0
        return [places[number] for number in range(len(records))]

    def say(self, *said: dict[str, Any]) -> list[str]:
        """Write model records, each with its type as the key."""
        return self.send("models", *((record["type"], json.dumps(record).encode()) for record in said))

    def model(self, type_: str, name: str, by: str = "content") -> dict[str, Any]:
        """A record with a new model."""
        number = len(self.weights) + 1
        description, weights = f"number {number}", (float(number), -0.5 * number)
        self.weights[description] = weights
        content = linear(list(weights), 0.0)
        record = {"type": type_, "name": name, "description": description}
        if by == "content":
            return {**record, "content": base64.b64encode(content).decode()}
        path = self.folder / "pond" / f"{number}.onnx"  # another folder has to be allowed
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return {**record, "uri": str(path)}

    def running(self, type_: str, *places: str) -> millpond.Row:
        """The model that serves a type once the job has read these records."""
        return self.pond["wine_models"].get(type=type_, bounds=millpond.Bounds(contains_offset=places, wait_seconds=WAIT))

    def write(self, kind: str, count: int) -> list[str]:
        """Write records of a kind to all partitions."""
        records = [{"id": n, "kind": kind, "a": float(n % 7), "b": float(n % 11)} for n in itertools.islice(self._ids, count)]
        self.written.update((record["id"], record) for record in records)
        return self.send("records", *((None, json.dumps(record).encode()) for record in records))

    @contextmanager
    def feeding(self, kind: str) -> Iterator[None]:
        """Write records of a kind all the time; at the end, wait until the job has scored all of them."""
        ended, places = threading.Event(), self.write(kind, 1)

        def feed() -> None:
            while not ended.wait(0.02):
                places.extend(self.write(kind, 5))

        thread = threading.Thread(target=feed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        self.pond["wine_models"].count(bounds=millpond.Bounds(contains_offset=places, wait_seconds=WAIT))

    def wait_until_used(self, version: int) -> None:
        """Wait until a version has scored a record."""
        wait_until(
            lambda: any(row["usage"] for row in self.pond["wine_statistics"].scan() if row["version"] == version),
            f"a record that version {version} has scored",
            seconds=WAIT,
            unless=self.job.ended,
        )

    def versions(self, type_: str) -> list[Version]:
        """The versions of a type."""
        found = [
            Version(r["version"], r["type"], r["action"], r["name"], r["description"], r["since_batch"])
            for r in self.pond["wine_versions"].scan()
        ]
        return [v for v in found if v.type == type_]

    def check(self, kind: str) -> None:
        """Check that each record of a kind has one row, by its batch's version and with the result of that version."""
        versions = self.versions(kind)
        scored = [(batch, row) for batch, row in sink_rows(self.folder / "scored") if row["kind"] == kind]
        assert sorted(row["id"] for _, row in scored) == [n for n, record in self.written.items() if record["kind"] == kind]
        for batch, row in scored:
            assert {name: row[name] for name in ("id", "kind", "a", "b")} == self.written[row["id"]]
            met = max((v for v in versions if v.batch <= batch), default=None)
            if met is None or met.action == "remove":
                assert (row["result"], row["model"], row["model_version"]) == (None, None, None)
                assert row["error"] == f"no model serves {kind!r}"
                continue
            assert (row["model"], row["model_version"], row["error"]) == (met.name, met.version, None)
            assert met.description is not None
            a, b = self.weights[met.description]
            assert math.isclose(row["result"], a * row["a"] + b * row["b"], rel_tol=1e-5, abs_tol=1e-5), row
        usage = {row["version"]: row["usage"] for row in self.pond["wine_statistics"].scan(type=kind)}
        used = Counter(row["model_version"] for _, row in scored if row["model_version"] is not None)
        assert {version: n for version, n in usage.items() if n} == used


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    broker, jars, folder = kafka_broker(), connector_jars(), tmp_path_factory.mktemp("models")
    for topic in ("models", "records"):
        create_topic(broker, topic, PARTITIONS)
    running = Serving(broker, jars, folder)
    running.write("nobody's", 3)
    running.job.start()
    try:
        first = folder / "pond" / "jobs" / "wine" / "checkpoint" / "commits" / "0"
        wait_until(first.exists, "the job's first batch", seconds=2 * WAIT, unless=running.job.ended)  # Spark has to start
        with millpond.open(folder / "pond", replica_dir=folder / "home") as pond:
            running.pond = pond
            yield running
    finally:
        running.job.kill()


def test_models_are_swapped_while_records_are_scored(serving: Serving) -> None:
    with serving.feeding("swapped"):
        first = serving.running("swapped", *serving.say(serving.model("swapped", "first")))
        assert (first["name"], first["replaced"]) == ("first", None)
        serving.wait_until_used(first["version"])
        second = serving.running("swapped", *serving.say(serving.model("swapped", "second", by="uri")))
        assert (second["name"], second["replaced"]) == ("second", first["version"])
        serving.wait_until_used(second["version"])
        back = {"type": "swapped", "action": "rollback", "version": first["version"]}
        again = serving.running("swapped", *serving.say(back))
        assert (again["name"], again["sha256"], again["replaced"]) == ("first", first["sha256"], second["version"])
        assert again["version"] > second["version"]
        serving.wait_until_used(again["version"])
        assert not serving.running("swapped", *serving.say({"type": "swapped", "action": "remove"}))
        serving.running("swapped", *serving.write("swapped", 20))  # nobody scores these
        third = serving.running("swapped", *serving.say(serving.model("swapped", "third")))
        serving.wait_until_used(third["version"])
    assert [v.action for v in serving.versions("swapped")] == ["put", "put", "rollback", "remove", "put"]
    serving.check("swapped")
    serving.check("nobody's")


def test_models_of_one_batch_follow_each_other_as_the_broker_has_them(serving: Serving) -> None:
    """The names don't matter (`z` comes before `a`), nor does what is on other partitions."""
    types = [f"order{n}" for n in range(6)]
    said = [serving.model(type_, name) for name in "zmaykb" for type_ in types]
    places = serving.say(*said)
    assert len({place.split(":")[1] for place in places}) > 1
    for type_ in types:
        mine = [record["description"] for record in said if record["type"] == type_]
        assert serving.running(type_, *places)["description"] == mine[-1]
        versions = serving.versions(type_)
        assert [v.description for v in versions] == mine
        # Most of them were in one batch.
        assert Counter(v.batch for v in versions).most_common(1)[0][1] > 2
    serving.running("order0", *serving.write("order0", 10))
    serving.check("order0")


def test_a_record_that_is_no_good_replaces_nothing_and_says_where_it_lies(serving: Serving) -> None:
    good = serving.running("kept", *serving.say(serving.model("kept", "good")))
    fine = {name: value for name, value in serving.model("kept", "bad").items() if name != "description"}
    back = {"type": "kept", "action": "rollback"}
    bad: list[tuple[str, bytes | None]] = [
        ("type is NULL", None),
        ("type is NULL", b"\xff{"),
        ("type is NULL", json.dumps({"name": "bad"}).encode()),
        ("type is NULL", json.dumps([fine]).encode()[:-2]),
        ("either content or a uri", json.dumps({**fine, "content": None}).encode()),
        ("either content or a uri", json.dumps({**fine, "uri": "/nowhere"}).encode()),
        ("either content or a uri", json.dumps({**fine, "content": "no base64 ###"}).encode()),
        ("doesn't load", json.dumps({**fine, "content": base64.b64encode(b"nonsense").decode()}).encode()),
        ("it takes a matrix", json.dumps({**fine, "content": base64.b64encode(linear([1.0], 0.0)).decode()}).encode()),
        ("doesn't exist", json.dumps({**fine, "content": None, "uri": str(serving.folder / "pond" / "nobody.onnx")}).encode()),
        ("no name", json.dumps({**fine, "name": None}).encode()),
        ("isn't one of put", json.dumps({**fine, "action": "PUT"}).encode()),
        ("a rollback names", json.dumps({**back, "version": 10_000}).encode()),
        ("a rollback names", json.dumps({**back, "version": "one"}).encode()),
    ]
    places = serving.send("models", *(("kept", value) for _, value in bad))
    serving.running("kept", *places, *serving.write("kept", 10))
    assert serving.running("kept", *places)["version"] == good["version"]
    refused = {json.loads(row["record"])["description"]: row["reason"] for row in serving.pond["wine_model_errors"].scan()}
    named = [(reason in refused.pop(place, ""), value) for (reason, value), place in zip(bad, places, strict=True)]
    assert [value for is_named, value in named if not is_named] == []
    assert refused == {}
    serving.check("kept")


def test_a_model_that_no_topic_takes_comes_by_uri(serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaException
    from onnx import ModelProto

    large = ModelProto.FromString(linear([3.0, 4.0], 0.0))
    large.doc_string = "x" * (1 << 20)
    content = large.SerializeToString()
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        serving.say({"type": "red", "name": "forest", "content": base64.b64encode(content).decode()})
    monkeypatch.chdir(serving.folder)  # where the manual's pond is
    Path("model.onnx").write_bytes(content)
    sending, reading = code_below("models.md", "## From Kafka")[1:]
    known: dict[str, Any] = {"bootstrap": serving.broker, "millpond": millpond}
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path))
    for code in (sending, reading):
        exec(code, known)
    assert len(known["places"]) == 1
    assert (known["running"]["name"], known["running"]["size_bytes"]) == ("forest", len(content))
    assert known["running"]["sha256"] == known["digest"]
    assert not [row for row in known["refused"] if row["type"] == "red"]
    (version,) = serving.versions("red")
    assert version.description is not None
    assert version.description in known["places"]
    serving.weights[version.description] = (3.0, 4.0)
    serving.running("red", *serving.write("red", 10))
    serving.check("red")
    # Its bytes are stored once, under the name that both sides computed.
    assert (serving.folder / "pond" / "models" / known["digest"]).read_bytes() == content


def test_a_job_that_is_killed_goes_on_with_the_models_that_it_had(serving: Serving) -> None:
    with serving.feeding("killed"):
        first = serving.running("killed", *serving.say(serving.model("killed", "first", by="uri")))
        serving.wait_until_used(first["version"])
        (serving.folder / "pond" / f"{len(serving.weights)}.onnx").unlink()  # the pond's models have its bytes
        serving.job.kill()
        places = serving.say(serving.model("killed", "second"))
        serving.job.start()
        second = serving.running("killed", *places)
        assert (second["name"], second["replaced"]) == ("second", first["version"])
        serving.wait_until_used(second["version"])
    serving.check("killed")
