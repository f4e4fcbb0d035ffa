"""What the variables of a transformWithState must become, so that a changed processor can go on with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import OperatorFiles, read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import RequestError
from millpond.savepoint.change.variables import NewVariables, ValueOf, VariableChange
from millpond.savepoint.rewrite.form import unsupported
from millpond.schema.definition.resolutions import parse_seconds
from millpond.schema.far_time import write_millis
from millpond.schema.store import StoreSchema
from millpond.schema.strict_json import parse_json
from millpond.schema.types import Field, is_wider, shape_of
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
_NEW_JOB = "Start the new query as a new job."
_PROPERTIES = ("timeMode", "outputMode")
Stores = Mapping[int, Mapping[str, StoreSchema]]
"""operator -> variable -> how it is stored"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableRules:
    """What a user says of variables.

    expire:    variable that gets a TTL -> how long after the savepoint's batch what it has expires
    renamed:   new name -> old name
    value_of:  gets a variable's name and an element, and returns it with the new columns
    """

    expire: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    value_of: ValueOf | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableEvolution:
    """What is to be done with the variables of one operator.

    edit:     of its rows; None if they stay
    files:    path below the checkpoint -> its new content: metadata and schemas
    removed:  schema files that nothing names any more
    lines:    what goes on, begins and is dropped, in words
    """

    edit: NewVariables | None
    files: Mapping[str, bytes]
    removed: tuple[str, ...]
    lines: tuple[str, ...]


def variables_of(stores: list[StoreSchema]) -> Stores:
    """The variables and timers of each transformWithState."""
    found: dict[int, dict[str, StoreSchema]] = {}
    for store in stores:
        if store.operator_name.startswith("transformWithState"):
            found.setdefault(store.operator, {})[store.family] = store
    return found


def evolve_variables(
    checkpoint: Storage, batch: CommittedBatch, fresh: Storage, old: Stores, new: Stores, rules: VariableRules
) -> Iterator[VariableEvolution]:
    """What changes, by operator.

    fresh:   the folder with the schemas of the new query
    Raises:  UNSUPPORTED if only a new job can run the query; INVALID_REQUEST.
    """
    every = {name for variables in new.values() for name in variables}
    before = {name for variables in old.values() for name in variables}
    for what, names, known in (
        ("expire", rules.expire, every),
        ("renamed", rules.renamed, every),
        ("renamed", rules.renamed.values(), before),
    ):
        if unknown := sorted(set(names) - known):
            hint = f"Its variables: {', '.join(sorted(known)) or 'none'}."
            raise RequestError("INVALID_REQUEST", f"{what} names {unknown[0]!r:.80}, which isn't a variable.", hint=hint)
    for operator, variables in new.items():
        comparison = _Comparison(old.get(operator, {}), variables, rules, batch.started_ms)
        changes = {change.old: change for change in comparison.changes()}
        was, becomes = (read_operator_files(s, b, only=operator)[0] for s, b in ((checkpoint, batch.batch), (fresh, Batch(0))))
        properties = list(_properties(checkpoint, was, fresh, becomes))
        if not (changes or comparison.dropped or properties):
            continue
        edit = None
        if changes or comparison.dropped:
            (store,) = read_whole_stores(fresh, becomes)
            edit = NewVariables(store, changes, comparison.dropped, rules.value_of)
        files = {path: fresh.read(path, _BOUNDS.schema_bytes) for paths in becomes.stores.values() for path in paths}
        if was.metadata is not None and becomes.metadata is not None:
            files[was.metadata] = fresh.read(becomes.metadata, _BOUNDS.schema_bytes)
        there = {path for paths in was.stores.values() for path in paths}
        yield VariableEvolution(
            edit=edit, files=files, removed=tuple(sorted(there - files.keys())), lines=(*comparison.lines, *properties)
        )


