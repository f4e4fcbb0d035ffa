"""A standalone Spark cluster: a master and its workers, each a process of its own on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from servers.ports import free_port
from suite.waiting import wait_until


class SparkCluster:
    """The commands of a cluster's processes.

    master:       its address, `spark://…`
    environment:  variables that the processes need.  A master that was killed finds its workers and programs again
    """

    def __init__(self, folder: Path) -> None:
        import pyspark

        from millpond.spark.java import require_java

        require_java()
        folder.mkdir()
        self._folder, self._home = folder, Path(pyspark.__file__).parent
        self._port, self._pages = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder / 'recovery'}"
        self.environment = {
            "SPARK_HOME": str(self._home),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": f"{recovery} -Dspark.deploy.maxExecutorRetries=-1",
        }

    def master_command(self) -> list[str]:
        """The command of the master."""
        place = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._pages)]
        return [str(self._home / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master", *place]

    def worker_command(self) -> list[str]:
        """The command of a worker with one core."""
        place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._folder / "work")]
        size = ["--cores", "1", "--memory", "1g", self.master]
        return [str(self._home / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker", *place, *size]

    def alive_workers(self) -> int:
        """How many workers the master knows that are alive."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._pages}/json/", timeout=60) as page:
                return int(page.read().decode().count('"ALIVE"')) - 1  # the master itself is alive, too
        except OSError:
            return 0


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int) -> Iterator[str]:
    """The master's address, `spark://…`, as soon as all workers have registered; each has one core."""
    cluster = SparkCluster(folder)
    with contextlib.ExitStack() as ends:

        def start(name: str, command: list[str]) -> subprocess.Popen[bytes]:
            log = ends.enter_context((folder / f"{name}.log").open("wb"))
            environment = {**os.environ, **cluster.environment}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
            ends.callback(_end, process)
            return process

        started = {"master": start("master", cluster.master_command())}
        started |= {name: start(name, cluster.worker_command()) for name in (f"worker-{n}" for n in range(workers))}
        wait_until(
            lambda: cluster.alive_workers() >= workers,
            "all workers that the master knows",
            seconds=120,
            unless=lambda: [
                (folder / f"{name}.log").read_text()[-3000:] or name
                for name, process in started.items()
                if process.poll() is not None
            ],
        )
        yield cluster.master


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
