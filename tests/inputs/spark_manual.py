"""The functions of Spark's manual, and the expressions of the manual's own examples.

The literals of an example are its arguments.  With a column instead of one literal, it is such as people write over an aggregate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

NOT_SCALAR = {"agg_funcs", "window_funcs", "generator_funcs", "table_funcs"}
# Only the job's JVM can evaluate these: they use formats of other libraries.
JVM_GROUPS = {"sketch_funcs", "variant_funcs", "xml_funcs", "csv_funcs", "avro_funcs", "protobuf_funcs", "st_funcs"}
JVM_NAMES = {"aes_decrypt", "aes_encrypt", "try_aes_decrypt", "java_method", "reflect", "try_reflect", "sentences"}
# These differ from run to run, or from user to user.
OF_A_RUN = {"shuffle", "current_time", "current_timestamp", "localtime", "localtimestamp", "now"}
OF_A_RUN |= {"rand", "randn", "random", "randstr", "uniform"}
_SELECT = re.compile(r"^\s*> SELECT (.*?);\s*$", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"\w*\s*['\"]|-?[\d.]|interval\b", re.IGNORECASE)
_LITERAL_CLASS = "org.apache.spark.sql.catalyst.expressions.Literal"


@dataclass(frozen=True)
class Literal:
    """A literal of an example, and its type in SQL."""

    text: str
    type: str


@dataclass(frozen=True)
class Variant:
    """An expression of an example with a column instead of one literal.

    before, after:  the text on both sides of the column
    type:           the column's type in SQL
    """

    before: str
    after: str
    type: str

    def over(self, column: str) -> str:
        """The expression over this column."""
        return self.before + column + self.after


@dataclass(frozen=True)
class Function:
    """A function of the manual."""

    name: str
    group: str
    variants: tuple[Variant, ...]
    literals: tuple[Literal, ...]


_FOUND: dict[str, list[Function]] = {}


def functions(spark: Any) -> list[Function]:
    """Every function that this Spark documents, by name; cached."""
    version = str(spark.version)
    if version not in _FOUND:
        _FOUND[version] = _functions(spark)
    return _FOUND[version]


def scalar_functions(spark: Any) -> list[Function]:
    """Functions that an example calls with a literal, and that give one value for each row."""
    return [f for f in functions(spark) if f.group not in NOT_SCALAR and f.variants]


def needs_jvm(function: Function) -> bool:
    """Whether only the JVM of the job can evaluate it."""
    return function.group in JVM_GROUPS or function.name in JVM_NAMES


def computable(spark: Any) -> list[Function]:
    """Scalar functions that give the same value at any time, without a JVM."""
    return [f for f in scalar_functions(spark) if not needs_jvm(f) and f.name not in OF_A_RUN]


def _functions(spark: Any) -> list[Function]:
    infos = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    return sorted((_function(spark, info) for info in infos), key=lambda f: f.name)


def _function(spark: Any, info: Any) -> Function:
    variants: dict[Variant, None] = {}
    literals: dict[Literal, None] = {}
    for text in _SELECT.findall(info.getExamples()):
        for begin, end, type_ in _literals(spark, text):
            variants[Variant(text[:begin], text[end:], type_)] = None
            literals[Literal(text[begin:end], type_)] = None
    return Function(info.getName(), info.getGroup(), tuple(variants), tuple(literals))


def _literals(spark: Any, text: str) -> list[tuple[int, int, str]]:
    """(begin, end, type) of each literal of an expression; none if the text isn't one expression or reads a table."""
    from pyspark.errors import ParseException

    try:
        root = spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except ParseException:
        return []
    found = []

    def walk(node: Any) -> None:
        origin = node.origin()
        if node.getClass().getName() == _LITERAL_CLASS and origin.startIndex().isDefined():
            begin, end = int(origin.startIndex().get()), int(origin.stopIndex().get()) + 1
            type_ = str(node.dataType().sql())
            # A name that Spark makes itself, such as a struct member's, has the position of the whole expression.
            if type_ != "VOID" and _LITERAL.match(text[begin:end]):
                found.append((begin, end, type_))
        for n in range(node.children().size()):
            walk(node.children().apply(n))

    walk(root)
    return found
