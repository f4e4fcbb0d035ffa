"""What an aggregation keeps and nothing reads: lists of which only a number is asked, fields of structs.

Spark's optimizer has moved expressions above an aggregation into it as far as it can, so what reads
an aggregate stands in the same expression, or in a node above, by the column's id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from millpond.spark.derive.plan import Java, class_name, elements, every_node
from millpond.spark.review.facts import KeptList, UnreadFields

_LISTS = {"CollectList": "collect_list", "CollectSet": "collect_set"}
# What asks a list only for a number -> the aggregate that has it.
_OF_LISTS = {"Size": "count", "ArrayMax": "max", "ArrayMin": "min"}
# Aggregates that keep a whole value and never look into it.
_KEEP = frozenset({"First", "Last", "AnyValue", "MaxBy", "MinBy"})
_WORD = 8


@dataclass(slots=True)
class _Uses:
    """What reads an aggregate: the classes of expressions, and the fields that they take of it.

    whole:  whether something reads it as it is
    """

    expression: Java
    readers: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    whole: bool = False

    def read_by(self, parent: Java | None) -> None:
        if parent is None:
            self.whole = True
            return
        name = class_name(parent)
        self.readers.add(name)
        if name == "GetStructField":
            self.fields.add(str(parent.extractFieldName()))
        else:
            self.whole = True


def kept_lists(plan: Java, node: Java) -> Iterator[KeptList]:
    """The lists that an aggregation keeps."""
    for uses in _uses(plan, node):
        function = uses.expression.aggregateFunction()
        name = _LISTS.get(class_name(function))
        if name is None:
            continue
        instead = None
        if len(uses.readers) == 1 and not _is_read_whole(uses):
            asked = _OF_LISTS[next(iter(uses.readers))]
            argument = str(function.child().sql()).replace("`", "")
            is_distinct = (name, asked) == ("collect_set", "count")
            instead = f"approx_count_distinct({argument}), if an estimate is enough" if is_distinct else f"{asked}({argument})"
        yield KeptList(function=name, call=_called(function), instead=instead)


def _is_read_whole(uses: _Uses) -> bool:
    return not uses.readers <= _OF_LISTS.keys()


def unread_fields(plan: Java, node: Java) -> Iterator[UnreadFields]:
    """Structs that an aggregation keeps, of which only some fields are read."""
    for uses in _uses(plan, node):
        function = uses.expression.aggregateFunction()
        if class_name(function) not in _KEEP or uses.whole or not uses.fields:
            continue
        value = elements(function.children())[0]
        if class_name(value) != "CreateNamedStruct":
            continue
        names = [str(f.name()) for f in value.dataType().fields()]
        unread = tuple(name for name in names if name not in uses.fields)
        if unread:
            read = tuple(name for name in names if name in uses.fields)
            yield UnreadFields(call=_called(function), unread=unread, read=read, bytes=_WORD * len(unread))


def _uses(plan: Java, node: Java) -> list[_Uses]:
    """The aggregates of a node, each with what reads it."""
    found: dict[str, _Uses] = {}
    named: defaultdict[int, list[_Uses]] = defaultdict(list)
    for expression in elements(node.aggregateExpressions()):
        top = expression.child() if class_name(expression) == "Alias" else expression
        if class_name(top) == "AggregateExpression":
            named[int(expression.exprId().id())].append(_use_of(found, top))
            continue
        for each, parent in _with_parents(top, None):
            if class_name(each) == "AggregateExpression":
                _use_of(found, each).read_by(parent)
    output = {int(column.exprId().id()) for column in elements(plan.output())}
    for id_, uses in named.items():
        if id_ in output:
            for use in uses:
                use.whole = True
                use.readers.add("output")
    for above in every_node(plan):
        if above.equals(node):
            break
        for expression in elements(above.expressions()):
            for each, parent in _with_parents(expression, None):
                if class_name(each) == "AttributeReference":
                    for use in named.get(int(each.exprId().id()), ()):
                        if parent is None:
                            use.whole = True
                            use.readers.add("output")
                        else:
                            use.read_by(parent)
    return list(found.values())


def _use_of(found: dict[str, _Uses], expression: Java) -> _Uses:
    text = str(expression.canonicalized().toString())
    return found.setdefault(text, _Uses(expression))


def _with_parents(expression: Java, parent: Java | None) -> Iterator[tuple[Java, Java | None]]:
    yield expression, parent
    for child in elements(expression.children()):
        yield from _with_parents(child, expression)


def _called(function: Java) -> str:
    return str(function.sql()).replace("`", "")
