"""Spark's hash of any values, which also determines the partition of a row.

Source:  Murmur3Hash, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.scalar.function import ATOMS, Evaluate, Row, function, refuse_collation
from millpond.schema.definition.expression import Expression
from millpond.schema.murmur import hash_of
from millpond.schema.types import SparkType

_WORD = 1 << 32


def _hash(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    types, seed = [a.type for a in e.args], e.options["seed"] % _WORD

    def evaluate(key: Row, buffers: Row) -> int:
        hashed = hash_of(types, [operand(key, buffers) for operand in operands], seed)
        return hashed - _WORD if hashed >= _WORD // 2 else hashed

    return evaluate


def _is_hashed(type_: SparkType) -> bool:
    if type_.kind == "struct":
        return all(_is_hashed(f.type) for f in type_.fields)
    if type_.kind == "array":
        return type_.element is not None and _is_hashed(type_.element)
    return type_.kind in ATOMS or type_.kind == "void"


def refuse_hashed(e: Expression) -> str | None:
    """Why operands aren't hashed."""
    for arg in e.args:
        if not _is_hashed(arg.type):
            return f"{e.op} of {arg.type} isn't known here"
    return next((reason for a in e.args if (reason := refuse_collation("hash", a.type))), None)


FUNCTIONS = (function("hash", _hash, "Murmur3Hash", refuse=refuse_hashed, reads=("seed",)),)
