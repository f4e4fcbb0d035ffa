"""Servers to attack, with limits low enough to reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from attack.victim import Victim
from servers.serving import serving, write_certificate
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

TABLE = "job.aggregate_0"
Attacked = Callable[..., Victim]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> WrittenCheckpoint:
    """A job with a table of 20,000 rows with long keys."""
    job = WrittenCheckpoint(tmp_path_factory.mktemp("attacked") / "job")
    commit(job, **{f"key-{n:05}-{'x' * 80}": n for n in range(20_000)})
    return job


def commit(job: WrittenCheckpoint, **values: int | None) -> int:
    """One more batch."""
    job.plan(list(values.items()), snapshot=False)
    job.commit()
    return job.next_batch - 1


@pytest.fixture(scope="module")
def attacked(job: WrittenCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Starts a server with these options, or gives the running one that has the same options."""
    known: dict[tuple[str, ...], Victim] = {}
    with ExitStack() as opened:

        def start(*options: str, token: str | None = None) -> Victim:
            if options not in known:
                home = tmp_path_factory.mktemp("home")
                address, server = opened.enter_context(serving(job.path, *options, home=home))
                known[options] = Victim(address, server.pid)
                headers = {"authorization": f"Bearer {token}"} if token else {}
                with httpx.Client(base_url=address, headers=headers, verify=False, timeout=60) as client:
                    wait_until(lambda: client.get(f"/tables/{TABLE}/count").status_code == 200, f"the table {TABLE}")
            return known[options]

        yield start


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate, and its key."""
    return write_certificate(tmp_path_factory.mktemp("certificate"))
