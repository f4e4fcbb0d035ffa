"""A Kafka broker for each process that runs tests, and the jars that Spark needs to read from it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from millpond.spark.java import require_java
from servers.maven import dependency, fetched_jars
from servers.ports import free_port
from suite.waiting import wait_until

VERSION = "4.1.0"
CONNECTOR = "4.2.0"
# A list, because not every registry has all that the connector's pom names; Spark has the rest itself.
_JARS = [
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0",
]
# Any id will do: 16 bytes in base64url.
CLUSTER = "bWlsbHBvbmQtdGVzdHMwMQ"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.backoff.ms=200
log.dirs={folder}/log
"""


@cache
def kafka_broker() -> str:
    """The address of a broker.  Skips the test if Maven can't fetch it."""
    broker = KafkaBroker()
    atexit.register(broker.remove)
    broker.start()
    return broker.address


class KafkaBroker:
    """A broker that can be killed and started again, with its data.  Skips the test if Maven can't fetch it.

    command:  starts it
    """

    def __init__(self) -> None:
        jars = fetched_jars(
            f"kafka-{VERSION}-1",
            [dependency(f"org.apache.kafka:kafka_2.13:{VERSION}"), dependency("org.slf4j:slf4j-simple:1.7.36")],
        )
        self._java = [str(require_java()), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True)
        self._port, controller = free_port(), free_port()
        self._properties = Path(self._folder.name) / "server.properties"
        self._properties.write_text(_PROPERTIES.format(port=self._port, controller=controller, folder=self._folder.name))
        storage = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)]
        subprocess.run(storage, check=True, capture_output=True, timeout=120)
        self.command = [*self._java, "kafka.Kafka", str(self._properties)]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = Path(self._folder.name) / "broker.log"
        with log.open("w") as out:
            broker = self._process = subprocess.Popen(self.command, stdout=out, stderr=out)
        wait_until(
            self.listens,
            "a broker that takes connections",
            seconds=120,
            unless=lambda: broker.poll() is not None and (log.read_text()[-3000:] or "nothing said"),
        )

    def listens(self) -> bool:
        """Whether it takes connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=20):
            return True
        return False

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Kill it: nobody needs its data."""
        self.kill()
        self._folder.cleanup()


def connector_jars() -> Path:
    """A folder with Spark's connector to Kafka.  Skips the test if Maven can't fetch it."""
    return fetched_jars(f"spark-kafka-{CONNECTOR}-1", [dependency(jar, alone=True) for jar in _JARS])


def create_topic(broker: str, topic: str, partitions: int) -> None:
    """Create a topic, and wait until it is there."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    (created,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    created.result(60)
