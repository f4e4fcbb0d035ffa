"""What is known to fail: each class with how it shows and in which queries, until it is mended."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from random_queries.case import ZONE, Case


class Known(NamedTuple):
    """A class of failures: why, a pattern of kind and detail, and in which queries."""

    reason: str
    failure: str
    query: Callable[[Case], bool]


def _any(_: Case) -> bool:
    return True


def _says(pattern: str) -> Callable[[Case], bool]:
    """Whether the query's text has it, its rows left out."""
    return lambda case: re.search(pattern, replace(case, batches=[]).to_json()) is not None


def _has_key_of(kind: str) -> Callable[[Case], bool]:
    """Whether a key is made of such a type, or has a column of it."""

    def look(case: Case) -> bool:
        made = kind in ("struct", "map") and any(f"{kind}(" in key for key in case.keys)
        of_kind = [re.escape(name) for name, type_ in case.columns.items() if kind in type_]
        return made or any(re.search(rf"(?<!\w){name}(?!\w)", key) for key in case.keys for name in of_kind)

    return look


def _beside_a_window(case: Case) -> bool:
    names = re.compile(r"\b(window|session_window|window_start|window_end|w_start|w_end|start|end|session_\w+)\b(?!\()")
    return any("window(t" in key for key in case.keys) and names.search(str((case.keys, case.aggregates, case.after))) is not None


KNOWN: list[Known] = [
    Known("current_timestamp and current_date: the plan isn't the one that the batch runs", "", _says(r'"volatile"|current_date')),
    Known(
        "another HAVING, name or select over a checkpoint is refused", "DEFINITION_CHANGED", lambda case: case.restart is not None
    ),
    Known("a user's column called as a window's", "", _beside_a_window),
    Known("a raw buffer under a user's name", r"^(missing|type).*warnings: \(\"", _any),
    Known("a key shown under the name of an expression over it", "^value", _says(r'"withColumn", "(k|s)"')),
    Known("the definer's time zone", "^value", lambda case: ZONE in case.definer),
    Known("a map as key is called _groupingmapsort", "^missing", _has_key_of("map")),
]


def known_reason(case: Case, kind: str, detail: str) -> str | None:
    """Which known class a failure is of; None for a new one."""
    shown = f"{kind}: {detail}"
    return next((k.reason for k in KNOWN if re.search(k.failure, shown, re.DOTALL) and k.query(case)), None)
