"""Scalar expressions of the plan -> Expression trees, or the reason why there is none.

Only expressions that `scalar/` evaluates exactly as Spark does are translated.  Those that depend
on a collation, a random number or user code are refused, and their buffers are served instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millpond.errors import MillpondError
from millpond.scalar.table import BY_CLASS
from millpond.schema.definition.expression import Expression
from millpond.spark.derive.called import invoked_name
from millpond.spark.derive.options import READERS, NotExpressible, stored_literal, translate_literal
from millpond.spark.derive.plan import Java, class_name, elements, type_of

__all__ = ["NotExpressible", "Scope", "Value", "translate", "used_buffers"]
Value = Expression | NotExpressible


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


class Scope:
    """The values of the plan's attributes, by Spark's expression ids.

    same_java:  whether this JVM is the one that runs the job, so that its Java is the job's
    same_zone:  whether time zones in the plan are those of the job's session
    called:     from the name of a node to the user's name of the function; None if they are equal
    """

    def __init__(
        self, *, same_java: bool = False, same_zone: bool = False, called: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self.same_java, self.same_zone, self.called = same_java, same_zone, called
        self._values: dict[int, Value] = {}
        self._variables: list[int] = []
        self._unfitted: set[int] = set()

    def add(self, named: Java, value: Value) -> None:
        """Let an attribute or alias stand for a value."""
        self._values[int(named.exprId().id())] = value

    def add_lazily(self, identity: int, build: Callable[[], Expression], buffers: tuple[int, ...]) -> None:
        """The same for an aggregate's result, which may not be expressible."""
        from py4j.protocol import Py4JError

        try:
            self._values[int(identity)] = found = build()
            of = found.type.element or found.type
            if found.options.get("function") == "percentile_approx" and of.kind == "decimal":
                self._unfitted.add(int(identity))
        except NotExpressible as obstacle:
            self._values[int(identity)] = obstacle
        except MillpondError as obstacle:
            self._values[int(identity)] = NotExpressible(obstacle.message.rstrip("."), frozenset(buffers))
        except Py4JError as obstacle:
            self._values[int(identity)] = NotExpressible(_first_line(obstacle), frozenset(buffers))

    def refuse_unfitted(self, operand: Java) -> None:
        """Refuse expressions over a decimal that Spark rounds to its type only when it becomes a column.

        Source:  ApproximatePercentile.eval, Spark 4.3, which gives the decimal of a double's text.
        """
        while class_name(operand) in _PASS_THROUGH:
            operand = operand.child()
        if class_name(operand) == "AttributeReference" and int(operand.exprId().id()) in self._unfitted:
            raise NotExpressible("percentile_approx of decimals isn't rounded to its type in an expression of its own aggregation")

    @contextmanager
    def arguments(self, variables: list[Java]) -> Iterator[None]:
        """A context in which the body of a function with these arguments is translated."""
        self._variables += [int(v.exprId().id()) for v in variables]
        try:
            yield
        finally:
            del self._variables[len(self._variables) - len(variables) :]

    def from_end(self, variable: Java) -> int:
        """The number of a variable among the arguments, the newest being 1."""
        return self._variables[::-1].index(int(variable.exprId().id())) + 1

    def find(self, attribute: Java) -> Value | None:
        """The value of an attribute."""
        return self._values.get(int(attribute.exprId().id()))


def buffers_of(value: Value) -> frozenset[int]:
    """All buffers that a value is computed from."""
    if isinstance(value, NotExpressible):
        return value.buffers
    return frozenset(b for e in value.walk() if e.op == "aggregate" for b in e.options["buffers"])


def used_buffers(expression: Java, scope: Scope) -> frozenset[int]:
    """All buffers that an expression is computed from."""
    if class_name(expression) == "AttributeReference":
        value = scope.find(expression)
        return frozenset() if value is None else buffers_of(value)
    return frozenset().union(*(used_buffers(c, scope) for c in elements(expression.children())))


