"""The names of a derived table's columns.

A name that the query gives to a column is never that of another column, even if the column is left
out.  All other names are Millpond's: if one is taken, it is numbered.

    a key column that the query doesn't output    its grouping name, or stored_<name> if that is another column's name
    a window                                      <name>_start, <name>_end, unless the query outputs its members by names
    a buffer of a column that can't be computed   stored_<column>_<buffer>
    a buffer of a table that can't be computed    stored_<buffer>
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millpond.schema.definition.default_table import undefined_table
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field
from millpond.spark.derive.expression import NotExpressible, Value

STORED = "stored_"
"""The first part of the names of columns that show stored values."""
# Spark's names of grouping columns that it makes itself.
_SPARKS_OWN = ("_groupingexpression", "_groupingmapsort", "_nondeterministic")


class Output(NamedTuple):
    """A column of the query: its name, its expression, and whether Millpond named it."""

    name: str
    value: Value
    is_ours: bool = False


@dataclass(slots=True)
class _Wish:
    """A column that needs a name."""

    name: str
    is_ours: bool


def table_of(
    table: str, shape: StoreSchema, keys: list[KeyColumn], outputs: Sequence[Output], having: Expression | None
) -> TableDefinition:
    """A table of key columns under their output names, then all other outputs, raw if necessary.

    keys:  the key columns under their grouping names
    """
    users = {output.name for output in outputs if not output.is_ours}
    named: dict[tuple[int, tuple[str, ...]], _Wish] = {}
    values: list[ValueColumn] = []
    wishes: list[_Wish] = []
    sentences: list[str] = []
    for output in outputs:
        if isinstance(output.value, NotExpressible):
            raw = _raw_columns(output.name, output.value, shape.value, sentences)
            values += raw
            wishes += [_Wish(column.name, True) for column in raw]
        elif not _names_key(output, keys, named):
            values.append(ValueColumn(output.name, output.value.type, output.value))
            wishes.append(_Wish(output.name, output.is_ours))
    key_wishes = [named.get((k.index, k.path)) or _Wish(_stored_name(k.name, users), True) for k in keys]
    names = _give_names([*key_wishes, *wishes], users)
    return TableDefinition(
        table=table,
        operator=shape.operator,
        key=tuple(dataclasses.replace(k, name=n) for k, n in zip(keys, names, strict=False)),
        values=tuple(dataclasses.replace(v, name=n) for v, n in zip(values, names[len(keys) :], strict=True)),
        key_schema=shape.key,
        value_schema=shape.value,
        having=having,
        warnings=tuple(sentences),
    )


def raw_table(table: str, shape: StoreSchema, reason: str, outputs: Iterable[tuple[str, bool]]) -> TableDefinition:
    """A table of the key and all stored buffers.

    outputs:  the query's columns by name, each with whether it is the key column of that name
    """
    definition = undefined_table(table, shape, reason)
    others = {name for name, is_key in outputs if not is_key}
    keys = [_Wish(_stored_name(k.name, others), True) for k in definition.key]
    values = [
        _Wish(v.name if v.expression.op != "buffer" else STORED + shape.value[v.expression.options["index"]].name, True)
        for v in definition.values
    ]
    names = _give_names([*keys, *values], others)
    return dataclasses.replace(
        definition,
        key=tuple(dataclasses.replace(k, name=n) for k, n in zip(definition.key, names, strict=False)),
        values=tuple(dataclasses.replace(v, name=n) for v, n in zip(definition.values, names[len(keys) :], strict=True)),
        derived=True,
    )


def _give_names(wishes: list[_Wish], users: set[str]) -> list[str]:
    """A different name for each: the query's own and the first of equal ones unchanged, others numbered.

    users:  all names that the query gives, also to columns that aren't shown
    """
    given: set[str] = set()
    out: dict[int, str] = {}
    for i, wish in enumerate(wishes):
        if not wish.is_ours and wish.name not in given:
            out[i] = wish.name
            given.add(wish.name)
    taken = given | users
    for i, wish in enumerate(wishes):
        if i not in out:
            name, n = wish.name, 2
            while name in taken:
                name, n = f"{wish.name}_{n}", n + 1
            out[i] = name
            taken.add(name)
    return [out[i] for i in range(len(wishes))]


def _stored_name(name: str, others: set[str]) -> str:
    """The name of a key column that no output names."""
    if name.startswith(_SPARKS_OWN):
        return STORED + "key"
    return STORED + name if name in others else name


def _names_key(output: Output, keys: list[KeyColumn], named: dict[tuple[int, tuple[str, ...]], _Wish]) -> bool:
    """Whether an output column is a key column (or a whole window), which it then names."""
    value = output.value
    if isinstance(value, NotExpressible) or value.op != "key":
        return False
    index, path = value.options["index"], tuple(value.options["path"])
    members = [k for k in keys if k.index == index and k.path[: len(path)] == path]
    places = [(k.index, k.path) for k in members]
    if not members or any(place in named for place in places):
        return False
    for place in places:
        rest = place[1][len(path) :]
        named[place] = _Wish("_".join((output.name, *rest)), output.is_ours or bool(rest))
    return True


def _raw_columns(name: str, obstacle: NotExpressible, value_schema: tuple[Field, ...], sentences: list[str]) -> list[ValueColumn]:
    """The buffers of a column that can't be expressed, each as `stored_<column>_<buffer>`."""
    reason = f"The column {name!r} can't be computed here: {obstacle}."
    if not obstacle.buffers:
        sentences.append(f"{reason} It is left out.")
        return []
    sentences.append(f"{reason} Its buffers are shown as stored.")
    fields = [(i, value_schema[i]) for i in sorted(obstacle.buffers)]
    return [ValueColumn(f"{STORED}{name}_{f.name}", f.type, buffer_column(i, f.type), reason) for i, f in fields]
