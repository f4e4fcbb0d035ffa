"""Makes a failing case small: removes parts, the largest first, as long as it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from random_queries.case import Case

_MOST_TRIES = 60
Judge = Callable[[Case], tuple[str, str] | None]


def minimise(judge: Judge, case: Case, kind: str, detail: str) -> tuple[Case, str]:
    """The smallest case found that fails in the same way, and its failure.

    judge:  returns how a case fails, or None
    """
    tries, tried, progress = 0, {case.to_json()}, True
    while progress and tries < _MOST_TRIES:
        progress = False
        for step in _STEPS:
            at = 0
            while tries < _MOST_TRIES:
                smaller = step(case, at)
                if smaller is None:
                    break
                smaller = without_unused(smaller)
                failure = None
                if smaller.to_json() not in tried:
                    tried.add(smaller.to_json())
                    tries += 1
                    failure = judge(smaller)
                if failure is not None and _same(failure[0], kind):
                    case, detail, progress = smaller, failure[1], True
                else:
                    at += 1
    return case, detail


def _same(found: str, kind: str) -> bool:
    one, other = found.split(" "), kind.split(" ")
    return one[:2] == other[:2] or one[0] == other[0] == "value"


def without_unused(case: Case) -> Case:
    """The case without input columns that it doesn't name; at least one stays."""
    names = list(case.columns)
    words = " ".join([*case.keys, *case.aggregates, *case.watermark, *map(str, (case.after, case.before, case.restart))])
    written = [re.escape(name).replace("`", "``?") for name in names]  # between backquotes, a backquote is doubled
    used = [n for n, name in enumerate(written) if re.search(rf"(?<!\w){name}(?!\w)", words)] or [0]
    batches = [[[row[n] for n in used] for row in rows] for rows in case.batches]
    return replace(case, columns={names[n]: case.columns[names[n]] for n in used}, batches=batches)


# ---------------------------------------------------------------- steps: the case without its n-th part, None after the last


def _plain_options(case: Case, at: int) -> Case | None:
    options = [
        replace(case, conf={}, definer={}, door="start", partitions=1),
        replace(case, restart=None),
        replace(case, watermark=[], mode="update"),
        replace(case, watermark=[]),
        replace(case, door="start", definer={}),
        replace(case, partitions=1),
    ]
    return options[at] if at < len(options) else None


def _fewer(member: str) -> Callable[[Case, int], Case | None]:
    """Leave out one member of a list, the last first, since later steps build on earlier ones."""

    def step(case: Case, at: int) -> Case | None:
        items: list[Any] = getattr(case, member)
        place = len(items) - 1 - at
        return None if place < 0 else replace(case, **{member: [*items[:place], *items[place + 1 :]]})

    return step


def _one_batch(case: Case, at: int) -> Case | None:
    """Keep only one batch; then leave one out."""
    if len(case.batches) < 2 or case.restart is not None:
        return None
    options = [[rows] for rows in case.batches]
    options += [[r for m, r in enumerate(case.batches) if m != n] for n in range(len(case.batches))]
    return replace(case, batches=options[at]) if at < len(options) else None


def _fewer_rows(case: Case, at: int) -> Case | None:
    """Leave out half of a batch's rows, then single ones."""
    options = list(_row_options(case))
    return replace(case, batches=options[at]) if at < len(options) else None


def _row_options(case: Case) -> Iterator[list[list[list[str]]]]:
    for b, rows in enumerate(case.batches):
        middle = len(rows) // 2
        halves = [rows[:middle], rows[middle:]] if len(rows) > 3 else []
        for left in (*halves, *([*rows[:n], *rows[n + 1 :]] for n in range(len(rows)) if len(rows) > 1)):
            yield [*case.batches[:b], left, *case.batches[b + 1 :]]


def _fewer_selected(case: Case, at: int) -> Case | None:
    options = []
    for a, step in enumerate(case.after):
        if step[0] == "select":
            texts = step[1]
            lists = [[*texts[:n], *texts[n + 1 :]] for n in range(len(texts)) if len(texts) > 1]
            options += [[*case.after[:a], ["select", left], *case.after[a + 1 :]] for left in lists]
    return replace(case, after=options[at]) if at < len(options) else None


def _fewer_settings(case: Case, at: int) -> Case | None:
    names = list(case.conf)
    return replace(case, conf={k: v for k, v in case.conf.items() if k != names[at]}) if at < len(names) else None


_STEPS: list[Callable[[Case, int], Case | None]] = [
    _plain_options,
    _fewer("after"),
    _fewer("aggregates"),
    _fewer("keys"),
    _one_batch,
    _fewer_selected,
    _fewer_rows,
    _fewer_settings,
]
