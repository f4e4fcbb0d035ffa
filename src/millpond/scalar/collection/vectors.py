"""Functions of vectors, which are arrays of floats: computed as doubles, in sums of eight elements.

Source:  vectorExpressions.scala and VectorFunctionImplUtils, Spark 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from millpond.scalar.function import STRING, Values, function, literal_of, strict, takes
from millpond.scalar.number.ranges import single
from millpond.scalar.spark_fails import SparkFails
from millpond.schema.definition.expression import Expression

Vector = list[float | None]
_TOGETHER = 8


def _sum(terms: Iterable[float]) -> float:
    """Eight by eight, then the rest one by one."""
    listed = list(terms)
    whole = len(listed) // _TOGETHER * _TOGETHER
    total = 0.0
    for place in range(0, whole, _TOGETHER):
        part = listed[place]
        for term in listed[place + 1 : place + _TOGETHER]:
            part += term
        total += part
    for term in listed[whole:]:
        total += term
    return total


def _of_two(compute: Callable[[list[float], list[float]], float | None]) -> Callable[[Expression], Values]:
    def evaluate(a: Vector, b: Vector, _: str) -> float | None:
        if len(a) != len(b):
            raise SparkFails(
                "VALUE_OUT_OF_RANGE", "Its expression is of vectors of two lengths.", hint="Compare vectors of one length."
            )
        if None in a or None in b:
            return None
        found = compute(a, b)  # type: ignore[arg-type]
        return None if found is None else single(found)

    return lambda _: evaluate


def _dot(a: list[float], b: list[float]) -> float:
    return _sum(x * y for x, y in zip(a, b, strict=True))


def _cosine(a: list[float], b: list[float]) -> float | None:
    size = math.sqrt(_dot(a, a) * _dot(b, b))
    return None if size == 0 or not a else _dot(a, b) / size


def _distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(_sum((x - y) * (x - y) for x, y in zip(a, b, strict=True)))


def _size(vector: list[float], degree: float) -> float:
    if degree == 1:
        return _sum(map(abs, vector))
    if degree == 2:
        return math.sqrt(_dot(vector, vector))
    return math.nan if any(map(math.isnan, vector)) else max(map(abs, vector), default=0.0)


def _norm(_: Expression) -> Values:
    def compute(vector: Vector, degree: float, __: str) -> float | None:
        return None if None in vector else single(_size(vector, degree))  # type: ignore[arg-type]

    return compute


def _normalize(_: Expression) -> Values:
    def compute(vector: Vector, degree: float, __: str) -> list[float] | None:
        if None in vector:
            return None
        size = _size(vector, degree)  # type: ignore[arg-type]
        if not vector:
            return []
        return None if size == 0 else [single(x / size) for x in vector]  # type: ignore[operator]

    return compute


def _refuse_norm(e: Expression) -> str | None:
    degree = e.args[1]
    if degree.op != "literal" or literal_of(degree) is None or float.fromhex(literal_of(degree)) not in (1.0, 2.0, math.inf):
        return f"{e.op} of such a degree isn't known here"
    return _refuse_vectors(e)


def _refuse_vectors(e: Expression) -> str | None:
    for arg in e.args:
        if arg.type.kind == "array" and (arg.type.element is None or arg.type.element.kind != "float"):
            return f"{e.op} on {arg.type} isn't known here"
    return takes({"array", "float"} | STRING)(e)


_JAVA = "VectorFunctionImplUtils."
FUNCTIONS = (
    function("vector_inner_product", strict(_of_two(_dot)), _JAVA + "vectorInnerProduct", refuse=_refuse_vectors),
    function("vector_cosine_similarity", strict(_of_two(_cosine)), _JAVA + "vectorCosineSimilarity", refuse=_refuse_vectors),
    function("vector_l2_distance", strict(_of_two(_distance)), _JAVA + "vectorL2Distance", refuse=_refuse_vectors),
    function("vector_norm", strict(_norm), _JAVA + "vectorNorm", refuse=_refuse_norm),
    function("vector_normalize", strict(_normalize), _JAVA + "vectorNormalize", refuse=_refuse_norm),
)
