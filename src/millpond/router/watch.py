"""The batches of a table that all of its shards have, for requests that wait: see `serve.waiting.waits`."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from millpond.errors import MillpondError
from millpond.router.pond import ShardedPond
from millpond.tables.job.bounds import Bounds

# A look waits for so long at the servers, and the next one begins after so long.
_LOOK_SECONDS, _PAUSE_SECONDS = 0.4, 0.02
# Looks at one time: clients may wait for many tables.
_LOOKS = threading.BoundedSemaphore(16)


@dataclass(frozen=True, slots=True)
class ShardBatches:
    """The batches of one table that all shards have."""

    pond: ShardedPond
    name: str

    def look(self, last: int | None) -> tuple[int | None, str]:
        """As `BatchSource.look`."""
        with _LOOKS:
            if last is not None:
                try:
                    return self._common(Bounds(min_batch=last + 1, wait_seconds=_LOOK_SECONDS))
                except MillpondError as error:
                    if error.condition != "NOT_UP_TO_BOUND":
                        return None, error.condition
            try:  # a job that was replaced has fewer batches
                return self._common(None)
            except MillpondError as error:
                return None, error.condition

    def pause(self) -> None:
        """As `BatchSource.pause`."""
        time.sleep(_PAUSE_SECONDS)

    def _common(self, bounds: Bounds | None) -> tuple[int, str]:
        cut = self.pond[self.name].common_cut(bounds)
        return cut.position.batch, repr((cut.job, cut.position))  # another run of the job has other positions
