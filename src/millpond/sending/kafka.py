"""A Kafka topic, by transactions.  The only module that imports confluent_kafka.

    <topic>                        compacted: key -> row, and a tombstone when it is gone
                                   changelog: key -> change, with the old and the new row
    <topic>.<sender>.position      the position after each transaction, in one partition, compacted

Records and position are of one transaction, so who reads `read_committed` sees each change once.
The transactional id is made of topic and sender's name: a second sender fences the first.
(Rejected: the position as a consumer group's offset.  Brokers forget it after a week without a
consumer.)
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from millpond.errors import MillpondError, RequestError, library_missing
from millpond.sending.target import Part, SentPosition, Shape, Target, decode_position, mismatch
from millpond.tables.history.changes import RowChange

_REQUEST_SECONDS = 10.0
_COMMIT_SECONDS = 20.0
_DEFAULTS = {
    "enable.idempotence": "true",
    "linger.ms": "5",
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # as Java's producers
    # Time for a whole read in one transaction.  Brokers allow up to 15 minutes.
    "transaction.timeout.ms": "300000",
}
_OWN = frozenset({"bootstrap.servers", "transactional.id", "enable.idempotence"})
_COMPACTED = {"cleanup.policy": "compact"}
_POSITIONS = {**_COMPACTED, "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.01"}
_POSITION_KEY = b"position"


class KafkaTarget(Target):
    """One topic; `options` are properties of librdkafka's clients."""

    def __init__(self, brokers: str, topic: str, shape: Shape, *, form: str, options: Mapping[str, str]) -> None:
        super().__init__(f"kafka://{brokers}/{topic}", shape)
        try:
            import confluent_kafka
        except ImportError as missing:
            raise library_missing("confluent-kafka", "kafka") from missing
        if form not in ("compacted", "changelog"):
            raise RequestError("INVALID_REQUEST", f"There is no form {form!r:.40}.", hint="Write form=compacted or form=changelog.")
        positions = f"{topic}.{shape.name}.position"
        if not re.fullmatch(r"[A-Za-z0-9._\-]{1,249}", positions):
            raise RequestError(
                "INVALID_NAME",
                f"Kafka takes no topic {positions!r:.300}.",
                hint="Use letters, digits, ., _ and -, and a shorter --name.",
            )
        if fixed := _OWN & options.keys():
            raise RequestError("INVALID_REQUEST", f"The sender sets {min(fixed)} itself.", hint="Leave it out of the options.")
        self._kafka = confluent_kafka
        self._topic, self._positions, self._form = topic, positions, form
        own = {name: value for name, value in options.items() if not name.startswith("topic.")}
        self._shared: dict[str, Any] = {"bootstrap.servers": brokers, **own}
        self._new_topic = {k.removeprefix("topic."): v for k, v in options.items() if k.startswith("topic.")}
        self._producer: Any = None
        self._in_transaction = False
        self._part = Part(batch=0, run=0)
        self._before: _Keys | None = None

    # ------------------------------------------------------------ errors

    @contextmanager
    def _errors(self) -> Iterator[None]:
        kafka = self._kafka
        try:
            yield
        except kafka.KafkaException as raised:
            raise self._meaning(raised.args[0]) from raised

    def _meaning(self, error: Any) -> MillpondError:
        codes, code = self._kafka.KafkaError, error.code()
        if code in (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH):
            return self._taken()
        refused = (
            codes.TOPIC_AUTHORIZATION_FAILED, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED, codes.MSG_SIZE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE, codes._INVALID_ARG,
            codes.SASL_AUTHENTICATION_FAILED, codes._AUTHENTICATION, codes.POLICY_VIOLATION, codes.INVALID_CONFIG,
            codes.INVALID_TRANSACTION_TIMEOUT,
        )  # fmt: skip
        return self._refused(RuntimeError(error.str())) if code in refused else self._unavailable(error.str())

    # ------------------------------------------------------------ opening

    def open(self, *, resync: bool) -> SentPosition | None:
        """Make topics, fence other senders and end their transactions, and read the position."""
        with self._errors():
            self._make_topics()
            settings = {**_DEFAULTS, **self._shared, "transactional.id": f"millpond.{self._positions}"}
            self._producer = self._kafka.Producer(settings, logger=_quiet())
            self._producer.init_transactions(_COMMIT_SECONDS)
            found = self._last_position()
            if found is None and not resync and self._form == "compacted":
                self._check_empty()
        return None if found is None else decode_position(found, self.shape, self.uri)

    def _check_empty(self) -> None:
        """Raise TARGET_MISMATCH if the topic has rows of somebody else, which a whole read would remove."""
        keys = self._keys_there()
        if keys is not None:
            with closing(keys):
                if next(iter(keys), None) is not None:
                    raise mismatch(self.uri, f"the topic has records, and no position of a sender {self.shape.name!r}")

    def _make_topics(self) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient(self._shared, logger=_quiet())
        there = admin.list_topics(timeout=_REQUEST_SECONDS).topics
        partitions = int(self._new_topic.get("partitions", "-1"))
        copies = int(self._new_topic.get("replication", "-1"))
        wanted = [
            NewTopic(self._topic, partitions, copies, config=_COMPACTED if self._form == "compacted" else {}),
            NewTopic(self._positions, 1, copies, config=_POSITIONS),
        ]
        if missing := [topic for topic in wanted if topic.topic not in there]:
            for created in admin.create_topics(missing, request_timeout=_REQUEST_SECONDS).values():
                try:
                    created.result(_REQUEST_SECONDS)
                except self._kafka.KafkaException as raised:
                    if raised.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                        raise

    def _consumer(self) -> Any:
        settings = {
            **self._shared,
            "group.id": f"millpond.{self._positions}",  # it never joins or commits
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "auto.offset.reset": "earliest",
        }
        return self._kafka.Consumer(settings, logger=_quiet())

    def _last_position(self) -> bytes | None:
        """The newest committed record of the position's topic, searched from its end."""
        with closing(self._consumer()) as consumer:
            place = self._kafka.TopicPartition(self._positions, 0)
            low, high = consumer.get_watermark_offsets(place, timeout=_REQUEST_SECONDS)
            back, found = 16, None
            while found is None and high > low:
                begin = max(low, high - back)
                for message in self._read(consumer, [self._kafka.TopicPartition(self._positions, 0, begin)]):
                    if message.key() == _POSITION_KEY:
                        found = message.value()
                if begin == low:
                    break
                back *= 16
            return found

    def _read(self, consumer: Any, places: list[Any]) -> Iterator[Any]:
        """All committed records from these places to the end.  Raises TARGET_UNAVAILABLE."""
        consumer.assign(places)
        left, silent_since = len(places), time.monotonic()
        while left:
            message = consumer.poll(0.5)
            if message is None:
                if time.monotonic() - silent_since > _REQUEST_SECONDS:
                    raise self._unavailable("the end of a topic can't be read")
                continue
            error, silent_since = message.error(), time.monotonic()
            if error is None:
                yield message
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                left -= 1
            else:
                raise self._meaning(error)

    # ------------------------------------------------------------ the transaction

    def begin(self, part: Part) -> None:
        """Begin; before a whole read of a compacted topic, note which keys it has."""
        self._part, self._before = part, None
        with self._errors():
            if part.whole and self._form == "compacted":
                self._before = self._keys_there()
            self._producer.begin_transaction()
        self._in_transaction = True

    def _keys_there(self) -> _Keys | None:
        with closing(self._consumer()) as consumer:
            known = consumer.list_topics(self._topic, timeout=_REQUEST_SECONDS).topics[self._topic]
            if known.error is not None:
                raise self._meaning(known.error)
            topic = self._kafka.TopicPartition
            ends = [
                consumer.get_watermark_offsets(topic(self._topic, number), timeout=_REQUEST_SECONDS) for number in known.partitions
            ]
            if all(low == high for low, high in ends):
                return None
            keys = _Keys()
            places = [topic(self._topic, number, low) for number, (low, _) in zip(known.partitions, ends, strict=True)]
            for message in self._read(consumer, places):
                if message.key() is not None:
                    (keys.drop if message.value() is None else keys.add)(message.key())
            return keys

    def add(self, changes: list[RowChange]) -> None:
        """Produce a record for each change."""
        shape, compacted, keep = self.shape, self._form == "compacted", self.shape.keep_expired
        with self._errors():
            for change in changes:
                key = shape.key_json(change.row)
                if not compacted:
                    value: bytes | None = shape.change_json(change, self._part)
                else:
                    stays = change.new is not None or (keep and change.kind == "expire")
                    value = shape.row_json(change.row) if stays else None
                    if self._before is not None and stays:
                        self._before.drop(key)
                self._produce(self._topic, key, value)

    def _produce(self, topic: str, key: bytes, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(topic, key=key, value=value)
            except BufferError:  # the queue is full
                self._wait_for_delivery(below=len(self._producer) // 2)
            else:
                return

    def _wait_for_delivery(self, *, below: int) -> None:
        """Wait until fewer records are in the queue.  Raises TARGET_UNAVAILABLE if none leaves it for a while."""
        left, since = len(self._producer), time.monotonic()
        while left > below:
            self._producer.poll(0.05)
            now = len(self._producer)
            if now < left:
                left, since = now, time.monotonic()
            elif time.monotonic() - since > _REQUEST_SECONDS:
                raise self._unavailable(f"{left} records aren't delivered")

    def commit(self, position: SentPosition) -> None:
        """Commit records and position."""
        with self._errors():
            if self._before is not None and not self.shape.keep_expired:
                for key in self._before:
                    self._produce(self._topic, key, None)
            self._produce(self._positions, _POSITION_KEY, position.encode())
            self._wait_for_delivery(below=0)
            self._commit()
        self._in_transaction = False
        self._drop_keys()

    def _commit(self) -> None:
        deadline = time.monotonic() + _COMMIT_SECONDS
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
            except self._kafka.KafkaException as raised:
                if not raised.args[0].retriable() or time.monotonic() >= deadline:
                    raise
            else:
                return

    def _drop_keys(self) -> None:
        if self._before is not None:
            self._before.close()
            self._before = None

    def close(self) -> None:
        """Abort an open transaction, if the broker answers soon; the next `open` ends it otherwise."""
        producer, self._producer = self._producer, None
        if producer is not None:
            if self._in_transaction:
                with suppress(self._kafka.KafkaException):
                    producer.abort_transaction(2.0)
            producer.purge()
        self._in_transaction = False
        self._drop_keys()


class _Keys:
    """A set of keys on disk."""

    def __init__(self) -> None:
        # Without a name SQLite puts it into a file that is deleted with the connection.
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.execute("CREATE TABLE keys (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, key: bytes) -> None:
        self._database.execute("INSERT OR IGNORE INTO keys VALUES (?)", (key,))

    def drop(self, key: bytes) -> None:
        self._database.execute("DELETE FROM keys WHERE key = ?", (key,))

    def __iter__(self) -> Iterator[bytes]:
        return (row[0] for row in self._database.execute("SELECT key FROM keys ORDER BY key"))

    def close(self) -> None:
        self._database.close()


def _quiet() -> Any:
    """A logger that shows nothing: the sender logs errors, once."""
    import logging

    logger = logging.getLogger("millpond.sending.librdkafka")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger
