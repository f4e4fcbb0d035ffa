"""The user's names of functions that Spark replaces by other expressions in the plan that runs.

`parse_url(s, 'HOST')` runs as a call of a Java method, whose own name is `invoke`.

Source:  RuntimeReplaceable, which ReplaceExpressions replaces; Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millpond.spark.derive.plan import Java, class_name, elements

_REPLACEABLE = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"


def invoked_name(e: Java) -> str:
    """A node by its class; a call of Java by the class that it calls and the method: `UrlCodec$.encode`."""
    name = class_name(e)
    if name == "StaticInvoke":
        return f"{e.staticObject().getSimpleName()}.{e.functionName()}"
    if name == "Invoke":
        target = e.targetObject()
        of = class_name(target.value()) if class_name(target) == "Literal" else "UTF8String"
        return f"{of}.{e.functionName()}"
    return name


def replaced_names(plan: Java) -> Callable[[str], str | None]:
    """A function from the name of a node to the user's name of it in an analyzed plan.

    It reads the plan at its first call.
    """
    found: dict[str, list[str]] = {}
    is_walked = False

    def called(name: str) -> str | None:
        nonlocal is_walked
        if not is_walked:
            is_walked = True
            for node in _nodes(plan):
                for expression in elements(node.expressions()):
                    _walk(expression, None, found)
        return " or ".join(found[name]) if name in found else None

    return called


def _nodes(plan: Java) -> Iterator[Java]:
    yield plan
    for child in elements(plan.children()):
        yield from _nodes(child)


def _walk(e: Java, called: str | None, found: dict[str, list[str]]) -> None:
    """Add the names of all nodes of a replacement.

    called:  the replaced function; None outside of one
    """
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    if is_instance_of(SparkContext._gateway, e, _REPLACEABLE):
        _walk(e.replacement(), called or str(e.prettyName()), found)
        return
    if called is not None:
        names = found.setdefault(invoked_name(e), [])
        if called not in names:
            names.append(called)
    for operand in elements(e.children()):
        _walk(operand, called, found)
