"""How calls end: with a result, or with the condition of a MillpondError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millpond.errors import MillpondError


def condition_of(call: Callable[[], object]) -> str:
    """The condition of the error that a call raises, which has a hint."""
    with pytest.raises(MillpondError) as caught:
        call()
    assert caught.value.hint
    return caught.value.condition


def ends_of(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each call's result or condition, in order.  All calls run at once."""

    def end(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except MillpondError as error:
            return error.condition

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(end, calls))
