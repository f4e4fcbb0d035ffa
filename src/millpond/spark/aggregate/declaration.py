"""What a declared aggregate says, in the form in which it is compiled and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.schema.definition.resolutions import Resolution

if TYPE_CHECKING:
    from pyspark.sql import Column

# Spark's own mark of a column that has the time of events.
EVENT_TIME = "spark.watermarkDelayMs"


class Dedupe(NamedTuple):
    """The column that tells events apart, and for how long it is remembered."""

    column: str
    horizon_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The parameters of `Aggregate`, checked, with lengths in seconds.

    letters_seconds:  how long dead letters are listed; None if they aren't
    """

    name: str
    key: tuple[str, ...]
    event_time: str
    values: Mapping[str, Column]
    resolutions: tuple[Resolution, ...]
    skew_seconds: int | None
    dedupe: Dedupe | None
    letters_seconds: int | None

    def to_json(self) -> dict[str, Any]:
        """What it says, to be compared with what the same version said before.

        For how long resolutions are kept may change, by `millpond retention`.
        """
        from pyspark import __version__

        return {
            "key": list(self.key),
            "event_time": self.event_time,
            "values": {name: str(value) for name, value in self.values.items()},
            "resolutions": [str(r) for r in self.resolutions],
            "future_skew_seconds": self.skew_seconds,
            "dedupe": None if self.dedupe is None else [self.dedupe.column, self.dedupe.horizon_seconds],
            "dead_letters_seconds": self.letters_seconds,
            "spark": __version__,
        }

    @property
    def expires(self) -> bool:
        """Whether any row ever leaves the state."""
        kept = any(r.keep_seconds is not None for r in self.resolutions)
        return kept or self.dedupe is not None or self.letters_seconds is not None

    @property
    def reads_watermark(self) -> bool:
        """Whether events must be compared with the watermark, since they can be too late and are listed then."""
        is_any_late = self.skew_seconds is None or any(r.keep_seconds is not None for r in self.resolutions)
        return self.letters_seconds is not None and is_any_late
