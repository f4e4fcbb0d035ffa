"""Where a command reads: a pond or checkpoint, or a server, with the same reads and errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import millpond
from millpond.catalogue import wait_for_jobs
from millpond.cli.progress import Progress
from millpond.cli.terminal import say
from millpond.errors import MillpondError, RequestError
from millpond.tables.job.bounds import Bounds
from millpond.tables.pond import Pond
from millpond.tables.table import Table

if TYPE_CHECKING:
    from millpond.client import RemotePond, RemoteTable

    AnyPond: TypeAlias = Pond | RemotePond
    AnyTable: TypeAlias = Table | RemoteTable

_SCHEMES = ("http://", "https://")
# A first replica of a large state takes minutes.
_CATCH_UP_SECONDS = 300.0


def is_server(place: str) -> bool:
    """Whether a place is a server's address."""
    return place.startswith(_SCHEMES)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a place.

    allow:         places outside of a pond that it may name
    wait:          seconds to wait for the answer; None for the default
    server_token:  a token that `millpond token` made, if the server needs one
    """

    allow: tuple[str, ...]
    replica_dir: str | None
    wait: float | None
    server_token: str | None


@contextmanager
def open_table(place: str, name: str, reading: Reading, bounds: Bounds | None = None) -> Iterator[AnyTable]:
    """One table; errors of other jobs don't matter.

    bounds:  of the read; their wait also applies to a pond or table that doesn't exist yet
    Raises:  as `open_place`; UNKNOWN_TABLE.
    """
    with open_place(place, reading, table=name, arrival_seconds=bounds.wait_seconds if bounds else 0.0) as pond:
        yield pond.now(name) if isinstance(pond, Pond) else pond[name]


@contextmanager
def open_place(place: str, reading: Reading, *, table: str | None = None, arrival_seconds: float = 0.0) -> Iterator[AnyPond]:
    """A server's tables, or a pond's after its replicas have all that was committed at the call.

    Progress goes to stderr.

    table:            the table to be read
    arrival_seconds:  how long to wait for a pond, and again for that table, if they don't exist
                      yet; a server waits by itself
    Raises:  what `millpond.open` and `millpond.connect` raise; REPLICA_BEHIND after the timeout.
    """
    if is_server(place):
        if reading.replica_dir is not None or reading.allow:
            raise RequestError(
                "INVALID_REQUEST",
                "A server has the replica and the pond, not this command.",
                hint="Leave --replica-dir and --allow out, or name a path.",
            )
        # The system's certificates, and those that SSL_CERT_FILE names.
        verify = ssl.create_default_context() if place.startswith("https") else False
        with millpond.connect(place, token=reading.server_token, verify=verify) as server:
            yield server
        return
    if arrival_seconds:
        wait_for_jobs(place, arrival_seconds, allow=reading.allow)
    with millpond.open(place, replica_dir=reading.replica_dir, wait_seconds=0, allow=reading.allow) as pond:
        if table is not None and arrival_seconds:
            pond.wait_for_table(table, arrival_seconds)
        _catch_up(pond, _CATCH_UP_SECONDS if reading.wait is None else reading.wait, table)
        yield pond


def _catch_up(pond: Pond, wait_seconds: float, table: str | None) -> None:
    with Progress() as progress:
        try:
            pond.catch_up(wait_seconds, on_progress=progress)
        except MillpondError as error:
            if table is not None:
                pond.catch_up(wait_seconds, on_progress=progress, table=table)
            elif pond.tables():
                say(str(error))
            else:
                raise
