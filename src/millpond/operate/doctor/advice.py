"""What the doctor found: each piece of advice has a rule, evidence, a cost and a change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

NOTHING, FOUND, CANT_LOOK = 0, 1, 2
"""Exit codes of `millpond doctor`"""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that is met.

    rule, title: its id, by which docs/doctor.md says more, and what is wrong
    place:       where: an operator, a store, a column, or a query
    evidence:    what was measured or read
    cost:        what it costs, in words
    cost_bytes, cost_ms:  the same as numbers; None where it isn't known in that unit
    change:      what to do
    file, line:  of the pipeline's code; None for the state of a job
    ignored:     why it is suppressed; None if it isn't
    ignored_in_code: whether a comment in the program says so
    """

    job: str
    rule: str
    title: str
    place: str
    evidence: str
    cost: str
    cost_bytes: int | None = None
    cost_ms: float | None = None
    change: str
    file: str | None = None
    line: int | None = None
    ignored: str | None = None
    ignored_in_code: bool = False


class Unseen:
    """What the doctor couldn't look at, collected while it looks.

    sentences:  on each
    is_missed:  whether that was a query, a job or an operator that it was asked to look at
    """

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.is_missed = False

    def note(self, sentence: str) -> None:
        """Something that leaves the answer as good as it can be."""
        self.sentences.append(sentence)

    def miss(self, sentence: str) -> None:
        """Something without which the answer isn't whole."""
        self.sentences.append(sentence)
        self.is_missed = True

    def diagnosis(self, advice: Iterable[Advice]) -> Diagnosis:
        """With the advice that there is all the same."""
        return Diagnosis(advice=tuple(advice), unseen=tuple(self.sentences), is_missed=self.is_missed)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor found of one or several jobs.

    advice:   what is to change, and what would be without a reason to ignore it
    unseen:   what it couldn't look at, and why, a sentence each
    is_missed: whether that was a query, a job or an operator that it was asked to look at
    """

    advice: tuple[Advice, ...] = ()
    unseen: tuple[str, ...] = ()
    is_missed: bool = False

    @property
    def found(self) -> tuple[Advice, ...]:
        """The advice that isn't ignored."""
        return tuple(each for each in self.advice if each.ignored is None)

    @property
    def exit_code(self) -> int:
        """2 if something couldn't be looked at, else 0 if there is nothing to change, 1 otherwise."""
        if self.is_missed:
            return CANT_LOOK
        return FOUND if self.found else NOTHING

    def to_json(self) -> dict[str, Any]:
        """`advice`, `unseen` and `is_missed`, as JSON has them."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    def __add__(self, other: Diagnosis) -> Diagnosis:
        return Diagnosis(
            advice=self.advice + other.advice,
            unseen=self.unseen + other.unseen,
            is_missed=self.is_missed or other.is_missed,
        )
