"""Makes large tests small: `make test` runs a few of the cases, and fewer examples; `make long` runs the rest."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import Any

import pytest

IS_LONG = bool(os.environ.get("MILLPOND_LONG"))
IS_EVERY = bool(os.environ.get("MILLPOND_EVERY"))
_FEWER = 4


def a_few(cases: Iterable[Any], keep: int, long: int | None = None) -> list[Any]:
    """The cases for `parametrize`.  So many of them, spread evenly, are small tests; the others are long.

    cases:  values, or tuples for several arguments
    long:   so many of the others, spread evenly, are long tests; the rest runs in `make every` only.
            None: all others
    """
    every = [case if isinstance(case, tuple) else (case,) for case in cases]
    if long is not None and not IS_EVERY:
        every = [every[n] for n in sorted(_spread(len(every), keep + long))]
    small = _spread(len(every), keep)
    return [pytest.param(*case, marks=() if n in small else pytest.mark.long) for n, case in enumerate(every)]


def a_few_named(cases: Iterable[Any], small: Container[Any]) -> list[Any]:
    """The cases for `parametrize`, each one value.  Those in `small` are small tests; the others are long."""
    return [pytest.param(case, marks=() if case in small else pytest.mark.long) for case in cases]


def _spread(count: int, wanted: int) -> set[int]:
    """So many of the numbers below `count`, spread evenly."""
    return {n * count // wanted for n in range(min(wanted, count))} if wanted < count else set(range(count))


def examples(count: int, fewest: int = 10, one_of: int = _FEWER) -> int:
    """How many examples a property test draws: all in `make long`; one of so many in `make test`, but `fewest` at least."""
    return count if IS_LONG else max(fewest, count // one_of)
