"""The options of a node of Spark's plan: its mode, its time zone, the Java that runs it, literals."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any, Protocol

from millpond.schema.definition.expression import Expression
from millpond.schema.types import SparkType
from millpond.spark.derive.plan import Java, class_name, elements, type_of

Options = dict[str, Any]


class Scope(Protocol):
    """The part of `expression.Scope` that options need."""

    same_java: bool
    same_zone: bool

    def from_end(self, variable: Java, /) -> int: ...


class NotExpressible(Exception):
    """A column can't be expressed: the reason, and the buffers from which it is computed."""

    def __init__(self, reason: str, buffers: frozenset[int] = frozenset()) -> None:
        super().__init__(reason)
        self.buffers = buffers


# ---------------------------------------------------------------- modes


def _mode(e: Java, _: Scope) -> Options:
    """ansi (overflow is an error), try (overflow is NULL) or legacy (overflow wraps)."""
    return {"mode": str(e.evalMode().toString()).lower()}


def _strict(e: Java, _: Scope) -> Options:
    return {"mode": "ansi" if e.failOnError() else "legacy"}


def _ansi(e: Java, _: Scope) -> Options:
    return {"mode": "ansi" if e.ansiEnabled() else "legacy"}


def _null_on_overflow(e: Java, _: Scope) -> Options:
    return {"mode": "try" if e.nullOnOverflow() else "ansi"}


# ---------------------------------------------------------------- the session and the JVM

# Languages with rules of their own for upper and lower case.
_OWN_CASE = frozenset({"tr", "az", "lt", "el", "hy", "nl"})
_TRANSITION = re.compile(r"Transition\[\w+ at (\S+?)([+-][0-9:]+|Z) to ([+-][0-9:]+|Z)\]")


def _jvm_class(e: Java, name: str) -> Java:
    from py4j.java_gateway import JavaClass

    return JavaClass(name, e._gateway_client)


def _java(e: Java, scope: Scope) -> Options:
    """The major version of the job's Java, if this JVM runs the job."""
    if not scope.same_java:
        return {}
    return {"java": int(_jvm_class(e, "java.lang.Runtime").version().feature())}


def _setting(e: Java, name: str) -> str:
    """A setting of the plan's session, or its default."""
    return str(_jvm_class(e, "org.apache.spark.sql.internal.SQLConf").get().getConfString(name))


def _refuse_setting(e: Java, name: str, value: str) -> None:
    """Refuse an expression that a legacy setting changes.

    A version of Spark without the setting has the other behaviour.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        found = _setting(e, name)
    except (Py4JJavaError, PySparkException):
        return
    if found.upper() == value.upper():
        raise NotExpressible(f"{e.prettyName()} isn't known here under {name}={found}")


def _letters(e: Java, _: Scope) -> Options:
    """No options; refuses letters' case unless it is ICU's, without a language's own rules."""
    if _setting(e, "spark.sql.icu.caseMappings.enabled") != "true":
        raise NotExpressible(f"{e.prettyName()} depends on the letters of the job's Java")
    language = str(_jvm_class(e, "java.util.Locale").getDefault().getLanguage())
    if language in _OWN_CASE:
        raise NotExpressible(f"{e.prettyName()} depends on the language of the JVM, which is {language}")
    return {}


_zones: dict[str, Options] = {}


def _zone(e: Java, scope: Scope) -> Options:
    """The session's time zone with its rules; see scalar/zones.py."""
    if not scope.same_zone:
        raise NotExpressible(f"{e.prettyName()} depends on the session's time zone, and the job's isn't known")
    zone = e.zoneId()
    name = str(zone.getId())
    if name not in _zones:
        _zones[name] = _rules(name, zone.getRules())
    return {"zone": _zones[name]}


def _named_zone(e: Java, literal: Java) -> Options:
    if class_name(literal) != "Literal" or literal.value() is None:
        raise NotExpressible(f"{e.prettyName()} with a zone that is computed isn't known here")
    zone = _jvm_class(e, "org.apache.spark.sql.catalyst.util.DateTimeUtils").getZoneId(str(literal.value().toString()))
    return _rules(str(zone.getId()), zone.getRules())


def rules_of_zone(jvm: Java, name: str) -> Options:
    """The rules of a session's time zone, as `scalar.time.zones` reads them."""
    zone = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(name)
    return _rules(str(zone.getId()), zone.getRules())


def _zone_named(e: Java, _: Scope) -> Options:
    """The zone that the second operand names, if that is a literal."""
    return {"zone": _named_zone(e, elements(e.children())[1])}


def _last_zone(e: Java, _: Scope) -> Options:
    """The same for the last operand."""
    return {"zone": _named_zone(e, elements(e.children())[-1])}


