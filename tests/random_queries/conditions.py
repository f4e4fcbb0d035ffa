"""Conditions nested three deep, whose leaves compare floating-point values: NaN, -0.0, NULL, infinities and rounding decide.

A leaf is over aggregates, `corr({n}, {n}) IN (0D, double('NaN'))`, or over columns.  As in `functions`,
`{n}` is a column of a kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from random_queries.functions import STATISTICS

_DEPTH = 3

_FLOATING = [
    *STATISTICS,
    "avg({f})",
    "sum({f})",
    "min({f})",
    "max({f})",
    "min_by({f}, {o})",
    "first({f})",
    "corr({n}, {n}) * stddev({n})",
    "try_divide(covar_samp({n}, {n}), var_samp({n}))",
]
_TRUTHS = ["some({b})", "every({b})", "bool_and({b})", "any({b})", "count(*) > 1", "max({b})", "first({b})"]
_NUMBERS = ["0D", "-0D", "1D", "1.5D", "-1D", "double('NaN')", "double('Infinity')", "CAST(NULL AS double)", "0.5D", "2"]
_COMPARED = """
{v} IN ({l}, {l}, {l})
{v} NOT IN ({l}, {l})
{v} = {l}
{v} <=> {l}
{v} > {l}
{v} <= {l}
{l} < {v}
{v} BETWEEN {l} AND {l}
{v} = {v}
{v} < {v}
{v} <=> {v}
{v} IN ({v}, {l})
isnan({v})
{v} IS NULL
{v} IS NOT NULL
coalesce({v}, {l}) >= {l}
nanvl({v}, {l}) = {l}
greatest({v}, {l}) = {v}
least({v}, {l}) <=> {l}
nullif({v}, {l}) IS NULL
-{v} = {v}
abs({v}) > {l}
sign({v}) = {l}
""".strip().splitlines()
_NESTED = """
IF({c}, {c}, {c})
CASE WHEN {c} THEN {c} ELSE {c} END
CASE WHEN {c} THEN {c} WHEN {c} THEN {c} END
{c} AND {c}
{c} OR {c}
NOT {c}
{c} <=> {c}
{c} = {c}
coalesce({c}, {c})
nullif({c}, {c})
nvl2({c}, {c}, {c})
{c} IS NULL
IF({c}, {c}, NULL)
CASE {c} WHEN true THEN {c} ELSE {c} END
""".strip().splitlines()


def of_aggregates(rng: random.Random) -> str:
    """A condition over aggregates, as a template."""
    return _condition(
        rng, _DEPTH, lambda: rng.choice(_TRUTHS) if rng.random() < 0.3 else _compared(rng, lambda: rng.choice(_FLOATING))
    )


def of_columns(rng: random.Random) -> str:
    """A condition over the columns of a result, as a template."""
    return _condition(
        rng, _DEPTH, lambda: _compared(rng, lambda: rng.choice(["{f}", "{f}", "{f}", "{n}", "{f} * {f}", "{f} / {f}"]))
    )


def _compared(rng: random.Random, value: Callable[[], str]) -> str:
    return _filled(_filled(rng.choice(_COMPARED), "{v}", value), "{l}", lambda: rng.choice(_NUMBERS))


def _condition(rng: random.Random, depth: int, leaf: Callable[[], str]) -> str:
    if depth == 0 or rng.random() < 0.15:
        return f"({leaf()})"
    return f"({_filled(rng.choice(_NESTED), '{c}', lambda: _condition(rng, depth - 1, leaf))})"


def _filled(template: str, place: str, fill: Callable[[], str]) -> str:
    first, *rest = template.split(place)
    return first + "".join(fill() + part for part in rest)
