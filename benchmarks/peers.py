"""Other people's servers, started for one benchmark: on free ports, in a folder of their own, ended with it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

from running import free_port, listens, running

SOURCES = Path(__file__).parent / "kafka_streams"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


# ---------------------------------------------------------------- Kafka Streams


@contextlib.contextmanager
def kafka_streams(rows: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, int]]:
    """The address and process id of a Kafka Streams application that answers for these rows, page -> (hits, bytes, visitors).

    A broker of its own runs beside it.  The topic has one partition, so that a key is looked for in one store.
    """
    from servers.kafka import kafka_broker

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        classpath = _compiled(Path(folder))
        broker, port = kafka_broker(), free_port()
        last = _fill(broker, "page_views", rows)
        command = ["java", "-Dsun.net.httpserver.nodelay=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classpath]
        command += ["QueryServer", broker, "page_views", f"{folder}/state", str(port), last]
        with running("The Kafka Streams application", command, lambda: listens(port)) as pid:
            yield f"http://127.0.0.1:{port}", pid


def broker_address() -> str:
    """The address of the broker, which runs until this program ends."""
    from servers.kafka import kafka_broker

    return kafka_broker()


def _compiled(folder: Path) -> str:
    """The class path of the application, compiled into a folder."""
    for program in ("mvn", "javac"):
        if shutil.which(program) is None:
            raise SystemExit(f"This needs {program}: apt-get install maven default-jdk-headless")
    jars = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond-tests" / "kafka-streams-4.1.0-1"
    if not jars.is_dir():
        part = jars.with_name(f"{jars.name}.{os.getpid()}")
        maven = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        subprocess.run(maven, check=True, stdin=subprocess.DEVNULL)
        part.rename(jars)
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(SOURCES / "QueryServer.java")], check=True)
    return f"{folder}:{jars}/*"


def _fill(broker: str, topic: str, rows: dict[str, tuple[int, int, int]]) -> str:
    """Send rows to a new topic; the key that was sent last."""
    import struct

    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    compacted = NewTopic(topic, num_partitions=1, replication_factor=1, config={"cleanup.policy": "compact"})
    admin.create_topics([compacted])[topic].result(60)
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    page = ""
    for page, numbers in rows.items():
        producer.produce(topic, key=page, value=struct.pack(">qqq", *numbers))
        producer.poll(0)
    assert producer.flush(120) == 0
    return page


# ---------------------------------------------------------------- sinks


@contextlib.contextmanager
def redis_server() -> Iterator[tuple[int, int]]:
    """The port and process id of a Redis that writes nothing to disk, which is its fastest setting."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("This needs redis-server: apt-get install redis-server")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no"]
        with running("Redis", command, lambda: listens(port)) as pid:
            yield port, pid


@contextlib.contextmanager
def postgres_server() -> Iterator[tuple[str, int]]:
    """A connection string and the process id of a PostgreSQL that doesn't wait for the disk at a commit, with room in memory."""
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        owner = pwd.getpwnam(user)
        os.chmod(folder, 0o755)
        data, port = Path(folder) / "data", free_port()
        data.mkdir()
        os.chown(data, owner.pw_uid, owner.pw_gid)
        data.chmod(0o700)
        as_owner = {"user": user, "group": owner.pw_gid} if os.geteuid() == 0 else {}
        make = [_postgres("initdb"), "-D", str(data), "-U", "millpond", "--auth=trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, **as_owner)  # type: ignore[call-overload]
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "synchronous_commit": "off",
            "shared_buffers": "1GB",
            "max_wal_size": "8GB",
            "checkpoint_timeout": "30min",
            "temp_buffers": "256MB",
        }
        command = [_postgres("postgres"), "-D", str(data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        options = {"stderr": subprocess.DEVNULL, "ended_by": SIGINT}  # ends at once, its sessions with it
        with running("PostgreSQL", command, lambda: _accepts(port), **options, **as_owner) as pid:
            yield f"host=127.0.0.1 port={port} user=millpond dbname=postgres", pid


def _accepts(port: int) -> bool:
    ready = [_postgres("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(ready, check=False).returncode == 0


def _postgres(program: str) -> str:
    """A program of the newest PostgreSQL that is installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = str(folders[-1] / program) if folders else shutil.which(program)
    if found is None or not os.access(found, os.X_OK):
        raise SystemExit(f"This needs {program}: apt-get install postgresql")
    return found
