"""What the code of a foreachBatch's function says: whether it reads the batch's id, and appends to something outside."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from typing import Any

from millpond.spark.review.facts import BatchFunction

_ENDS = frozenset({"save", "saveAsTable", "insertInto", "jdbc", "parquet", "json", "csv", "orc", "text"})
# Formats whose writer appends without being asked.
_APPEND_ONLY = frozenset({"kafka"})
_Function = ast.FunctionDef | ast.Lambda


def read_batch_function(function: Callable[..., Any], path: str) -> BatchFunction | None:
    """What its code says; None if its code isn't in this file."""
    function = getattr(function, "func", function) if isinstance(function, functools.partial) else function
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename != path:
        return None
    node = _node_at(path, code.co_firstlineno, code.co_name)
    if node is None:
        return None
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args) if argument.arg != "self"]
    if len(names) < 2:
        return None
    body = node.body if isinstance(node.body, list) else [node.body]
    inner = [each for statement in body for each in ast.walk(statement)]
    uses = any(isinstance(each, ast.Name) and each.id == names[1] for each in inner)
    appends = next((words for each in inner if isinstance(each, ast.Call) and (words := _appends(each)) is not None), None)
    return BatchFunction(name=code.co_name, line=node.lineno, uses_batch_id=uses, appends=appends)


def _node_at(path: str, line: int, name: str) -> _Function | None:
    """The only function that begins at a line, decorators included."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    found: list[_Function] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            if min([node.lineno, *(each.lineno for each in node.decorator_list)]) == line:
                found.append(node)
        elif isinstance(node, ast.Lambda) and name == "<lambda>" and node.lineno == line:
            found.append(node)
    return found[0] if len(found) == 1 else None


def _appends(call: ast.Call) -> str | None:
    """How a chain of calls that begins with `.write` or `.writeTo` appends; None if it doesn't, or that isn't sure."""
    chain = list(_chain(call))
    names = [name for name, _ in chain]
    if names[0] == "append" and "writeTo" in names:
        return "writeTo(…).append()"
    if names[0] not in _ENDS or "write" not in names:
        return None
    settings = {name: _constant(made) for name, made in chain if made is not None and name in ("mode", "format")}
    given = {
        word.arg: word.value.value
        for _, made in chain[:1]
        if made
        for word in made.keywords
        if isinstance(word.value, ast.Constant)
    }
    mode, form = given.get("mode", settings.get("mode")), given.get("format", settings.get("format"))
    if names[0] == "insertInto":
        return None if "overwrite" in given or len(call.args) > 1 or mode == "overwrite" else "write.insertInto(…)"
    if form in _APPEND_ONLY:
        return f'write.format("{form}").{names[0]}()'
    return f'write.mode("append").{names[0]}()' if mode == "append" else None


def _chain(call: ast.expr) -> Iterator[tuple[str, ast.Call | None]]:
    """The names of a chain, the last one first, each with its call."""
    node: ast.expr = call
    while True:
        made = node if isinstance(node, ast.Call) else None
        target = node.func if isinstance(node, ast.Call) else node
        if not isinstance(target, ast.Attribute):
            yield (target.id if isinstance(target, ast.Name) else ""), made
            return
        yield target.attr, made
        node = target.value


def _constant(made: ast.Call) -> object:
    return made.args[0].value if made.args and isinstance(made.args[0], ast.Constant) else None
