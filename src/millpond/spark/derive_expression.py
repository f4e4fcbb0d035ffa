"""Scalar expressions of the plan -> Expression trees, or a reason why not.

Only what the reader's side evaluates exactly as Spark does is translated.  Whatever depends on the session's time zone, a
collation, a random number or user code is refused here, and its buffers are served instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from millpond.errors import MillpondError
from millpond.schema.expression import Expression
from millpond.schema.types import INTEGERS, SparkType
from millpond.spark.plan import Java, class_name, elements, type_of


class NotExpressible(Exception):
    """A column can't be expressed: the reason, and the buffers it is computed from."""

    def __init__(self, reason: str, buffers: frozenset[int] = frozenset()) -> None:
        super().__init__(reason)
        self.buffers = buffers


Value = Expression | NotExpressible


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


class Scope:
    """What attributes of the plan stand for, by Spark's expression ids."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}

    def add(self, named: Java, value: Value) -> None:
        """Let an attribute or alias stand for a value."""
        self._values[int(named.exprId().id())] = value

    def add_lazily(self, identity: int, build: Callable[[], Expression], buffers: tuple[int, ...]) -> None:
        """The same for an aggregate's result, which may not be expressible."""
        from py4j.protocol import Py4JError

        try:
            self._values[int(identity)] = build()
        except NotExpressible as obstacle:
            self._values[int(identity)] = obstacle
        except MillpondError as obstacle:
            self._values[int(identity)] = NotExpressible(obstacle.message.rstrip("."), frozenset(buffers))
        except Py4JError as obstacle:
            self._values[int(identity)] = NotExpressible(_first_line(obstacle), frozenset(buffers))

    def find(self, attribute: Java) -> Value | None:
        """What an attribute stands for."""
        return self._values.get(int(attribute.exprId().id()))


def used_buffers(expression: Java, scope: Scope) -> frozenset[int]:
    """All buffers that an expression is computed from."""
    if class_name(expression) == "AttributeReference":
        value = scope.find(expression)
        if isinstance(value, NotExpressible):
            return value.buffers
        if value is not None:
            return frozenset(b for e in value.walk() if e.op == "aggregate" for b in e.options["buffers"])
        return frozenset()
    return frozenset().union(*(used_buffers(c, scope) for c in elements(expression.children())))


# Spark's class -> our operation, where operands and type say it all.
_SAME = {
    "EqualTo": "eq",
    "EqualNullSafe": "eq_null_safe",
    "LessThan": "lt",
    "LessThanOrEqual": "le",
    "GreaterThan": "gt",
    "GreaterThanOrEqual": "ge",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "IsNull": "is_null",
    "IsNotNull": "is_not_null",
    "IsNaN": "is_nan",
    "In": "in",
    "Coalesce": "coalesce",
    "If": "if",
    "CaseWhen": "case",
    "Greatest": "greatest",
    "Least": "least",
    "Sqrt": "sqrt",
    "UnscaledValue": "unscaled_value",
    "NormalizeNaNAndZero": "normalize_float",
    "Concat": "concat",
}
_ARITHMETIC = {
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "Divide": "divide",
    "IntegralDivide": "integral_divide",
    "Remainder": "remainder",
    "Pmod": "pmod",
}
_UNARY = {"UnaryMinus": "negate", "Abs": "abs", "Floor": "floor", "Ceil": "ceil"}
_PASS_THROUGH = frozenset({"Alias", "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable", "KnownNotContainsNull"})
_NUMBERS = INTEGERS | {"float", "double", "decimal"}
_COMPARABLE = _NUMBERS | {
    "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", "time", "year_month_interval", "day_time_interval",
}  # fmt: skip
_COMPARING = frozenset({"eq", "eq_null_safe", "lt", "le", "gt", "ge", "in", "greatest", "least"})
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "Zulu", "Etc/Zulu", "Universal", "Etc/UCT"})


def translate(expression: Java, scope: Scope) -> Expression:
    """The Expression for one of Spark's.

    Raises:  NotExpressible, with the buffers that the expression uses.
    """
    from py4j.protocol import Py4JError

    try:
        return _translate(expression, scope)
    except NotExpressible as obstacle:
        raise NotExpressible(str(obstacle), obstacle.buffers | used_buffers(expression, scope)) from obstacle
    except MillpondError as obstacle:
        raise NotExpressible(obstacle.message.rstrip("."), used_buffers(expression, scope)) from obstacle
    except Py4JError as obstacle:
        # A method that this Spark version doesn't have.
        raise NotExpressible(_first_line(obstacle), used_buffers(expression, scope)) from obstacle


