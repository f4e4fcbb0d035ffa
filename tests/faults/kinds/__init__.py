"""The kinds of jobs that are killed."""

from __future__ import annotations

from faults.kind import Kind
from faults.kinds.broadcast import Broadcast, Models
from faults.kinds.buckets import Aggregates
from faults.kinds.buffered import Buffered
from faults.kinds.entity import Entity
from faults.kinds.groups import Groups
from faults.kinds.requests import Sessions, Timers
from faults.kinds.topic import Kafka

KINDS: dict[str, type[Kind]] = {
    kind.__name__.lower(): kind for kind in (Broadcast, Models, Buffered, Entity, Timers, Groups, Sessions, Aggregates, Kafka)
}
