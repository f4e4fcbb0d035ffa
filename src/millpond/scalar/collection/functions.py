"""Functions of arrays, maps and structs.

Source:  collectionOperations.scala, complexTypeCreator.scala, complexTypeExtractors.scala,
         arrayExpressions.scala, Spark 4.3.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millpond.errors import RequestError
from millpond.scalar.function import FLOATS, Evaluate, Row, Stored, Values, function, refuse_collation, strict
from millpond.scalar.logic import refuse_unordered
from millpond.scalar.order import nullable_rank, rank
from millpond.scalar.text.functions import valid
from millpond.scalar.time.sequences import refuse_sequence_of_times, sequence_of_times
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS, SparkType

List = list[Stored]
# Spark's own limit is far beyond the size of a row.
_LONGEST = 1_000_000


def _outside(what: str) -> RequestError:
    return RequestError("VALUE_OUT_OF_RANGE", f"Its expression {what}.", hint="Use try_element_at or get in the job.")


def _element_type(type_: SparkType) -> SparkType:
    assert type_.element is not None
    return type_.element


def frozen_form(type_: SparkType) -> Callable[[Stored], Any]:
    """A function to a hashable form, in which values that are equal in Spark are equal."""
    ranked = nullable_rank(type_)

    def freeze(value: Any) -> Any:
        return tuple(map(freeze, value)) if isinstance(value, list | tuple) else value

    return lambda v: freeze(ranked(v))


# ---------------------------------------------------------------- which are known


def _refuse_elements(e: Expression) -> str | None:
    """Why elements can't be compared."""
    first = e.args[0].type
    if first.kind != "array":
        return f"{e.op} on {first} isn't known here"
    return refuse_unordered(e.op, _element_type(first))


def _refuse_array(e: Expression) -> str | None:
    return None if e.args[0].type.kind == "array" else f"{e.op} on {e.args[0].type} isn't known here"


def _with_positive_zeros(type_: SparkType) -> Callable[[Stored], Stored]:
    """Functions of sets turn -0.0 into 0.0 at any depth."""
    if type_.kind in FLOATS:
        return lambda v: None if v is None else v + 0.0
    if type_.kind == "array":
        element = _with_positive_zeros(_element_type(type_))
        return _same if element is _same else (lambda v: None if v is None else [element(x) for x in v])
    members = [_with_positive_zeros(f.type) for f in type_.fields]
    if all(member is _same for member in members):
        return _same
    return lambda v: None if v is None else tuple([member(x) for member, x in zip(members, v, strict=True)])


def _refuse_sort(e: Expression) -> str | None:
    if e.args[1].op != "literal" or e.args[1].options["value"] is None:
        return "sort_array in an order that is computed isn't known here"
    return _refuse_elements(e)


# ---------------------------------------------------------------- making


def _get_field(e: Expression) -> Values:
    return operator.itemgetter(e.options["ordinal"])