def _translate(e: Java, scope: Scope) -> Expression:
    name = class_name(e)
    if name == "AttributeReference":
        value = scope.find(e)
        if value is None:
            raise NotExpressible(f"{e.name()} is no result of the aggregation")
        if isinstance(value, NotExpressible):
            raise value
        return value
    if not e.deterministic():
        raise NotExpressible(f"{e.prettyName()} isn't deterministic")
    type_ = type_of(e)
    if name == "Literal":
        return Expression("literal", type_, options={"value": _literal(e.value(), type_)})
    args = tuple(_translate(c, scope) for c in elements(e.children()))
    if name in _PASS_THROUGH:
        return args[0]
    if name in _SAME:
        return _same(_SAME[name], type_, args)
    if name in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[name], type_, args, _mode(e))
    if name in _UNARY:
        return _unary(e, _UNARY[name], type_, args)
    special = _SPECIAL.get(name)
    if special is None:
        raise NotExpressible(f"{e.prettyName()} isn't known here")
    return special(e, type_, args)


def _mode(e: Java) -> str:
    """ansi (overflow is an error), try (overflow is NULL) or legacy (overflow wraps)."""
    return str(e.evalMode().toString()).lower()


def _literal(value: Any, type_: SparkType) -> Any:
    """A literal in stored form as JSON: floats by their hexadecimal text, decimals by their digits, binary in hexadecimal."""
    kind = type_.kind
    if value is None:
        return None
    if kind == "float":
        # The JVM hands a float over by its shortest text, which is another number as a double.
        return float(ctypes.c_float(value).value).hex()
    if kind == "double":
        return float(value).hex()
    if kind == "binary":
        return bytes(value).hex()
    if kind in ("string", "decimal"):
        return str(value if isinstance(value, str) else value.toString())
    if isinstance(value, bool | int):
        return value
    raise NotExpressible(f"a literal of type {type_} isn't known here")


def _check_kinds(args: tuple[Expression, ...], allowed: frozenset[str], what: str) -> None:
    for arg in args:
        if arg.type.kind not in allowed:
            raise NotExpressible(f"{what} on {arg.type} isn't known here")
        if arg.type.kind == "string" and arg.type.name != "string":
            raise NotExpressible(f"{what} follows the collation of {arg.type}")