def _two_zones(e: Java, _: Scope) -> Options:
    """The same for the first two operands."""
    source, target = elements(e.children())[:2]
    return {"zone": _named_zone(e, source), "to_zone": _named_zone(e, target)}


def _rules(name: str, rules: Java) -> Options:
    from millpond.scalar.time.calendar import DAY_SECONDS, days_of

    first = int(rules.getOffset(_minimum(rules)).getTotalSeconds()) if not rules.isFixedOffset() else None
    if first is None:
        epoch = _jvm_class(rules, "java.time.Instant").EPOCH
        return {"id": name, "to": [int(rules.getOffset(epoch).getTotalSeconds())]}
    at: list[int] = []
    to = [first]
    for when, before, after in _TRANSITION.findall(str(rules.getTransitions().toString())):
        date, _, clock = when.partition("T")
        year, month, day = date.rsplit("-", 2)
        hours, minutes, seconds = (int(n) for n in f"{clock}:00"[:8].split(":"))
        local = days_of(int(year), int(month), int(day)) * DAY_SECONDS + hours * 3600 + minutes * 60 + seconds
        at.append(local - _seconds(before))
        to.append(_seconds(after))
    return {"id": name, "at": at, "to": to, "rules": [_yearly(rule) for rule in elements_of(rules.getTransitionRules())]}


def _minimum(rules: Java) -> Java:
    return _jvm_class(rules, "java.time.Instant").MIN


def elements_of(collection: Java) -> list[Java]:
    """A Java list as a list."""
    return [collection.get(n) for n in range(collection.size())]


def _yearly(rule: Java) -> list[Any]:
    wanted = rule.getDayOfWeek()
    second = 86_400 if rule.isMidnightEndOfDay() else int(rule.getLocalTime().toSecondOfDay())
    return [
        int(rule.getMonth().getValue()),
        int(rule.getDayOfMonthIndicator()),
        None if wanted is None else int(wanted.getValue()) - 1,
        second,
        str(rule.getTimeDefinition().toString()),
        int(rule.getStandardOffset().getTotalSeconds()),
        int(rule.getOffsetBefore().getTotalSeconds()),
        int(rule.getOffsetAfter().getTotalSeconds()),
    ]


def _seconds(offset: str) -> int:
    """-04:56:02 as seconds."""
    if offset == "Z":
        return 0
    hours, minutes, seconds = (int(n) for n in f"{offset[1:]}:00"[:8].split(":"))
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if offset[0] == "-" else 1)


# ---------------------------------------------------------------- single functions


def _ordinal(e: Java, _: Scope) -> Options:
    return {"ordinal": int(e.ordinal())}


def _least(e: Java, _: Scope) -> Options:
    return {"least": int(e.n())}


def _of_null(e: Java, _: Scope) -> Options:
    legacy = hasattr(e, "legacySizeOfNull") and e.legacySizeOfNull()
    return {"of_null": -1 if legacy else None}


def _dedup(e: Java, _: Scope) -> Options:
    _refuse_setting(e, "spark.sql.legacy.disableMapKeyNormalization", "true")
    return {"dedup": _setting(e, "spark.sql.mapKeyDedupPolicy").upper()}


def _formats(e: Java, _: Scope) -> Options:
    """No options; refuses formats of dates that aren't those of Java's time package."""
    _refuse_setting(e, "spark.sql.legacy.timeParserPolicy", "LEGACY")
    return {}


def _reading(e: Java, _: Scope) -> Options:
    """No options; refuses reading times by a format, unless by Java's time package alone."""
    _refuse_setting(e, "spark.sql.legacy.timeParserPolicy", "LEGACY")
    _refuse_setting(e, "spark.sql.legacy.timeParserPolicy", "EXCEPTION")
    return {}


def _composed_text(e: Java, _: Scope) -> Options:
    """No options; refuses texts of arrays, maps and structs in a form that isn't known here."""
    _refuse_setting(e, "spark.sql.legacy.castComplexTypesToString.enabled", "true")
    return {}


def _arguments(e: Java, _: Scope) -> Options:
    """How many arguments the function in this node has."""
    return {"arguments": len(elements(e.function().arguments()))}


def _three_valued(e: Java, _: Scope) -> Options:
    return {"three_valued": bool(e.followThreeValuedLogic())}


def _seed(e: Java, _: Scope) -> Options:
    return {"seed": int(e.seed())}


def _from_end(e: Java, scope: Scope) -> Options:
    """The number of a variable among the arguments of the enclosing functions, from the newest."""
    return {"from_end": scope.from_end(e)}