def _named_struct(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return lambda key, buffers: tuple([operand(key, buffers) for operand in operands])


def _array(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return lambda key, buffers: [operand(key, buffers) for operand in operands]


def _positive_zero(value: float) -> float:
    return value + 0.0


def _same(value: Stored) -> Stored:
    return value


def _map(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Alternating keys and values; by a setting, the last of equal keys wins, in the first's place."""
    put = map_of(e)
    pairs = list(zip(operands[0::2], operands[1::2], strict=True))
    assert e.type.key is not None
    if e.type.key.kind not in FLOATS:
        return lambda key, buffers: put((of(key, buffers), operand(key, buffers)) for of, operand in pairs)

    def evaluate(key: Row, buffers: Row) -> list[tuple[Stored, Stored]]:
        made = [(of(key, buffers), operand(key, buffers)) for of, operand in pairs]
        if any(name == 0 and math.copysign(1.0, name) < 0 for name, _ in made):
            raise _outside("makes a map with -0.0 as key, which Spark's compiled code keeps and its interpreted code makes 0.0")
        return put(made)

    return evaluate


def map_of(e: Expression) -> Callable[[Iterable[tuple[Stored, Stored]]], list[tuple[Stored, Stored]]]:
    """A function from pairs to a map, with Spark's rules for its keys."""
    assert e.type.key is not None
    frozen, last_wins = frozen_form(e.type.key), e.options["dedup"] == "LAST_WIN"
    normalized = _positive_zero if e.type.key.kind in FLOATS else _same

    def put(pairs: Iterable[tuple[Stored, Stored]]) -> list[tuple[Stored, Stored]]:
        found: dict[Any, tuple[Stored, Stored]] = {}
        for name, value in pairs:
            if name is None:
                raise _outside("makes a map with a NULL as key")
            name = normalized(name)
            place = frozen(name)
            if place in found and not last_wins:
                raise _outside("makes a map with one key twice")
            found[place] = (found[place][0] if place in found else name, value)
        return list(found.values())

    return put


def map_of_arrays(e: Expression) -> Callable[[List, List], list[tuple[Stored, Stored]]]:
    """The same from keys and values: without equal keys, all stay unchanged, -0.0 too."""
    put = map_of(e)

    def make(keys: List, values: List) -> list[tuple[Stored, Stored]]:
        pairs = list(zip(keys, values, strict=True))
        made = put(pairs)
        return pairs if len(made) == len(pairs) else made

    return make


def _map_from_arrays(e: Expression) -> Values:
    put = map_of_arrays(e)

    def make(keys: List, values: List) -> list[tuple[Stored, Stored]]:
        if len(keys) != len(values):
            raise _outside("makes a map of arrays of two lengths")
        return put(keys, values)

    return make


def refuse_map(e: Expression) -> str | None:
    assert e.type.key is not None
    return refuse_unordered("map", e.type.key)


# ---------------------------------------------------------------- taking out


def _size(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    operand, of_null = operands[0], e.options["of_null"]

    def evaluate(key: Row, buffers: Row) -> int | None:
        value = operand(key, buffers)
        return of_null if value is None else len(value)

    return evaluate


def _get_item(e: Expression) -> Values:
    ansi = e.options["mode"] == "ansi"

    def get(values: List, place: int) -> Stored:
        if 0 <= place < len(values):
            return values[place]
        if ansi:
            raise _outside("takes an element that its array doesn't have")
        return None

    return get


def _map_value(e: Expression) -> Values:
    assert e.args[0].type.key is not None
    ranked = rank(e.args[0].type.key)

    def get(pairs: list[tuple[Stored, Stored]], wanted: Stored) -> Stored:
        sought = ranked(wanted)
        return next((value for key, value in pairs if ranked(key) == sought), None)

    return get


def _element_at(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """For an array, the third operand is the value of a missing element."""
    if e.args[0].type.kind == "map":
        return strict(_map_value)(e, operands)
    if len(operands) == 2:
        return strict(lambda _: _element_of(e.options["mode"] == "ansi", None))(e, operands)
    default = operands[2]
    return lambda key, buffers: strict(lambda _: _element_of(False, default(key, buffers)))(e, operands[:2])(key, buffers)


def _element_of(ansi: bool, default: Stored) -> Values:

    def get(values: List, place: int) -> Stored:
        if place == 0:
            raise _outside("takes the element 0 of an array, whose first is 1")
        if abs(place) <= len(values):
            return values[place - 1 if place > 0 else place]
        if ansi:
            raise _outside("takes an element that its array doesn't have")
        return default

    return get


def _refuse_lookup(e: Expression) -> str | None:
    of = e.args[0].type
    if of.kind == "map":
        assert of.key is not None
        return refuse_unordered(e.op, of.key)
    return None if e.args[1].type.kind in INTEGERS else f"{e.op} on {of} isn't known here"


def _slice(values: List, start: int, length: int) -> List:
    if start == 0:
        raise _outside("slices an array from the element 0, whose first is 1")
    if length < 0:
        raise _outside("slices an array to a negative length")
    first = start - 1 if start > 0 else len(values) + start
    return values[first : first + length] if first >= 0 else []


# ---------------------------------------------------------------- comparing elements


def _sort(e: Expression) -> Values:
    """NULLs first when ascending, last when descending."""
    ranked, ascending = nullable_rank(_element_type(e.type)), e.args[1].options["value"]
    return lambda values, _: sorted(values, key=ranked, reverse=not ascending)


def _distinct(e: Expression) -> Values:
    firsts = _firsts(_element_type(e.type))
    return lambda values: list(firsts(values).values())


def _firsts(element: SparkType) -> Callable[[List], dict[Any, Stored]]:
    """A function from values to the first of each set of equal ones, by their frozen form."""
    frozen, normalized = frozen_form(element), _with_positive_zeros(element)

    def firsts(values: List) -> dict[Any, Stored]:
        seen: dict[Any, Stored] = {}
        for value in values:
            seen.setdefault(frozen(value), normalized(value))
        return seen

    return firsts


def _union(e: Expression) -> Values:
    firsts = _firsts(_element_type(e.type))
    return lambda a, b: list(firsts([*a, *b]).values())


def _intersect(e: Expression) -> Values:
    firsts, wanted = _firsts(_element_type(e.type)), e.op == "array_intersect"

    def compute(a: List, b: List) -> List:
        other = firsts(b)
        return [value for form, value in firsts(a).items() if (form in other) is wanted]

    return compute


def _overlap(e: Expression) -> Values:
    frozen = frozen_form(_element_type(e.args[0].type))

    def compute(a: List, b: List) -> bool | None:
        if {frozen(v) for v in a if v is not None} & {frozen(v) for v in b if v is not None}:
            return True
        return None if a and b and (None in a or None in b) else False

    return compute


def _contains(e: Expression) -> Values:
    ranked = rank(_element_type(e.args[0].type))

    def compute(values: List, wanted: Stored) -> bool | None:
        sought = ranked(wanted)
        if any(v is not None and ranked(v) == sought for v in values):
            return True
        return None if None in values else False

    return compute


def _position(e: Expression) -> Values:
    ranked = rank(_element_type(e.args[0].type))

    def compute(values: List, wanted: Stored) -> int:
        sought = ranked(wanted)
        return next((n for n, v in enumerate(values, 1) if v is not None and ranked(v) == sought), 0)

    return compute


def _remove(e: Expression) -> Values:
    ranked = rank(_element_type(e.args[0].type))

    def compute(values: List, unwanted: Stored) -> List:
        sought = ranked(unwanted)
        return [v for v in values if v is None or ranked(v) != sought]

    return compute


def _extreme(e: Expression) -> Values:
    ranked, better = rank(e.type), operator.gt if e.op == "array_max" else operator.lt

    def compute(values: List) -> Stored:
        best = None
        for value in values:
            if value is not None and (best is None or better(ranked(value), ranked(best))):
                best = value
        return best

    return compute


# ---------------------------------------------------------------- the rest


def _join(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """NULLs are left out, or replaced where a replacement is given."""
    whole, between, *other = operands

    def evaluate(key: Row, buffers: Row) -> str | None:
        values, separator = whole(key, buffers), between(key, buffers)
        instead = other[0](key, buffers) if other else None
        if values is None or separator is None or (other and instead is None):
            return None
        known = [instead if v is None else v for v in values]
        return str(separator.join(v for v in known if v is not None))

    return evaluate


def _refuse_join(e: Expression) -> str | None:
    element = e.args[0].type.element
    if element is None or element.kind != "string":
        return f"array_join on {e.args[0].type} isn't known here"
    return refuse_collation("array_join", element)


def _reverse(e: Expression) -> Values:
    return (lambda v: v[::-1]) if e.type.kind in ("array", "binary") else (lambda v: valid(v)[::-1])


def _refuse_reverse(e: Expression) -> str | None:
    if e.type.kind not in ("array", "binary", "string"):
        return f"reverse on {e.type} isn't known here"
    return refuse_collation("reverse", e.type)


def _flatten(values: list[List | None]) -> List | None:
    return None if any(v is None for v in values) else [item for inner in values for item in inner or ()]


def _repeat(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    element, times = operands

    def evaluate(key: Row, buffers: Row) -> List | None:
        count = times(key, buffers)
        return None if count is None else [element(key, buffers)] * max(0, count)

    return evaluate


def _keys(e: Expression) -> Values:
    place = 0 if e.op == "map_keys" else 1
    return lambda pairs: [pair[place] for pair in pairs]


def _refuse_key(e: Expression) -> str | None:
    return None if e.args[0].type.kind == "map" else f"{e.op} on {e.args[0].type} isn't known here"


def _insert(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    whole, where, what = operands
    from_zero = e.options["from_zero"]

    def evaluate(key: Row, buffers: Row) -> List | None:
        values, place = whole(key, buffers), where(key, buffers)
        if values is None or place is None:
            return None
        item = what(key, buffers)
        if place == 0:
            raise _outside("inserts at the element 0 of an array, whose first is 1")
        if place > 0:
            missing = place - 1 - len(values)
            return [*values[: place - 1], *[None] * missing, item, *values[place - 1 :]]
        # Counted from the end: -1 is after the last element; by a legacy setting before it.
        behind = len(values) + place + (0 if from_zero else 1)
        return [item, *[None] * -behind, *values] if behind < 0 else [*values[:behind], item, *values[behind:]]

    return evaluate


def _zip(e: Expression) -> Values:
    width = len(e.args)

    def compute(*arrays: List) -> list[tuple[Stored, ...]]:
        longest = max((len(a) for a in arrays), default=0)
        return [tuple(a[n] if n < len(a) else None for a in arrays) for n in range(longest)] if width else []

    return compute


def _refuse_arrays(e: Expression) -> str | None:
    return None if all(a.type.kind == "array" for a in e.args) else f"{e.op} on {e.args[0].type} isn't known here"


def _map_concat(e: Expression) -> Values:
    put = map_of(e)
    return lambda *maps: put(pair for pairs in maps for pair in pairs)


def _map_from_entries(e: Expression) -> Values:
    put = map_of(e)
    return lambda entries: None if None in entries else put(entries)


def _sequence(e: Expression) -> Values:
    if e.args[0].type.kind in ("date", "timestamp"):
        return sequence_of_times(e)

    def compute(start: int, stop: int, step: int | None = None) -> list[int]:
        by = step if step is not None else (1 if start <= stop else -1)
        if (by == 0 and start != stop) or (by > 0 and start > stop) or (by < 0 and start < stop):
            raise _outside("makes a sequence that doesn't lead to its end")
        count = 1 if by == 0 else (stop - start) // by + 1
        if count > _LONGEST:
            raise _outside("makes a sequence that is too long")
        return [start + n * by for n in range(count)]

    return compute


def _refuse_sequence(e: Expression) -> str | None:
    if e.args[0].type.kind in ("date", "timestamp"):
        return refuse_sequence_of_times(e)
    return None if all(a.type.kind in INTEGERS for a in e.args) else f"sequence of {e.args[0].type} isn't known here"


def _reads_sequence(e: Expression) -> tuple[str, ...]:
    kind = e.args[0].type.kind
    return ("zone",) if kind == "timestamp" or (kind == "date" and len(e.args) > 2) else ()


FUNCTIONS = (
    function("array_insert", _insert, "ArrayInsert", refuse=_refuse_array, reads=("from_zero",)),
    function("arrays_zip", strict(_zip), "ArraysZip", refuse=_refuse_arrays),
    function("map_concat", strict(_map_concat), "MapConcat", refuse=refuse_map, reads=("dedup",)),
    function("map_from_entries", strict(_map_from_entries), "MapFromEntries", refuse=refuse_map, reads=("dedup",)),
    function("sequence", strict(_sequence), "Sequence", refuse=_refuse_sequence, reads=_reads_sequence),
    function("get_field", strict(_get_field), "GetStructField", reads=("ordinal",)),
    function("named_struct", _named_struct, "CreateNamedStruct"),
    function("array", _array, "CreateArray"),
    function("map", _map, "CreateMap", refuse=refuse_map, reads=("dedup",)),
    function("map_from_arrays", strict(_map_from_arrays), "MapFromArrays", refuse=refuse_map, reads=("dedup",)),
    function("size", _size, "Size", reads=("of_null",)),
    function("get_item", strict(_get_item), "GetArrayItem", refuse=_refuse_array, reads=("strict",)),
    function("map_value", strict(_map_value), "GetMapValue", refuse=_refuse_lookup),
    function("element_at", _element_at, "ElementAt", refuse=_refuse_lookup, reads=("strict",)),
    function("slice", strict(lambda _: _slice), "Slice", refuse=_refuse_array),
    function("sort_array", strict(_sort), "SortArray", refuse=_refuse_sort),
    function("array_distinct", strict(_distinct), "ArrayDistinct", refuse=_refuse_elements),
    function("array_union", strict(_union), "ArrayUnion", refuse=_refuse_elements),
    function("array_intersect", strict(_intersect), "ArrayIntersect", refuse=_refuse_elements),
    function("array_except", strict(_intersect), "ArrayExcept", refuse=_refuse_elements),
    function("arrays_overlap", strict(_overlap), "ArraysOverlap", refuse=_refuse_elements),
    function("array_contains", strict(_contains), "ArrayContains", refuse=_refuse_elements),
    function("array_position", strict(_position), "ArrayPosition", refuse=_refuse_elements),
    function("array_remove", strict(_remove), "ArrayRemove", refuse=_refuse_elements),
    function("array_max", strict(_extreme), "ArrayMax", refuse=_refuse_elements),
    function("array_min", strict(_extreme), "ArrayMin", refuse=_refuse_elements),
    function("array_join", _join, "ArrayJoin", refuse=_refuse_join),
    function("reverse", strict(_reverse), "Reverse", refuse=_refuse_reverse),
    function("flatten", strict(lambda _: _flatten), "Flatten", refuse=_refuse_array),
    function("array_repeat", _repeat, "ArrayRepeat"),
    function("map_keys", strict(_keys), "MapKeys", refuse=_refuse_key),
    function("map_values", strict(_keys), "MapValues", refuse=_refuse_key),
    function("map_entries", strict(lambda _: list), "MapEntries", refuse=_refuse_key),
)
