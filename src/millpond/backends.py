"""What a package needs that keeps replicas in a store of its own: see docs/backends.md.

A backend is a class with the methods of `Backend`.  `millpond.testing.BackendContract` says whether
it keeps what they promise.
"""

from __future__ import annotations

from millpond.errors import ReplicaError
from millpond.replica.backends.base import Backend, Snapshot, WriteBatch
from millpond.replica.record import (
    ReplicaRecord,
    StoresRecord,
    decode_record,
    encode_record,
    encode_stores,
    parse_stores,
)
from millpond.settings import ReplicaSettings

__all__ = [
    "Backend",
    "ReplicaError",
    "ReplicaRecord",
    "ReplicaSettings",
    "Snapshot",
    "StoresRecord",
    "WriteBatch",
    "building",
    "decode_record",
    "encode_record",
    "encode_stores",
    "parse_stores",
]


def building() -> ReplicaError:
    """What `Snapshot.record` raises as long as no batch was written."""
    return ReplicaError("REPLICA_BUILDING", "The replica is being built; nothing can be read yet.", hint="Ask again in a moment.")
