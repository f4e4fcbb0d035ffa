"""What a follower has done since it began, and clocks for what it does now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class FollowerCounts:
    """A follower's counts since it began."""

    batches_applied: int = 0
    rows_applied: int = 0
    apply_seconds: float = 0.0
    batches_aside: int = 0
    bootstraps: int = 0
    bootstrap_records: int = 0
    bootstrap_seconds: float = 0.0
    errors: int = 0


@dataclass(slots=True)
class Clock:
    """Is due at most once in `seconds`."""

    seconds: float
    last: float = field(default=0.0)

    def due(self) -> bool:
        """Whether it is due, and then not again for so long."""
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True
