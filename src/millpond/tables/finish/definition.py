"""From a state row to the columns that a reader sees, without a JVM.

A definition is compiled once into nested functions; each column of a row then takes a few calls.
All functions work on stored form.  Only the results are converted to Python's form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from millpond.errors import DefinitionError, RequestError
from millpond.scalar.function import Evaluate, Row, Stored
from millpond.scalar.table import FUNCTIONS
from millpond.schema.convert import same, to_python
from millpond.schema.definition.expression import Expression, key_column
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import Field, SparkType
from millpond.tables.failed import FailingValues, failed, filter_failed
from millpond.tables.finish.aggregate import compile_aggregate

# Python's errors for a value of another type than its expression says.
MISFITS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
Finish = Callable[[Row, Row], dict[str, Any] | None]
"""(key row, value row), both in stored form -> columns by name, key first; None if HAVING hides the row"""


def compile_definition(definition: TableDefinition) -> Finish:
    """The function that finishes rows of a table.

    A value that can't be computed, such as a division by zero in ANSI mode, is a `FailedValue` in
    the `FailingValues` of its row.  If the filter can't be computed, every value of the row is one:
    it is unknown whether Spark will emit the row, so only its key can be read.

    Raises:  DEFINITION_MISMATCH if the definition uses something that this Millpond doesn't know.
    """
    try:
        return _compile(definition)
    except (*MISFITS, AssertionError) as broken:
        raise _unknown(f"{broken!r:.200}") from broken


def _compile(definition: TableDefinition) -> Finish:
    names = definition.columns
    expressions = [key_column(c.index, c.type, c.path) for c in definition.key] + [c.expression for c in definition.values]
    columns = [_shown(compile_expression(e, definition.key_fields), e.type) for e in expressions]
    having = None if definition.having is None else compile_expression(definition.having, definition.key_fields)

    def one_by_one(key: Row, buffers: Row) -> dict[str, Any]:
        try:
            unfiltered = _try_filter(having, key, buffers)
            if unfiltered is None:
                return FailingValues(
                    zip(names, [try_value(*c, key, buffers) for c in zip(columns, names, strict=True)], strict=True)
                )
            # If the table has no other column, show the key itself.
            readable = len(definition.key) if definition.values else 0
            finished = [column(key, buffers) for column in columns[:readable]]
            return FailingValues(zip(names, finished + [failed(unfiltered, n) for n in names[readable:]], strict=True))
        except MISFITS as broken:
            raise misfit(broken) from broken

    def finish(key: Row, buffers: Row) -> dict[str, Any] | None:
        try:
            if having is not None and having(key, buffers) is not True:
                return None
            return dict(zip(names, [column(key, buffers) for column in columns], strict=True))
        except RequestError:
            return one_by_one(key, buffers)
        except MISFITS as broken:
            raise misfit(broken) from broken

    return finish


def _try_filter(having: Evaluate | None, key: Row, buffers: Row) -> RequestError | None:
    """Why the filter can't be computed; None if it can be."""
    try:
        if having is not None:
            having(key, buffers)
    except RequestError as error:
        return filter_failed(error)
    return None


def try_value(evaluate: Evaluate, name: str, key: Row, buffers: Row) -> Any:
    """A column's value, or a `FailedValue` if it can't be computed."""
    try:
        return evaluate(key, buffers)
    except RequestError as error:
        return failed(error, name)


def compile_stored(definition: TableDefinition, names: Sequence[str]) -> Callable[[Row, Row], tuple[Stored, ...] | None]:
    """The function from key row and value row to some of the columns, in stored form.

    It gives None for a row that HAVING hides, and a `FailedValue` for a value that can't be
    computed.

    Raises as `compile_definition`.
    """
    keys = {c.name: key_column(c.index, c.type, c.path) for c in definition.key}
    expressions = keys | {c.name: c.expression for c in definition.values}
    # As `_compile` shows a row whose filter can't be computed.
    readable = keys.keys() if definition.values else frozenset()
    try:
        columns = [(compile_expression(expressions[name], definition.key_fields), name) for name in names]
        having = None if definition.having is None else compile_expression(definition.having, definition.key_fields)
    except (*MISFITS, AssertionError) as broken:
        raise _unknown(f"{broken!r:.200}") from broken

    def one_by_one(key: Row, buffers: Row) -> tuple[Stored, ...]:
        try:
            unfiltered = _try_filter(having, key, buffers)
            if unfiltered is not None:
                return tuple([e(key, buffers) if name in readable else failed(unfiltered, name) for e, name in columns])
            return tuple([try_value(*column, key, buffers) for column in columns])
        except MISFITS as broken:
            raise misfit(broken) from broken

    def stored(key: Row, buffers: Row) -> tuple[Stored, ...] | None:
        try:
            if having is not None and having(key, buffers) is not True:
                return None
            return tuple([evaluate(key, buffers) for evaluate, _ in columns])
        except RequestError:
            return one_by_one(key, buffers)
        except MISFITS as broken:
            raise misfit(broken) from broken

    return stored


