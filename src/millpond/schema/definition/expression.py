"""Expressions that turn a state row into the columns a reader sees, as data.

The job's side, which has Spark's plan, writes a definition; the reader's side, which has no Java,
evaluates it.  So an expression is a small tree with a JSON form.  If the job's side can't express a
column, the table shows raw buffers instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millpond.schema.types import SparkType, parse_type

Json = Any

# leaves:      key (index, path), buffer (index), literal (value)
# aggregate:   aggregate (function, buffers, …): the final value of one aggregate function from its
#              buffer columns; if Spark declares it by an expression, its only operand is that
# the rest:    Spark's scalar functions, by the names that scalar/ gives them


@dataclass(frozen=True, slots=True)
class Expression:
    """One node: an operation on the results of `args`.

    op:       key, buffer, literal, aggregate, or the name of a scalar function
    type:     the Spark type of the result
    args:     operands, in Spark's order
    options:  further parameters of the operation, plain JSON; `zone` is the job's time zone if the
              value depends on it
    """

    op: str
    type: SparkType
    args: tuple[Expression, ...] = ()
    options: dict[str, Json] = field(default_factory=dict)

    def walk(self) -> Iterator[Expression]:
        """This node and all below it, depth first."""
        yield self
        for arg in self.args:
            yield from arg.walk()

    def to_json(self) -> Json:
        out: dict[str, Json] = {"op": self.op, "type": self.type.to_json()}
        if self.args:
            out["args"] = [a.to_json() for a in self.args]
        if self.options:
            out["options"] = self.options
        return out


def parse_expression(data: Json) -> Expression:
    """Turn the JSON form back into an Expression; only compiling it checks its functions."""
    return Expression(
        op=str(data["op"]),
        type=parse_type(data["type"]),
        args=tuple(parse_expression(a) for a in data.get("args", ())),
        options=data.get("options", {}),
    )


def key_column(index: int, type_: SparkType, path: tuple[str, ...] = ()) -> Expression:
    """A column of the state's key row, or a member of it (`path`)."""
    return Expression("key", type_, options={"index": index, "path": list(path)})


def buffer_column(index: int, type_: SparkType) -> Expression:
    """A column of the state's value row, unchanged."""
    return Expression("buffer", type_, options={"index": index})
