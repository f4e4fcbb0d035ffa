"""All processes of the chaos, and their commands."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from chaos.clocks import Clocks
from chaos.job import STATES
from chaos.topic import fill_topic
from chaos.weather import Network
from servers.kafka import KafkaBroker, connector_jars
from servers.ports import free_port
from servers.s3 import BUCKET, environment, moto_server
from servers.s3a import fetched_s3a_jars
from servers.spark_cluster import SparkCluster
from soak.processes import Process, children_of, python, signal_if_there

SHARDS, COPIES = 3, 2
# The network lets some requests hang.
_IMPATIENT = {"MILLPOND_REQUEST_SECONDS": "1"}
TOPIC, SENT = "events", "sent"


class Town:
    """A broker, S3, a cluster and its job, servers of shards, a router, a server with a console, a sender, and those who ask.

    processes:  name -> process; the broker comes first, those who ask last
    logs:       the log of each who asks
    """

    def __init__(self, folder: Path, home: Path, seed: int, *, records: int) -> None:
        self._folder, self._home, self._seed = folder, home, seed
        self._jars = [connector_jars(), fetched_s3a_jars()]
        self.clocks = Clocks(folder / "clocks")
        self.broker = KafkaBroker()
        self.broker.start()
        fill_topic(self.broker.address, TOPIC, seed, records)
        self.broker.kill()
        self.broker_address = self.broker.address
        s3 = moto_server(1000)
        os.environ.update(environment(s3) | {"MILLPOND_REQUEST_SECONDS": "30"})  # this process asks S3 itself
        self.cluster = SparkCluster(folder / "cluster")
        ports = [free_port() for _ in range(SHARDS * COPIES)]
        self.network = Network(s3, seed, ports)
        bucket = f"{BUCKET}/{uuid.uuid4().hex}"
        self.pond, self.scratch = f"s3://{bucket}/pond", f"s3://{bucket}/scratch"
        self.checkpoint = f"{self.pond}/jobs/views/checkpoint"
        self.state = list(STATES)[seed % len(STATES)]
        self.router, self.whole = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self.processes: dict[str, Process] = {}
        self.logs: dict[str, Path] = {}
        self._build(ports)

    def _build(self, ports: list[int]) -> None:
        cluster = self.cluster.environment
        self._add("broker", self.broker.command)
        self._add("master", self.cluster.master_command(), **cluster)
        for number in range(2):
            self._add(f"worker-{number}", self.cluster.worker_command(), **cluster)
        self._add("job", self._job_command(), MILLPOND_HOME=str(self._folder / "job-home"))
        for number, port in enumerate(ports):
            shard = f"{number // COPIES + 1}/{SHARDS}"
            self._serve(f"shard-{number // COPIES + 1}-{number % COPIES}", port, "--shard", shard, "--no-sql", "--no-console")
        self._serve("console", int(self.whole.rpartition(":")[2]))
        route = [*python("millpond.cli", "route", *self.network.links), "--port", self.router.rpartition(":")[2]]
        self._add("router", route, has_clock=True)
        send = python("millpond.cli", "send", self.pond, "views", "--resync")
        send += ["--to", f"kafka://{self.broker_address}/{SENT}?form=changelog", "--replica-dir", str(self._home / "sender")]
        options = self._folder / "send-options"
        options.write_text("topic.partitions=2\n")
        self._add("sender", [*send, "--target-options", str(options)], has_clock=True)
        self._ask("asks-router", "soak.reader", "asks-router", "router", self.router, "")
        self._ask("asks-shards", "soak.reader", "asks-shards", "shards", ",".join(self.network.links), "")
        self._ask("asks-console", "soak.reader", "asks-console", "http", self.whole, "")
        self._ask("looks-at-console", "chaos.visitor", self.whole)
        self._ask("saves", "chaos.saver", self.pond, self.scratch)

    def _job_command(self) -> list[str]:
        words = [self.broker_address, TOPIC, self.pond.replace("s3://", "s3a://"), self.network.s3, self.cluster.master, self.state]
        program = str(Path(__file__).with_name("job.py"))
        return python("millpond.cli", "run", "--tries", "1000", program, *words, *map(str, self._jars))

    def _serve(self, name: str, port: int, *options: str) -> None:
        command = python("millpond.cli", "serve", self.pond, "--port", str(port), "--replica-dir", str(self._home / name), *options)
        self._add(name, command, has_clock=True)

    def _ask(self, name: str, module: str, *words: str) -> None:
        self.logs[name] = self._folder / f"{name}.answers"
        self._add(name, python(module, *words, str(self.logs[name]), str(self._seed)))

    def _add(self, name: str, command: list[str], *, has_clock: bool = False, **variables: str) -> None:
        given = {**environment(self.network.s3), **_IMPATIENT, **variables, **(self.clocks.environment(name) if has_clock else {})}
        self.processes[name] = Process(name, lambda: command, self._folder / f"{name}.log", given)

    def driver(self) -> list[int]:
        """The ids of the job's program and of its JVM, which `millpond run` has started in a group of their own."""
        job = self.processes["job"]
        return [pid for child in children_of(job.pid) for pid in (child, *children_of(child))] if job.alive() else []

    def executors(self) -> list[int]:
        """The ids of the executors of all workers."""
        found: list[int] = []
        for name in ("worker-0", "worker-1"):
            worker = self.processes[name]
            if worker.alive():
                found += [pid for child in children_of(worker.pid) for pid in (child, *children_of(child)) if _is_executor(pid)]
        return found

    def end(self) -> None:
        """Kill what isn't among the processes."""
        for pid in self.driver():
            signal_if_there(pid, 9)
        self.network.end()
        self.broker.remove()


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