def _same(op: str, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    if op in _COMPARING:
        _check_kinds(args, _COMPARABLE, op)
    if op == "concat":
        _check_kinds(args, frozenset({"string"}), op)
    return Expression(op, type_, args)


def _arithmetic(op: str, type_: SparkType, args: tuple[Expression, ...], mode: str) -> Expression:
    allowed = _NUMBERS | {"day_time_interval", "year_month_interval"} if op in ("add", "subtract") else _NUMBERS
    _check_kinds(args, frozenset(allowed), op)
    if any(a.type.kind != args[0].type.kind for a in args):
        raise NotExpressible(f"{op} of {args[0].type} and {args[1].type} isn't known here")
    return Expression(op, type_, args, {"mode": mode})


def _unary(e: Java, op: str, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    _check_kinds(args, _NUMBERS, op)
    strict = bool(e.failOnError())
    return Expression(op, type_, args, {"mode": "ansi" if strict else "legacy"})


def _zone_is_utc(e: Java) -> bool:
    zone = e.timeZoneId()
    return bool(zone.isDefined()) and str(zone.get()) in _UTC


_EXACT_TO_FLOAT = frozenset({"byte", "short", "integer", "float", "double"})
_ZONED = frozenset({("timestamp", "date"), ("date", "timestamp"), ("timestamp", "timestamp_ntz"), ("timestamp_ntz", "timestamp")})


def _cast(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    source, target, mode = args[0].type.kind, type_.kind, _mode(e)
    zoned = (source, target) in _ZONED
    fits = (
        (source == target and source in _COMPARABLE - {"string"})
        or (source == "void")
        or (source in _NUMBERS and target in (INTEGERS | {"double", "decimal", "boolean"}))
        or (source in _EXACT_TO_FLOAT and target == "float")
        or (source == "boolean" and target in (_NUMBERS | {"string"}))
        or (source in INTEGERS and target == "string")
        or (source == "decimal" and target == "string" and mode == "ansi")
        or (source == "timestamp" and target in ("long", "double"))
        or (zoned and _zone_is_utc(e))
        or (args[0].type.name == type_.name == "string")
    )
    if not fits:
        zone = " depends on the session's time zone" if zoned else " isn't known here"
        raise NotExpressible(f"a cast from {args[0].type} to {type_}{zone}")
    return Expression("cast", type_, args, {"mode": mode})


def _make_decimal(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    return Expression("make_decimal", type_, args, {"mode": "try" if e.nullOnOverflow() else "ansi"})


def _check_overflow(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    return Expression("check_overflow", type_, args, {"mode": "try" if e.nullOnOverflow() else "ansi"})


def _struct_field(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    ordinal = int(e.ordinal())
    parent = args[0]
    if parent.op == "key" and parent.type.kind == "struct":
        name = parent.type.fields[ordinal].name
        return Expression("key", type_, options={"index": parent.options["index"], "path": [*parent.options["path"], name]})
    return Expression("get_field", type_, args, {"ordinal": ordinal})


def _named_struct(_: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    # Names and values alternate; the names are in the type.
    return Expression("named_struct", type_, args[1::2])


def _size(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    return Expression("size", type_, args, {"of_null": -1 if e.legacySizeOfNull() else None})


def _array_size(_: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    return Expression("size", type_, args, {"of_null": None})


def _sort_array(_: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    element = args[0].type.element
    # Spark sorts floats in two ways, which differ in where they put -0.0.
    if element is None or element.kind not in _COMPARABLE - {"float", "double"} or args[1].op != "literal":
        raise NotExpressible(f"sort_array on {args[0].type} isn't known here")
    if element.kind == "string" and element.name != "string":
        raise NotExpressible(f"sort_array follows the collation of {element}")
    return Expression("sort_array", type_, args[:1], {"ascending": bool(args[1].options["value"])})


def _round(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    if args[0].type.kind not in _NUMBERS - {"float"} or args[1].op != "literal" or args[1].options["value"] is None:
        raise NotExpressible(f"{e.prettyName()} on {args[0].type} isn't known here")
    half = "half_even" if class_name(e) == "BRound" else "half_up"
    mode = "ansi" if e.ansiEnabled() else "legacy"
    return Expression("round", type_, args[:1], {"scale": args[1].options["value"], "rounding": half, "mode": mode})


def _subtract_timestamps(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    local = all(a.type.kind == "timestamp_ntz" for a in args)
    if type_.kind != "day_time_interval" or not (local or _zone_is_utc(e)):
        raise NotExpressible("the difference of two timestamps depends on the session's time zone")
    return Expression("subtract", type_, args, {"mode": "ansi"})


def _in_set(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    """What the optimizer makes of a long list after IN: a set of values that are no expressions any more."""
    of = args[0].type
    values = tuple(Expression("literal", of, options={"value": _literal(v, of)}) for v in elements(e.hset().toSeq()))
    return _same("in", type_, (*args, *values))


_UNITS = {"second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6, "day": 86400 * 10**6, "dd": 86400 * 10**6}


def _truncate_time(e: Java, type_: SparkType, args: tuple[Expression, ...]) -> Expression:
    unit = args[0].options.get("value") if args[0].op == "literal" else None
    micros = _UNITS.get(str(unit).lower())
    if micros is None or args[1].type.kind != "timestamp" or not _zone_is_utc(e):
        raise NotExpressible(f"date_trunc to {unit!r} isn't known here, or depends on the session's time zone")
    return Expression("truncate_time", type_, args[1:], {"micros": micros})


_SPECIAL: dict[str, Callable[[Java, SparkType, tuple[Expression, ...]], Expression]] = {
    "Cast": _cast,
    "MakeDecimal": _make_decimal,
    "CheckOverflow": _check_overflow,
    "GetStructField": _struct_field,
    "CreateNamedStruct": _named_struct,
    "InSet": _in_set,
    "Size": _size,
    "ArraySize": _array_size,
    "SortArray": _sort_array,
    "Round": _round,
    "BRound": _round,
    "SubtractTimestamps": _subtract_timestamps,
    "TruncTimestamp": _truncate_time,
}
