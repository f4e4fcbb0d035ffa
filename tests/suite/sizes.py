"""Makes large tests small: `make test` runs a few of the cases, and fewer examples; `make long` runs the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_LONG = bool(os.environ.get("MILLPOND_LONG"))
_FEWER = 4


def a_few(cases: Iterable[Any], keep: int) -> list[Any]:
    """The cases for `parametrize`.  So many of them, spread evenly, are small tests; the others are long.

    cases:  values, or tuples for several arguments
    """
    every = [case if isinstance(case, tuple) else (case,) for case in cases]
    small = {n * len(every) // keep for n in range(keep)}
    return [pytest.param(*case, marks=() if n in small else pytest.mark.long) for n, case in enumerate(every)]


def examples(count: int) -> int:
    """How many examples a property test draws: all in `make long`, a quarter in `make test`."""
    return count if IS_LONG else max(10, count // _FEWER)