class _Comparison:
    """The variables of one operator, as they are and as they would be."""

    def __init__(self, old: Mapping[str, StoreSchema], new: Mapping[str, StoreSchema], rules: VariableRules, batch_ms: int) -> None:
        self._old, self._new, self._rules, self._batch_ms = old, new, rules, batch_ms
        continued = [rules.renamed.get(name, name) for name in new]
        if twice := [name for name in continued if name in old and continued.count(name) > 1]:
            raise RequestError("INVALID_REQUEST", f"Two variables go on with {twice[0]}.", hint="Name each old variable once.")
        self.dropped = [name for name in old if name not in continued]
        self.lines = [f"is dropped  {name}" for name in self.dropped if old[name].variable != "timer"]

    def changes(self) -> Iterator[VariableChange]:
        """The changes of variables that go on.  Raises UNSUPPORTED, INVALID_REQUEST."""
        for name, store in self._new.items():
            old = self._old.get(self._rules.renamed.get(name, name))
            if store.variable == "timer":
                continue
            if old is None:
                self.lines.append(f"begins      {name}, without rows")
                continue
            if old.variable != store.variable or _shapes(old.key) != _shapes(store.key):
                was, would_be = (f"{s.variable} by ({_columns(s.key)})" for s in (old, store))
                raise unsupported(f"{name} is a {was}, and would be a {would_be}.", _NEW_JOB)
            change = VariableChange(
                old=old.family,
                new=name,
                before=_user_columns(old),
                after=_user_columns(store),
                had_ttl=old.ttl,
                has_ttl=store.ttl,
                expires_ms=self._expires_ms(name, old, store),
            )
            if change.old != name or old.ttl != store.ttl or change.has_other_columns:
                self._check(change)
                yield change

    def _expires_ms(self, name: str, old: StoreSchema, new: StoreSchema) -> int | None:
        said = self._rules.expire.get(name)
        if old.ttl or not new.ttl:
            if said is not None:
                what = "has a TTL already" if old.ttl else "gets no TTL"
                raise RequestError("INVALID_REQUEST", f"expire names {name}, which {what}.", hint=f"Leave {name} out.")
            return None
        if said is None:
            raise unsupported(
                f"{name} gets a TTL, and nothing says when the values that it has expire.",
                f'Say how long after the savepoint\'s batch: expire = {{"{name}": "30 days"}}.',
            )
        try:
            expires_ms = self._batch_ms + 1000 * parse_seconds(said)
        except ValueError as broken:
            raise RequestError("INVALID_REQUEST", f"expire of {name}: {broken}.", hint="Write 30 days, 12 hours.") from None
        self.lines.append(f"expires     {name}: all that it has, at {write_millis(expires_ms)}")
        return expires_ms

    def _check(self, change: VariableChange) -> None:
        by_user = self._rules.value_of is not None and change.has_other_columns
        was = {f.name: f for f in change.before}
        if change.had_ttl and not change.has_ttl:
            self.lines.append(f"expires     {change.new}: never any more")
        if change.old != change.new:
            self.lines.append(f"goes on     {change.old}, as {change.new}")
        if by_user:
            self.lines.append(f"value_of    {change.new}: ({_columns(change.before)}) becomes ({_columns(change.after)})")
            return
        for column in change.after:
            old = was.get(column.name)
            if old is None:
                if not column.nullable:
                    raise unsupported(
                        f"{change.new} gets a column {column.name}, which can't be NULL.", "Give its values by value_of."
                    )
                self.lines.append(f"begins      {change.new}.{column.name}, with NULL")
            elif shape_of(old.type) != shape_of(column.type):
                if not is_wider(old.type, column.type):
                    raise unsupported(
                        f"{change.new}.{column.name} is {old.type}, and would be {column.type}.", "Give its values by value_of."
                    )
                self.lines.append(f"goes on     {change.new}.{column.name}, as {column.type}")
        kept = {f.name for f in change.after}
        self.lines += [f"is dropped  {change.new}.{name}" for name in was if name not in kept]


def _user_columns(store: StoreSchema) -> tuple[Field, ...]:
    return store.value[0].type.fields if store.ttl else store.value


def _properties(checkpoint: Storage, was: OperatorFiles, fresh: Storage, becomes: OperatorFiles) -> Iterator[str]:
    before, after = (_read_properties(s, o.metadata) for s, o in ((checkpoint, was), (fresh, becomes)))
    for name in _PROPERTIES:
        if before.get(name) != after.get(name):
            yield f"{name:<11} {before.get(name)} becomes {after.get(name)}"


def _read_properties(storage: Storage, path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    data = parse_json(storage.read(path, _BOUNDS.schema_bytes).partition(b"\n")[2])
    found: dict[str, Any] = json.loads(data.get("operatorPropertiesJson") or "{}")
    return found


def _shapes(columns: tuple[Field, ...]) -> list[object]:
    return [shape_of(column.type) for column in columns]


def _columns(columns: tuple[Field, ...]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)
