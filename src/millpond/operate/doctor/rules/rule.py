"""What a rule is, and what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from millpond.operate.doctor.state import StateFacts

if TYPE_CHECKING:
    from millpond.spark.review.facts import Query, Review

Unit = Literal["bytes", "rows", "share", "batches", "ms", "times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A rule that is met; fields as those of `Advice`."""

    place: str
    evidence: str
    cost: str
    change: str
    cost_bytes: int | None = None
    cost_ms: float | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """What is known of a query of a program.

    review:  of the whole program
    state:   of its checkpoint; None if that can't be read, or there is none yet
    """

    query: Query
    review: Review
    state: StateFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    id:         its name, in words with hyphens
    title:      what is wrong where it is met
    threshold:  of the number that it compares; None if it compares none
    unit:       of the threshold
    of_state:   what it finds in a job's state; None if it doesn't look there
    of_query:   the same of a query in a program's code
    """

    id: str
    title: str
    threshold: float | None = None
    unit: Unit | None = None
    of_state: Callable[[StateFacts, float], Iterator[Found]] | None = None
    of_query: Callable[[CodeFacts], Iterator[Found]] | None = None