def _from_zero(e: Java, _: Scope) -> Options:
    """Whether negative places count from before the last element."""
    return {"from_zero": bool(e.legacyNegativeIndex())}


def _unit(e: Java, _: Scope) -> Options:
    return {"unit": str(e.unit()).upper()}


def _evaluator_mode(e: Java, _: Scope) -> Options:
    """The mode of the Java object that is called."""
    return {"mode": "ansi" if e.targetObject().value().failOnError() else "try"}


def _json_writer(e: Java, _: Scope) -> Options:
    """No options; refuses JSON in a form that isn't known here."""
    if not e.targetObject().value().options().isEmpty():
        raise NotExpressible("to_json with options isn't known here")
    _refuse_setting(e, "spark.sql.jsonGenerator.ignoreNullFields", "false")
    return {}


def _writer_zone(e: Java, scope: Scope) -> Options:
    """The time zone of the Java object that is called."""
    if not scope.same_zone:
        raise NotExpressible("to_json of timestamps depends on the session's time zone, and the job's isn't known")
    name = str(e.targetObject().value().timeZoneId().get())
    zone = _jvm_class(e, "org.apache.spark.sql.catalyst.util.DateTimeUtils").getZoneId(name)
    return {"zone": _rules(str(zone.getId()), zone.getRules())}


def _escape(e: Java, _: Scope) -> Options:
    return {"escape": str(e.escapeChar())}


def _time_format(e: Java, _: Scope) -> Options:
    """The format of the Java object that is called; None if texts are read as by a cast."""
    _refuse_setting(e, "spark.sql.legacy.timeParserPolicy", "LEGACY")
    found = e.targetObject().value().fmt()
    return {"format": str(found.get()) if found.isDefined() else None}


READERS: dict[str, Callable[[Java, Scope], Options]] = {
    "mode": _mode,
    "strict": _strict,
    "ansi": _ansi,
    "null_on_overflow": _null_on_overflow,
    "java": _java,
    "letters": _letters,
    "zone": _zone,
    "ordinal": _ordinal,
    "least": _least,
    "of_null": _of_null,
    "dedup": _dedup,
    "unit": _unit,
    "formats": _formats,
    "composed_text": _composed_text,
    "from_zero": _from_zero,
    "arguments": _arguments,
    "three_valued": _three_valued,
    "seed": _seed,
    "from_end": _from_end,
    "zone_named": _zone_named,
    "last_zone": _last_zone,
    "two_zones": _two_zones,
    "escape": _escape,
    "reading": _reading,
    "evaluator_mode": _evaluator_mode,
    "json_writer": _json_writer,
    "writer_zone": _writer_zone,
    "time_format": _time_format,
}


# ---------------------------------------------------------------- literals


def translate_literal(e: Java) -> Expression:
    """A literal, its value in stored form as JSON."""
    type_ = type_of(e)
    return Expression("literal", type_, options={"value": stored_literal(e.value(), type_, e.dataType())})


def stored_literal(value: Any, type_: SparkType, data_type: Java = None) -> Any:
    """Floats by their hexadecimal text, decimals by their digits, binary in hexadecimal, composed values as lists.

    data_type:  the JVM's own object for the type, needed to take composed values apart
    Raises:     NotExpressible.
    """
    kind = type_.kind
    if value is None:
        return None
    if kind == "float":
        # The JVM passes a float as its shortest text, which is another number as a double.
        return float(ctypes.c_float(value).value).hex()
    if kind == "double":
        return float(value).hex()
    if kind == "binary":
        return bytes(value).hex()
    if kind in ("string", "decimal"):
        return str(value if isinstance(value, str) else value.toString())
    if isinstance(value, bool | int):
        return value
    if data_type is not None and kind in ("array", "map", "struct"):
        return _composed(value, type_, data_type)
    raise NotExpressible(f"a literal of type {type_} isn't known here")


def _composed(value: Java, type_: SparkType, data_type: Java) -> list[Any]:
    if type_.kind == "array":
        assert type_.element is not None
        return _items(value, type_.element, data_type.elementType())
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        keys = _items(value.keyArray(), type_.key, data_type.keyType())
        return [[k, v] for k, v in zip(keys, _items(value.valueArray(), type_.value, data_type.valueType()), strict=True)]
    types = [f.dataType() for f in data_type.fields()]
    return [
        None if value.isNullAt(n) else stored_literal(value.get(n, of), f.type, of)
        for n, (f, of) in enumerate(zip(type_.fields, types, strict=True))
    ]


def _items(array: Java, type_: SparkType, data_type: Java) -> list[Any]:
    places = range(array.numElements())
    return [None if array.isNullAt(n) else stored_literal(array.get(n, data_type), type_, data_type) for n in places]