def compile_shown(definition: TableDefinition, expression: Expression) -> Evaluate:
    """The function from key row and value row to one column's value in Python's form.

    Raises as `compile_definition`.
    """
    try:
        evaluate = _shown(compile_expression(expression, definition.key_fields), expression.type)
    except (*MISFITS, AssertionError) as broken:
        raise _unknown(f"{broken!r:.200}") from broken

    def shown(key: Row, buffers: Row) -> Any:
        try:
            return evaluate(key, buffers)
        except MISFITS as broken:
            raise misfit(broken) from broken

    return shown


def misfit(broken: Exception) -> DefinitionError:
    """A value doesn't fit its expression: the definition is of other rows, or damaged."""
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"The definition doesn't fit the rows: {broken!r:.200}.",
        hint="Define the table again with the DataFrame that the job runs.",
    )


def compile_expression(expression: Expression, key_schema: tuple[Field, ...], *, is_operand: bool = False) -> Evaluate:
    """The function that evaluates an expression in stored form.

    is_operand:  whether another expression uses the result, see `compile_aggregate`
    Raises:  DEFINITION_MISMATCH.
    """
    op = expression.op
    if op == "key":
        return _key(expression, key_schema)
    if op == "buffer":
        place: int = expression.options["index"]
        return lambda _, buffers: buffers[place]
    if op == "aggregate" and expression.args:
        return compile_expression(expression.args[0], key_schema)
    if op == "aggregate":
        finisher = compile_aggregate(expression, is_operand=is_operand)
        return lambda _, buffers: finisher(buffers)
    if op == "literal":
        value = read_literal(expression)
        return lambda _, __: value
    known = FUNCTIONS.get(op)
    if known is None or known.refuse(expression) is not None:
        raise _unknown(op)
    orders = op != "size"
    return known.build(expression, [compile_expression(a, key_schema, is_operand=orders) for a in expression.args])


def read_literal(expression: Expression) -> Stored:
    """A literal's value in stored form; spark/derive/expression.py writes it."""
    return _literal(expression.options["value"], expression.type)


def _literal(value: Any, type_: SparkType) -> Stored:
    kind = type_.kind
    if value is None:
        return None
    if kind in ("float", "double"):
        return float.fromhex(value)
    if kind == "binary":
        return bytes.fromhex(value)
    if kind == "array":
        assert type_.element is not None
        return [_literal(v, type_.element) for v in value]
    if kind == "struct":
        return tuple([_literal(v, f.type) for v, f in zip(value, type_.fields, strict=True)])
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return [(_literal(k, type_.key), _literal(v, type_.value)) for k, v in value]
    return Decimal(value) if kind == "decimal" else value


def _key(expression: Expression, key_schema: tuple[Field, ...]) -> Evaluate:
    index: int = expression.options["index"]
    ordinals: list[int] = []
    type_: SparkType = key_schema[index].type
    for name in expression.options["path"]:
        ordinal = next((i for i, f in enumerate(type_.fields) if f.name == name), None)
        if ordinal is None:
            raise _unknown(f"member {name} of the key column {key_schema[index].name}")
        ordinals.append(ordinal)
        type_ = type_.fields[ordinal].type
    if not ordinals:
        return lambda key, _: key[index]

    def evaluate(key: Row, _: Row) -> Stored:
        value: Sequence[Stored] | None = key[index]
        for ordinal in ordinals:
            if value is None:
                return None
            value = value[ordinal]
        return value

    return evaluate


def _shown(evaluate: Evaluate, type_: SparkType) -> Evaluate:
    convert = to_python(type_)
    if convert is same:
        return evaluate
    return lambda key, buffers: convert(evaluate(key, buffers))


def _unknown(what: str) -> DefinitionError:
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"The definition uses something that this Millpond doesn't know: {what}.",
        hint="Read this table with the Millpond version that wrote its definition, or a newer one.",
    )
