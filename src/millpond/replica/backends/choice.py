"""Which backend a replica is kept in, by its name: `lmdb`, or one that a package offers.

A package names a function in the entry points `millpond.backends`:

    [project.entry-points."millpond.backends"]
    rocksdict = "millpond_rocksdict:open_backend"

`open_backend(path, settings)` opens the generation in an existing, perhaps empty folder, as a
`base.Backend`.  A folder is opened once per process at a time, and shared.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from millpond.errors import ReplicaError, RequestError
from millpond.replica.backends.base import Backend
from millpond.replica.backends.lmdb import open_backend
from millpond.settings import ReplicaSettings

LMDB = "lmdb"
_GROUP = "millpond.backends"
OpenBackend = Callable[[Path, ReplicaSettings], Backend]
"""Raises FileNotFoundError if the folder doesn't exist."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend by its name.

    is_shared:  whether other processes may read what one process follows
    """

    name: str
    open: OpenBackend
    is_shared: bool


def choose_backend(name: str = LMDB) -> BackendChoice:
    """The backend of that name.

    Raises:  INVALID_REQUEST if no installed package has it; what importing the package raises.
    """
    if name == LMDB:
        return BackendChoice(LMDB, open_backend, True)
    with _lock:
        known = _chosen.get(name)
        if known is None:
            found = [entry for entry in entry_points(group=_GROUP) if entry.name == name]
            if not found:
                names = sorted({LMDB, *(entry.name for entry in entry_points(group=_GROUP))})
                raise RequestError(
                    "INVALID_REQUEST",
                    f"No backend is called {name[:80]!r}.",
                    hint=f"Take one of {', '.join(names)}; or install the package that has it.",
                    backend=name[:80],
                )
            opener: OpenBackend = found[0].load()
            known = _chosen[name] = BackendChoice(name, _once(opener), bool(getattr(opener, "is_shared", False)))
    return known


_chosen: dict[str, BackendChoice] = {}
_lock = threading.Lock()


def _once(opener: OpenBackend) -> OpenBackend:
    """The same function, which gives all who open a folder in this process the same backend."""
    opened: weakref.WeakValueDictionary[str, Backend] = weakref.WeakValueDictionary()
    lock, process = threading.Lock(), os.getpid()

    def open_once(path: Path, settings: ReplicaSettings) -> Backend:
        if os.getpid() != process:
            raise ReplicaError(
                "REPLICA_CLOSED",
                "This process was forked from one that has opened replicas.",
                hint="Start processes with the `spawn` method.",
            )
        name = os.path.realpath(path)
        with lock:
            backend = opened.get(name)
            if backend is None:
                if not path.is_dir():
                    raise FileNotFoundError(path)
                backend = opened[name] = opener(path, settings)
            return backend

    return open_once
