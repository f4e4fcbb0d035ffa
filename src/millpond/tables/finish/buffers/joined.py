"""Texts that the read joins: the buffers of listagg and string_agg.

    buffer  UnsafeRow with one array: the texts, or structs of a text and its sort key

Source:  ListAgg in org.apache.spark.sql.catalyst.expressions.aggregate, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder
from millpond.scalar.order import Rank, rank
from millpond.schema.definition.expression import Expression
from millpond.schema.types import Field, SparkType, parse_type

Stored = Any


def compile_joined(expression: Expression) -> Callable[[bytes | None], Stored]:
    """The function from a buffer to the joined text; NULL if there are no texts.

    Options:  element    type of the array's elements
              is_struct  whether these are structs of a text and its sort key
              order      by each: [ascending, NULL comes first]
              delimiter  a text, or hexadecimal of bytes
    """
    options = expression.options
    element = parse_type(options["element"])
    decode = decoder((Field("buf", SparkType("array", "array", element=element)),))
    sort, is_struct = _sorter(element, options["order"], is_struct=options["is_struct"]), options["is_struct"]
    delimiter: Any = bytes.fromhex(options["delimiter"]) if expression.type.kind == "binary" else options["delimiter"]

    def finish(data: bytes | None) -> Stored:
        items = sort(decode(data)[0]) if data else []
        texts = [item[0] if is_struct else item for item in items]
        return delimiter.join(text for text in texts if text is not None) if texts else None

    return finish


def _sorter(element: SparkType, order: list[list[bool]], *, is_struct: bool) -> Callable[[list[Stored]], list[Stored]]:
    if not order:
        return list
    if not is_struct:
        ((ascending, _),) = order
        text_order = rank(element)
        return lambda items: sorted(items, key=text_order, reverse=not ascending)
    by = list(zip(range(1, len(element.fields)), [rank(field.type) for field in element.fields[1:]], order, strict=True))

    def sort(items: list[Stored]) -> list[Stored]:
        # Sorts are stable: begin with the last sort key.
        for place, key, (ascending, nulls_first) in reversed(by):
            items = _sorted(items, place, key, ascending=ascending, nulls_first=nulls_first)
        return items

    return sort


def _sorted(items: list[Stored], place: int, key: Rank, *, ascending: bool, nulls_first: bool) -> list[Stored]:
    some = sorted((item for item in items if item[place] is not None), key=lambda item: key(item[place]), reverse=not ascending)
    none = [item for item in items if item[place] is None]
    return none + some if nulls_first else some + none