def refuse_reordered(value: Expression) -> None:
    """Refuse the bytes of a KLL sketch, which Spark sorts before it emits them.  Raises NotExpressible."""
    if value.op == "aggregate" and value.options["function"] == "kll_sketch":
        what = "makes a KLL sketch of Apache DataSketches, whose items Spark emits in another order"
        raise NotExpressible(f"{value.options['sql'].partition('(')[0]} {what}", buffers_of(value))


_PASS_THROUGH = frozenset({"Alias", "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable", "KnownNotContainsNull"})


def translate(expression: Java, scope: Scope) -> Expression:
    """The Expression for one of Spark's.

    Raises:  NotExpressible, with the buffers that the expression uses.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return _translate(expression, scope)
    except NotExpressible as obstacle:
        raise NotExpressible(str(obstacle), obstacle.buffers | used_buffers(expression, scope)) from obstacle
    except MillpondError as obstacle:
        raise NotExpressible(obstacle.message.rstrip("."), used_buffers(expression, scope)) from obstacle
    except (Py4JError, PySparkException) as obstacle:
        # This version of Spark lacks a method.
        raise NotExpressible(_first_line(obstacle), used_buffers(expression, scope)) from obstacle


def _translate(e: Java, scope: Scope) -> Expression:
    name = class_name(e)
    if name == "AttributeReference":
        value = scope.find(e)
        if value is None:
            raise NotExpressible(f"{e.name()} isn't a result of the aggregation")
        if isinstance(value, NotExpressible):
            raise value
        return value
    if not e.deterministic():
        raise NotExpressible(f"{_undetermined(e)} isn't deterministic")
    if name == "Literal":
        return translate_literal(e)
    if name in _PASS_THROUGH:
        return _translate(e.child(), scope)
    if name == "LambdaFunction":
        with scope.arguments(elements(e.arguments())):
            return _translate(e.function(), scope)
    name = invoked_name(e)
    known = BY_CLASS.get(name)
    if known is None:
        raise NotExpressible(f"{scope.called(name) or str(e.prettyName()).lower()} isn't known here")
    args = _operands(e, name, scope)
    if not known.op.startswith("kll_"):
        for arg in args:
            refuse_reordered(arg)
    if name == "GetStructField" and args[0].op == "key":
        return _member_of_key(e, args[0])
    plain = Expression(known.op, type_of(e), args)
    options: dict[str, Any] = {}
    for wanted in known.reads(plain):
        options |= READERS[wanted](e, scope)
    expression = Expression(known.op, plain.type, args, options)
    reason = known.refuse(expression)
    if reason is not None:
        raise NotExpressible(reason)
    return expression


def _undetermined(e: Java) -> str:
    """The function in an expression whose value differs each time."""
    inner = next((c for c in elements(e.children()) if not c.deterministic()), None)
    return str(e.prettyName()) if inner is None else _undetermined(inner)


def _operands(e: Java, name: str, scope: Scope) -> tuple[Expression, ...]:
    """The operands of a node, in the form that its function here takes."""
    for child in elements(e.children()):
        scope.refuse_unfitted(child)
    children = elements(e.children())
    if class_name(e) == "Invoke" and class_name(children[0]) == "Literal":
        # An object of Java, which the options describe.
        children = children[1:]
    args = tuple(_translate(c, scope) for c in children)
    if name == "CreateNamedStruct":
        # Names and values alternate; the names are in the type.
        return args[1::2]
    if name == "ElementAt" and e.defaultValueOutOfBound().isDefined():
        return (*args, _translate(e.defaultValueOutOfBound().get(), scope))
    if name == "InSet":
        # The optimizer turns a long list after IN into a set of values, which aren't expressions
        # any more.
        of = args[0].type
        values = (stored_literal(v, of) for v in elements(e.hset().toSeq()))
        return (*args, *(Expression("literal", of, options={"value": v}) for v in values))
    return args


def _member_of_key(e: Java, parent: Expression) -> Expression:
    """A member of a key column, which names that part of the key."""
    path = [*parent.options["path"], parent.type.fields[int(e.ordinal())].name]
    return Expression("key", type_of(e), options={"index": parent.options["index"], "path": path})
