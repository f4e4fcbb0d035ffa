"""The input of the chaos, a topic that is there as a whole from the start, and what Spark planned for each batch of it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

from millpond.checkpoint.log import committed_batches
from millpond.errors import MillpondError
from millpond.storage import open_storage
from servers.kafka import create_topic
from soak.model import JobRun, parse_offsets, rows_of

PARTITIONS = 2
_POLL_SECONDS = 0.25


def fill_topic(broker: str, topic: str, seed: int, records: int) -> None:
    """Write so many records to each partition; record n of partition p has the events of piece n * PARTITIONS + p."""
    from confluent_kafka import Producer

    create_topic(broker, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 20})
    for piece in range(records * PARTITIONS):
        value = json.dumps(rows_of(seed, 0, piece)).encode()
        producer.produce(topic, value, partition=piece % PARTITIONS)
        if piece % 1000 == 0:
            producer.flush(60)
    left = producer.flush(60)
    assert left == 0, f"{left} records didn't arrive"


@contextlib.contextmanager
def _patiently() -> Iterator[None]:
    """An S3 server that is too busy now is asked again later."""
    try:
        yield
    except MillpondError as error:
        if error.condition != "STORAGE_UNAVAILABLE":
            raise


class PlannedBatches:
    """Notes `offsets/N` of each batch in a thread, before Spark's clean-up removes it.  It asks S3 itself, without a fault between.

    failed:  what ended the thread
    """

    def __init__(self, run: JobRun, checkpoint: str) -> None:
        self.run = run
        self.failed: BaseException | None = None
        self._storage = open_storage(checkpoint)
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def newest(self) -> int:
        """The newest batch that was planned, -1 if there is none."""
        return max(self.run.planned, default=-1)

    def note(self) -> None:
        """Note the batches planned so far."""
        with self._lock:
            for name in self._storage.names("offsets"):
                if name.isdigit() and int(name) not in self.run.planned:
                    try:
                        text = self._storage.read(f"offsets/{name}", 1 << 20).decode()
                    except MillpondError as error:
                        if error.condition != "FILE_GONE":
                            raise
                        continue  # Spark has cleaned up this batch meanwhile
                    self.run.planned[int(name)] = parse_offsets(text)

    def committed(self) -> int:
        """The newest committed batch, -1 if there is none, or if S3 is too busy to say so."""
        with _patiently():
            return max(committed_batches(self._storage), default=-1)
        return -1

    def end(self) -> None:
        """Stop watching."""
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_SECONDS):
            try:
                with _patiently():
                    self.note()
            except Exception as error:  # noqa: BLE001 - told by the chaos, which fails then
                self.failed = error
                return
