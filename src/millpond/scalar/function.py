"""Scalar functions: name in definitions, Spark's classes, allowed operands, and evaluation.

A function is declared once, for both sides: the job's side finds it in Spark's plan by the names of
its classes, and the reader's side evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS, SparkType

Stored = Any
Row = Sequence[Stored]
Evaluate = Callable[[Row, Row], Stored]
"""(key row, buffers), both in stored form -> the value in stored form."""
Build = Callable[[Expression, Sequence[Evaluate]], Evaluate]
"""An expression, and the functions that evaluate its operands."""
Values = Callable[..., Stored]
"""The operands' values, none of them NULL -> the value."""

FLOATS = frozenset({"float", "double"})
NUMBERS = INTEGERS | FLOATS | {"decimal"}
INTERVALS = frozenset({"day_time_interval", "year_month_interval"})
ATOMS = NUMBERS | INTERVALS | {"boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", "time"}
STRING = frozenset({"string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One scalar function.

    op:        its name in definitions
    catalyst:  Spark's classes for it
    build:     makes the function that evaluates it
    refuse:    why an expression of it isn't known here, None if it is
    reads:     options that the job's side reads from Spark's node: name of the reader -> names of
               the options
    """

    op: str
    catalyst: tuple[str, ...] = ()
    build: Build
    refuse: Callable[[Expression], str | None]
    reads: Callable[[Expression], tuple[str, ...]]


def function(
    op: str,
    build: Build,
    *catalyst: str,
    refuse: Callable[[Expression], str | None] | None = None,
    reads: tuple[str, ...] | Callable[[Expression], tuple[str, ...]] = (),
) -> Function:
    """Declare a function; without `refuse` it takes any operands."""
    reading = reads if callable(reads) else _always(reads)
    return Function(op=op, catalyst=catalyst, build=build, refuse=refuse or _nothing, reads=reading)


def _nothing(_: Expression) -> None:
    return None


def _always(names: tuple[str, ...]) -> Callable[[Expression], tuple[str, ...]]:
    return lambda _: names


# ---------------------------------------------------------------- which operands


def takes(*kinds: frozenset[str] | set[str], literal: tuple[int, ...] = ()) -> Callable[[Expression], str | None]:
    """Operands of these kinds, the last for all that follow; those at the places of `literal` are literals."""

    def refuse(e: Expression) -> str | None:
        for place, arg in enumerate(e.args):
            reason = refuse_type(e.op, arg.type, kinds[min(place, len(kinds) - 1)])
            if reason:
                return reason
            if place in literal and arg.op != "literal":
                return f"{e.op} with a {arg.type} that is computed isn't known here"
        return None

    return refuse


def refuse_type(op: str, type_: SparkType, kinds: frozenset[str] | set[str]) -> str | None:
    """Why a function doesn't take a type: its kind, or the collation of its strings."""
    if type_.kind not in kinds and type_.kind != "void":
        return f"{op} on {type_} isn't known here"
    return refuse_collation(op, type_)


def refuse_collation(op: str, type_: SparkType) -> str | None:
    """Why a function doesn't take the strings in a type: they have a collation, a length, or are padded."""
    if type_.kind == "string" and type_.name != "string":
        return f"{op} follows the collation of {type_}"
    inner = [f.type for f in type_.fields] + [t for t in (type_.element, type_.key, type_.value) if t is not None]
    return next((reason for t in inner if (reason := refuse_collation(op, t))), None)


def literal_of(e: Expression) -> Stored:
    """The value of a literal of a kind whose JSON form is its stored form."""
    return e.options["value"]


# ---------------------------------------------------------------- how operands are evaluated


def strict(make: Callable[[Expression], Values]) -> Build:
    """NULL if an operand is NULL; later operands aren't evaluated.

    make:  makes the function of the operands' values
    """

    def build(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
        compute = make(e)
        if len(operands) == 1:
            return _one(compute, operands[0])
        if len(operands) == 2:
            return _two(compute, operands[0], operands[1])
        return _many(compute, operands)

    return build


def plain(compute: Values) -> Build:
    """The same for a function that doesn't depend on its expression."""
    return strict(lambda _: compute)


def _one(compute: Values, operand: Evaluate) -> Evaluate:
    def evaluate(key: Row, buffers: Row) -> Stored:
        value = operand(key, buffers)
        return None if value is None else compute(value)

    return evaluate


def _two(compute: Values, left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(key: Row, buffers: Row) -> Stored:
        a = left(key, buffers)
        if a is None:
            return None
        b = right(key, buffers)
        return None if b is None else compute(a, b)

    return evaluate


def _many(compute: Values, operands: Sequence[Evaluate]) -> Evaluate:
    def evaluate(key: Row, buffers: Row) -> Stored:
        values = []
        for operand in operands:
            value = operand(key, buffers)
            if value is None:
                return None
            values.append(value)
        return compute(*values)

    return evaluate
