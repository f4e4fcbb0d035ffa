"""What an error of PySpark is about: Spark's conditions, the classes of the JVM's errors, and one line of text."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError

if TYPE_CHECKING:
    from pyspark.errors.exceptions.captured import StreamingQueryException
    from pyspark.sql.streaming import StreamingQuery

_MOST_CAUSES = 20
_MOST_LETTERS = 500
# PySpark's text of a JVM's error that it has no class for: `java.lang.SomeError: [SOME_CONDITION] words`.
_TEXT = re.compile(r"(?P<kind>[\w.$]+)(?:: (?:\[(?P<condition>[A-Z0-9_]+)[\w.]*\] )?|$)")
# The line after the frames of Python's traceback.
_PYTHON = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?::|$)")
_FRAMES = "Traceback (most recent call last):"


def causes_of(error: BaseException) -> list[tuple[str, str]]:
    """The name and the text of an error and its causes, in Python and the JVM, the outermost first.

    A name is Spark's or Millpond's condition without a part after a dot, else the full name of the
    error's class.
    """
    found: list[tuple[str, str]] = []
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen and len(found) < _MOST_CAUSES:
        seen.add(id(now))
        java = getattr(now, "java_exception", None) or getattr(now, "_origin", None)
        found += [_named(now)] if java is None else _java_causes(java)
        inner = getattr(now, "_cause", None) if java is None else None
        now = inner or now.__cause__ or (None if now.__suppress_context__ else now.__context__)
    return found[:_MOST_CAUSES] or [(type(error).__name__, str(error))]


def failure_of(query: StreamingQuery) -> StreamingQueryException | None:
    """Why a query failed, with the JVM's own error, whose condition PySpark's `query.exception()` leaves out.

    None if it didn't fail.
    """
    failure = query.exception()
    if failure is not None and failure._origin is None:
        failure._origin = query._jsq.exception().get()
    return failure


def name_of(error: BaseException) -> str:
    """The innermost name of an error and its causes."""
    return causes_of(error)[-1][0]


def line_of(text: str) -> str:
    """The line of an error's text that says what happened: of a Python traceback, the one after the frames."""
    before, frames, after = text.rpartition(_FRAMES)
    lines = [line for line in after.splitlines() if line.strip() and not line[0].isspace()] if frames else []
    lines = lines or [line.strip() for line in (before or text).splitlines() if line.strip()]
    return re.sub(r"^\[[A-Z0-9_.]+\] ", "", lines[0])[:_MOST_LETTERS] if lines else ""


def _named(error: BaseException) -> tuple[str, str]:
    if isinstance(error, MillpondError):
        return error.condition, error.message
    kind, text = type(error), str(error)
    if kind.__module__ == "builtins":
        return kind.__name__, text
    described = getattr(error, "_desc", None)
    if described and kind.__name__ == "UnknownException":
        match = _TEXT.match(described)
        if match is not None:
            return match["condition"] or match["kind"], described[match.end() :]
    return f"{kind.__module__}.{kind.__qualname__}", text


def _java_causes(java: Any) -> list[tuple[str, str]]:
    """The same of an error of the JVM.  Less is known if the JVM has ended."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    found: list[tuple[str, str]] = []
    with suppress(Exception):  # of Py4J, in many ways
        while java is not None and len(found) < _MOST_CAUSES:
            kind = str(java.getClass().getName())
            is_spark = is_instance_of(SparkContext._gateway, java, "org.apache.spark.SparkThrowable")
            condition = java.getCondition() if is_spark else None
            text = str(java.getMessage() or kind)
            found.append((str(condition).partition(".")[0] if condition else kind, text))
            java = java.getCause()
            python = _PYTHON.match(line_of(text)) if java is None and _FRAMES in text else None
            if python is not None:  # a function of the program raised it
                found.append((python["kind"], text))
    return found or [("py4j.protocol.Py4JError", "The JVM doesn't answer.")]
