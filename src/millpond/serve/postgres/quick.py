"""Lookups of one key by PostgreSQL's protocol: see `serve.hot.lookups`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from millpond.errors import MillpondError
from millpond.serve.access.tokens import Reader
from millpond.serve.hot.lookups import MOST_BYTES, LookupPlan, LookupViews, Plans, plan_lookup
from millpond.serve.postgres import wire
from millpond.serve.sql import messages as say
from millpond.serve.sql.postgres.types import BY_OID
from millpond.serve.sql.postgres.write import Write, writer_binary, writer_text

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor

_NUMBERS, _TEXTS = frozenset({"int2", "int4", "int8"}), frozenset({"text", "varchar"})
_SHOWN: dict[str, type] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    "boolean": bool,
    "float": np.float32,
    "double": float,
    "string": str,
    "decimal": Decimal,
}
_MOST_DIGITS, _MOST_FORMATS = 20, 16
# A client may give types for parameters that aren't there.
_MOST_TYPES = 64
Key = tuple[str, tuple[int, ...]]
"""a statement's text, and the types of its parameters as the client gives them"""


@dataclass(slots=True)
class Plan:
    """A lookup.

    columns:  names of the answer's columns, and the types of their values
    """

    head: say.PostgresHead
    lookup: LookupPlan
    columns: list[tuple[str, type]]
    _writers: dict[tuple[int, ...], list[Write]] = field(default_factory=dict)
    _described: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def described(self, formats: list[int]) -> bytes:
        """The message that names the columns."""
        wanted = tuple(formats[: len(self.columns) + 1])
        found = self._described.get(wanted)
        if found is None:
            _make_room(self._described)
            found = self._described[wanted] = wire.row_description(self.head.columns, formats)
        return found

    def writers(self, formats: list[int]) -> list[Write] | None:
        """How to write the columns; None for formats that don't fit."""
        count = len(self.columns)
        if len(formats) > 1 and len(formats) != count:
            return None
        wanted = tuple(formats) if len(formats) == count else tuple(formats or [0]) * count
        found = self._writers.get(wanted)
        if found is None:
            _make_room(self._writers)
            types = [BY_OID[oid] for _, oid, _ in self.head.columns]
            found = [(writer_binary if form else writer_text)(type_) for type_, form in zip(types, wanted, strict=True)]
            self._writers[wanted] = found
        return found


class QuickLookups:
    """The lookups of a door."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._plans = Plans[Key, Plan]()
        self._views = LookupViews(door, lambda function: asyncio.get_running_loop().call_soon(function))

    def note(self, text: str, types: list[int], head: say.PostgresHead) -> None:
        """A process has answered this statement; it may be a lookup."""
        if head.lookup is None or len(text) > MOST_BYTES or len(types) > _MOST_TYPES:
            return
        try:
            lookup = plan_lookup(self._door.ponds[head.lookup.table].definition, head.lookup)
        except MillpondError:
            return
        if lookup is not None and _takes(lookup, head.parameters):
            types_of = lookup.definition.types
            self._plans.note((text, tuple(types)), Plan(head, lookup, [(n, _SHOWN[types_of[n].kind]) for n in lookup.columns]))

    def find(self, text: str, types: list[int]) -> Plan | None:
        """The lookup that a statement is, if it is known as one."""
        return self._plans.find((text, tuple(types)))

    def may_use(self, plan: Plan, reader: Reader) -> bool:
        """Whether a reader may know of this lookup's table, which has the plan's columns still: other readers' statements become
        plans, too.
        """
        try:
            return self._views.of(plan.lookup, reader) is not None
        except MillpondError:
            return False

    def answer(self, plan: Plan, reader: Reader, values: list[str | None], formats: list[int]) -> tuple[bytes, int, int] | None:
        """Messages DataRow, how many, and the batch; None if a process must answer."""
        writers = plan.writers(formats)
        key = _key(plan.lookup, values)
        if writers is None or key is None:
            return None
        try:
            lookups = self._views.of(plan.lookup, reader)
            if lookups is None:
                return None
            row = lookups.row_of(key)
            if not row and lookups.binding.may_expire:
                return None
            if not row:
                return b"", 0, lookups.cut.position.batch
            found = [_field(row[name], kind, write) for (name, kind), write in zip(plan.columns, writers, strict=True)]
        except (MillpondError, UnicodeEncodeError):
            return None
        if None in found:
            return None
        body = len(found).to_bytes(2) + b"".join(found)  # type: ignore[arg-type]
        return wire.message(b"D", body), 1, lookups.cut.position.batch


def _make_room(cache: dict[tuple[int, ...], Any]) -> None:
    """A client may ask for any mixture of formats."""
    if len(cache) >= _MOST_FORMATS:
        cache.clear()


def _takes(lookup: LookupPlan, parameters: list[int]) -> bool:
    """Whether parameters of these types are compared as the key's values are."""
    names = [(bits, getattr(BY_OID.get(parameters[place]), "name", "")) for _, place, bits in lookup.key]
    return all(name in (_NUMBERS if bits else _TEXTS) for bits, name in names)


def _key(lookup: LookupPlan, values: list[str | None]) -> dict[str, Any] | None:
    """The key of values as texts; None if a process must read one."""
    read = list[Any](values)
    for _, place, bits in lookup.key:
        value = values[place] if place < len(values) else None
        if value is None:
            return None
        if bits:
            if not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > _MOST_DIGITS:
                return None
            read[place] = int(value)
    return lookup.columns_of(read)


def _field(value: Any, kind: type, write: Write) -> bytes | None:
    """A value with its length; None if it isn't plain."""
    if value is None:
        return b"\xff\xff\xff\xff"
    if kind is np.float32 and type(value) is float:
        value = np.float32(value)
    elif type(value) is not kind:
        return None
    data = value.encode("utf-8") if kind is str else write(value)
    return len(data).to_bytes(4) + data
