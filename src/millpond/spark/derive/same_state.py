"""Whether a new definition fits the state of a checkpoint that already has one.

Spark accepts some changes of an aggregation on an existing checkpoint and then mixes up columns
silently.  So the state's meaning must stay the same, column by column: grouping expressions,
functions, their inputs and filters.  Names, expressions over the aggregates and HAVING may change.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from millpond.catalogue import JobFolder
from millpond.errors import DefinitionError
from millpond.schema.definition.meaning import Meaning
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import shape_of
from millpond.spark.derive.state_words import OF_SESSION
from millpond.storage.names import numbers


def check_same_state(folder: JobFolder, definition: Entry) -> None:
    """Refuse a definition that would give another meaning, or a second name, to existing state.

    Raises:  DEFINITION_CHANGED.
    """
    if not numbers(folder.open_checkpoint().names("offsets")):
        return
    for there in folder.entries():
        same_store = _same_store(there, definition)
        if there.table != definition.table and not same_store:
            continue
        changes = state_changes(there, definition)
        if changes:
            raise DefinitionError(
                "DEFINITION_CHANGED",
                f"The checkpoint {folder.checkpoint} has the state of another definition of {there.table!r}.\n"
                + "".join(f"  {line}\n" for line in changes)
                + _both("The state is", there)
                + _both("The job's state would be", definition),
                hint=_way_back(folder, there, definition),
                table=definition.table,
                checkpoint=folder.checkpoint,
            )
        if there.table != definition.table:
            raise DefinitionError(
                "DEFINITION_CHANGED",
                f"The same state has a name already: {there.table!r}; it can't be {definition.table!r} as well.",
                hint=f"Use table={there.table!r}, or delete {folder.storage.uri}/tables/{there.table}.json to rename it.",
                table=definition.table,
                checkpoint=folder.checkpoint,
            )


def with_history(folder: JobFolder, definition: Entry) -> Entry:
    """The definition with what only the one before knows: from when on the buckets of a resolution are complete."""
    if not isinstance(definition, TableDefinition) or definition.resolutions is None:
        return definition
    entries, _ = folder.read_entries()
    before = next((entry for entry in entries if entry.table == definition.table), None)
    if not isinstance(before, TableDefinition) or before.resolutions is None:
        return definition
    complete = {str(r): r.complete_from for r in before.resolutions.each}
    each = tuple(replace(r, complete_from=complete.get(str(r))) for r in definition.resolutions.each)
    return replace(definition, resolutions=replace(definition.resolutions, each=each))


def _same_store(there: Entry, definition: Entry) -> bool:
    """Whether two entries are about one store; a name applies to all stores of its operator."""
    if isinstance(there, NamedOperator) or isinstance(definition, NamedOperator):
        return there.operator == definition.operator
    return there.store_id == definition.store_id


def state_changes(there: Entry, definition: Entry) -> list[str]:
    """What differs in the state of two definitions, a line each."""
    if isinstance(there, NamedOperator) or isinstance(definition, NamedOperator):
        if there.fingerprint() != definition.fingerprint():
            return ["Its operator isn't the same."]
        return [] if there.meaning is None or definition.meaning is None else _other_words(there.meaning, definition.meaning)
    if there.meaning is None or definition.meaning is None:
        return [] if there.fingerprint() == definition.fingerprint() else ["It isn't the same."]
    lines = [] if there.store_id == definition.store_id else [f"Its store is {definition.store_id} and was {there.store_id}."]
    for what, before, now in (
        ("key", there.stored_key, definition.stored_key),
        ("value", there.value_schema, definition.value_schema),
    ):
        if [shape_of(f.type) for f in before] != [shape_of(f.type) for f in now]:
            lines.append(
                f"Its {what} was ({', '.join(str(f.type) for f in before)}), and is ({', '.join(str(f.type) for f in now)})."
            )
    if there.parts is not None or definition.parts is not None:
        before_parts, now_parts = ([] if e.parts is None else list(e.parts.values) for e in (there, definition))
        if before_parts != now_parts:
            lines.append(f"It had {len(before_parts)} parts, and has {len(now_parts)}.")
    lines += _other_words(there.meaning, definition.meaning)
    zones = there.session_time_zone, definition.session_time_zone
    if None not in zones and zones[0] != zones[1] and any(OF_SESSION in words for words in there.meaning.describe()):
        lines.append(f"The session's time zone was {zones[0]}, and is {zones[1]}.")
    return lines


def _other_words(there: Meaning, now: Meaning) -> list[str]:
    words = zip_longest(there.describe(), now.describe(), fillvalue="nothing")
    return [f"It was {before}, and is {after}." for before, after in words if before != after]


def _other_times(folder: JobFolder, there: Entry, definition: Entry) -> str | None:
    """What to do if only the times differ for which buckets are kept; None if more does."""
    if not (isinstance(there, TableDefinition) and isinstance(definition, TableDefinition)):
        return None
    before, now = there.resolutions, definition.resolutions
    lengths = [[str(r) for r in each.each] if each is not None else None for each in (before, now)]
    if before is None or now is None or lengths[0] != lengths[1] or len(state_changes(there, definition)) != 1:
        return None
    kept = dict(zip(map(str, before.each), before.each, strict=True))
    words = [f'"{r}={r.keep_words}"' for r in now.each if r.keep_seconds != kept[str(r)].keep_seconds]
    pond = folder.storage.uri.rpartition("/jobs/")[0] or folder.storage.uri
    command = f"millpond retention {pond} {there.table} {' '.join(words)} --yes"
    return f"Give its state these times first: {command}; or restore the old ones." if words else None


def _way_back(folder: JobFolder, there: Entry, definition: Entry) -> str:
    if (times := _other_times(folder, there, definition)) is not None:
        return times
    before, now = (None if entry.parts is None else entry.parts.values for entry in (there, definition))
    if before is not None and now is not None and before != now:
        return (
            f"The number of shards or salts of a checkpoint can't change: use {len(before)} again, with as many partitions of the "
            "state; make a savepoint with other shards (millpond savepoint redistribute); or start it as a new job (job=…, or "
            "another pond)."
        )
    return (
        "Start it as a new job (job=…, or another pond), or restore the old definition; names, expressions over "
        f"the aggregates and HAVING may change.  Delete {folder.storage.uri}/tables/{there.table}.json only where you "
        "know that the state is the same."
    )


def _both(title: str, definition: Entry) -> str:
    return "".join(f"  {line}\n" for line in (f"{title}:", *(f"  {line}" for line in definition.describe())))
