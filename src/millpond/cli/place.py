"""Where a command reads: a pond or checkpoint, or a server, with the same reads and errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
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
# How many tables an error names.
_SHOWN = 20


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
def open_table(place: str, name: str | None, reading: Reading, bounds: Bounds | None = None) -> Iterator[AnyTable]:
    """One table; errors of other jobs don't matter if it is named.

    name:    None for the only table there is, and so is COLUMN=VALUE, which no table is called
    bounds:  of the read; their wait also applies to a pond or table that doesn't exist yet
    Raises:  as `open_place`, `only_table`; UNKNOWN_TABLE.
    """
    named = None if may_be_left_out(name) else name
    with open_place(place, reading, table=named, arrival_seconds=bounds.wait_seconds if bounds else 0.0) as pond:
        found = named or which_table(name, pond.tables())
        yield pond.now(found) if isinstance(pond, Pond) else pond[found]


def may_be_left_out(name: str | None) -> bool:
    """Whether what stands at the table's place may be the first COLUMN=VALUE, or nothing."""
    return name is None or "=" in name


def which_table(name: str | None, tables: Sequence[str]) -> str:
    """The table of this name, or the only one.  Raises UNKNOWN_TABLE if there is none, INVALID_REQUEST if there are several."""
    if name in tables or len(tables) == 1:
        return name if name is not None and name in tables else tables[0]
    if not tables:
        raise RequestError("UNKNOWN_TABLE", "There is no table yet.", hint="A table is known from the first committed batch on.")
    some = ", ".join(tables[:_SHOWN]) + (", …" if len(tables) > _SHOWN else "")
    raise RequestError(
        "INVALID_REQUEST", f"TABLE is left out, and there are {len(tables)} tables.", hint=f"Name one of them: {some}."
    )


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
