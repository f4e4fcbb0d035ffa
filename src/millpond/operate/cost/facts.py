"""A number that a cost goes by, and how it is known."""

from __future__ import annotations

from typing import Literal

import msgspec

Known = Literal["measured", "sample", "estimate"]
"""measured: counted, all of it; sample: counted in a part that stands for the whole; estimate: computed"""
_ORDER: tuple[Known, ...] = ("measured", "sample", "estimate")
MONTH_SECONDS = 730 * 3600
"""As providers count a month."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A number, and how it is known.

    known:      the weakest of all that it was made of
    source:     where, and by how much, in words
    low, high:  between which it lies; None: it is exact, or nothing says
    """

    value: float
    known: Known
    source: str
    low: float | None = None
    high: float | None = None

    def times(self, factor: float, source: str | None = None, known: Known = "measured") -> Fact:
        """The same with a factor, which is known so well."""
        return Fact(
            value=self.value * factor,
            known=weakest(self.known, known),
            source=self.source if source is None else source,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )


def weakest(*known: Known) -> Known:
    """How well something is known that is made of such numbers."""
    return max(known, key=_ORDER.index)


def fact(value: float, source: str, known: Known = "measured", *, low: float | None = None, high: float | None = None) -> Fact:
    """A `Fact` in one line."""
    return Fact(value=float(value), known=known, source=source, low=low, high=high)
