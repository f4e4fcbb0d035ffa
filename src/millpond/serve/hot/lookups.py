"""Statements that look one key up, answered from the replica in the server's own loop.

1. A process answers a statement first, and says that it is such a lookup: the tree is DuckDB's own.
2. The same text is then looked up here, as long as the table's definition stays.
3. What isn't plain is left to the process: bounds, earlier batches, rows that expire, NULL in the
   key, a value of another type than the column's, errors.

All lookups that the loop finds at a time share one view, as in `serve.hot`.  Tests compare both, for
each door.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.schema.definition.table import TableDefinition
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.sql.messages import Lookup
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.raw_lookup import Lookups

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor

Key = TypeVar("Key", bound=Hashable)
Plan = TypeVar("Plan")
MOST_PLANS, MOST_BYTES = 1000, 2000
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
# The kinds of columns whose values have one form in every answer.
PLAIN = frozenset({"boolean", *_BITS, "float", "double", "string", "decimal"})


@dataclass(slots=True)
class LookupPlan:
    """A lookup in a table.

    key:      of each key column, its name, the place of its parameter from 0, and the bits of its numbers (0: a text)
    columns:  of the answer
    """

    table: str
    definition: TableDefinition
    key: list[tuple[str, int, int]]
    columns: list[str]
    _binding: Binding | None = None

    def fits(self, binding: Binding) -> bool:
        """Whether rows of this generation have the columns of the definition."""
        if binding is not self._binding:
            ours, theirs = self.definition, binding.definition
            if theirs.many or theirs.types != ours.types or [c.name for c in theirs.key] != [c.name for c in ours.key]:
                return False
            self._binding = binding
        return True

    def columns_of(self, values: list[Any]) -> dict[str, Any] | None:
        """The columns of a key; None if a value isn't plainly one of its column's type."""
        found: dict[str, Any] = {}
        for name, place, bits in self.key:
            value = values[place] if place < len(values) else None
            if bits:
                if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
                    return None
            elif type(value) is not str or "\0" in value or not is_utf8(value):
                return None
            found[name] = value
        return found


def plan_lookup(definition: TableDefinition, lookup: Lookup) -> LookupPlan | None:
    """How to look a key up; None if the table or the statement isn't plain."""
    types, names = definition.types, {column.name for column in definition.key}
    if definition.many or not lookup.key or {name for name, _ in lookup.key} != names:
        return None
    if any(column.path for column in definition.key) or any(types[name].kind not in PLAIN for name in lookup.columns):
        return None
    key = [(name, place - 1, _BITS.get(types[name].kind, 0)) for name, place in lookup.key]
    if any(not bits and types[name].name != "string" for name, _, bits in key):
        return None
    return LookupPlan(lookup.table, definition, key, lookup.columns)


def is_utf8(text: str) -> bool:
    """Whether a text has no bytes that aren't UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(slots=True)
class LookupViews:
    """The newest batches that the lookups of a door share until the loop looks for more.

    defer:  calls a function before the event loop looks for messages again
    """

    door: HttpDoor
    defer: Callable[[Callable[[], None]], object]
    _views: dict[str, Lookups] = field(default_factory=dict)

    def of(self, plan: LookupPlan, reader: Reader) -> Lookups | None:
        """The newest batch of a table; None if its rows aren't plain, or its definition is another one now.

        Raises:  as `HttpDoor.named`.
        """
        name = plan.table
        if reader is not EVERYBODY:
            self.door.named(name, reader)
        known = self._views.get(name)
        if known is None:
            table = self.door.ponds[name]
            if table.definition is not plan.definition or table.definition.many:
                return None
            known = table.lookups()
            if known.is_judged:
                known.close()
                return None
            if not self._views:
                self.defer(self._end)
            self._views[name] = known
        return known if plan.fits(known.binding) else None

    def _end(self) -> None:
        for each in self._views.values():
            each.close()
        self._views.clear()


class Plans(Generic[Key, Plan]):
    """The plans of the newest statements, at most `MOST_PLANS`."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Key, Plan] = OrderedDict()

    def note(self, key: Key, plan: Plan) -> None:
        """A statement is such a lookup."""
        self._plans[key] = plan
        while len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)

    def find(self, key: Key) -> Plan | None:
        """The plan of a statement, if it is known."""
        return self._plans.get(key)
