"""Compares the state that a query would have with the state that there is, operator by operator.

Spark compares the types of keys and values, position by position, and ignores names and meaning.
So columns of one type can change places, or become others, and Spark goes on.  What they mean is
known from the words of the job's definitions, or of the old code; for rows of joins and state
variables, from the names of their columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millpond.schema.definition.meaning import Meaning
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType, is_wider, shape_of
from millpond.spark.derive.state_words import OF_SESSION
from millpond.spark.upgrade.finding import Finding, Kind

_AGGREGATIONS = ("stateStoreSave", "sessionWindowStateStoreSaveExec")
_KEYED = (*_AGGREGATIONS, "dedupe", "dedupeWithinWatermark")
_TRANSFORMS = ("transformWithStateInPandasExec", "transformWithStateInPySparkExec")
_JOIN = "symmetricHashJoin"
_OTHER_OPERATOR = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
_OTHER_KEY = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
_OTHER_VALUE = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
_BACK = "Restore the old code, or start it as a new job, with a checkpoint of its own."
EVOLVE = "Make a savepoint, and one of it for the new code: millpond evolve DIR SAVEPOINT FILE --name NEW."
_EVOLVE_OLD = "  Name the old code there (--old): nothing says what the aggregates of the state mean."


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the state of one operator, as it is or as it would be.

    name:      Spark's name of the operator
    stores:    its stores and column families
    meaning:   of its columns, in words; None if nothing says it
    zone:      the session's time zone in these words; None if it isn't known
    """

    name: str
    stores: tuple[StoreSchema, ...]
    meaning: Meaning | None
    zone: str | None = None


def compare_operators(old: Mapping[int, Known], new: Mapping[int, Known], *, by_name: bool) -> Iterator[Finding]:
    """What changes, by operator.

    by_name:  whether Spark finds the columns of state variables by their names (Avro)
    """
    for operator in sorted(old.keys() | new.keys()):
        before, now = old.get(operator), new.get(operator)
        if before is None or now is None or before.name != now.name:
            yield _other_operator(operator, before, now)
        elif now.name in _TRANSFORMS:
            yield from _variables(operator, before, now, by_name=by_name)
        else:
            yield from _stores(operator, before, now)


def _other_operator(operator: int, before: Known | None, now: Known | None) -> Finding:
    if now is None:
        what = f"{before.name if before else ''} is gone."
    else:
        what = f"{now.name} is new." if before is None else f"{before.name} has become {now.name}."
    hint = f"{_BACK}  Operators are numbered from the sink: one more or less changes the numbers of those before it."
    return Finding(kind="refused", operator=operator, what=what, spark_error=_OTHER_OPERATOR, hint=hint)


# ---------------------------------------------------------------- keys and values


def _stores(operator: int, before: Known, now: Known) -> Iterator[Finding]:
    there = {(store.store, store.family): store for store in before.stores}
    differ = False
    for store in now.stores:
        old = there.get((store.store, store.family))
        if old is None:
            continue
        keys = list(_keys(operator, before, now, old, store))
        values = [] if keys else list(_values(operator, before, now, old, store))
        differ = differ or bool(keys or values)
        yield from keys
        yield from values
        if now.name == _JOIN and keys:
            return  # both sides have the same key
    if not differ:
        yield from _meaning(operator, before, now)


def _keys(operator: int, before: Known, now: Known, old: StoreSchema, new: StoreSchema) -> Iterator[Finding]:
    if _shapes(old.key) == _shapes(new.key):
        return
    what = f"The key was ({_columns(old.key)}), and would be ({_columns(new.key)})."
    lost = _lost(before, now)
    if lost is not None and now.name in _AGGREGATIONS:
        hint = f"Rows that differ by {lost} alone become one, by the function `merge` of FILE.  {EVOLVE}"
        yield Finding(kind="fixable", operator=operator, what=what, spark_error=_OTHER_KEY, hint=hint)
    else:
        yield Finding(kind="refused", operator=operator, what=what, spark_error=_OTHER_KEY, hint=_BACK)


def _lost(before: Known, now: Known) -> str | None:
    """The grouping columns that the new key leaves out, if it is a part of the old key."""
    if before.meaning is None or now.meaning is None:
        return None
    was, would_be = Counter(before.meaning.grouping), Counter(now.meaning.grouping)
    return None if would_be - was else ", ".join((was - would_be).elements())


def _values(operator: int, before: Known, now: Known, old: StoreSchema, new: StoreSchema) -> Iterator[Finding]:
    if _shapes(old.value) == _shapes(new.value):
        if now.name not in _KEYED:
            yield from _same_shapes(operator, store_title(new), old.value, new.value)
        return
    what = f"The value was ({_columns(old.value)}), and would be ({_columns(new.value)})."
    kind: Kind = "refused"
    hint = _BACK
    if now.name in _AGGREGATIONS:
        kind, hint = "fixable", f"{_changed_aggregates(before, now)}{EVOLVE}{_EVOLVE_OLD if before.meaning is None else ''}"
    elif _can_convert(old.value, new.value):
        kind, hint = "fixable", f"{_changed_columns(old.value, new.value)}{_BACK}"
    yield Finding(kind=kind, operator=operator, what=what, spark_error=_OTHER_VALUE, hint=hint)


def _changed_aggregates(before: Known, now: Known) -> str:
    if before.meaning is None or now.meaning is None:
        return ""
    was, would_be = Counter(before.meaning.aggregates), Counter(now.meaning.aggregates)
    added, removed = (would_be - was).elements(), (was - would_be).elements()
    return _sentences(list(added), list(removed), "needs a value to begin with")


def _changed_columns(old: tuple[Field, ...], new: tuple[Field, ...]) -> str:
    was, would_be = dict(_leaves(old)), dict(_leaves(new))
    added, removed = [n for n in would_be if n not in was], [n for n in was if n not in would_be]
    widened = [
        f"{n} would have to become {would_be[n]}.  " for n in would_be if n in was and shape_of(was[n]) != shape_of(would_be[n])
    ]
    return _sentences(added, removed, "needs a value for the rows that are there") + "".join(widened)


def _sentences(added: list[str], removed: list[str], needs: str) -> str:
    lines = [f"{words} {needs}.  " for words in added] + [f"{words} would have to be dropped.  " for words in removed]
    return "".join(lines)


def _can_convert(old: tuple[Field, ...], new: tuple[Field, ...]) -> bool:
    """Whether each column that stays keeps its type, or gets a wider one."""
    was, would_be = dict(_leaves(old)), dict(_leaves(new))
    stay = [name for name in would_be if name in was]
    return bool(stay) and all(is_wider(was[name], would_be[name]) for name in stay)


def _same_shapes(operator: int, title: str, old: tuple[Field, ...], new: tuple[Field, ...]) -> Iterator[Finding]:
    """Columns of the same types: who takes which column's values?"""
    was, would_be = [name for name, _ in _leaves(old)], [name for name, _ in _leaves(new)]
    changed = [(a, b) for a, b in zip(was, would_be, strict=True) if a != b]
    if not changed:
        return
    pairs = ", ".join(f"{b} gets the values of {a}" for a, b in changed)
    if any(b in was for _, b in changed):
        yield Finding(kind="silently_wrong", operator=operator, what=f"{title} has columns in another order: {pairs}.", hint=_BACK)
    else:
        hint = "That is right if they are the same under another name; else restore the old names."
        yield Finding(kind="unknown", operator=operator, what=f"{title} has other names: {pairs}.", hint=hint)


# ---------------------------------------------------------------- meaning


def _meaning(operator: int, before: Known, now: Known) -> Iterator[Finding]:
    """Types are the same: are the columns?"""
    if before.meaning is None or now.meaning is None:
        yield from _without_meaning(operator, before, now)
        return
    for what, was, would_be in (
        ("grouped by", before.meaning.grouping, now.meaning.grouping),
        ("aggregated", before.meaning.aggregates, now.meaning.aggregates),
    ):
        if was == would_be:
            continue
        changes = "; ".join(f"{a} has become {b}" for a, b in zip(was, would_be, strict=False) if a != b)
        if Counter(was) == Counter(would_be):
            changes = f"the order: {changes}"
        yield Finding(kind="silently_wrong", operator=operator, what=f"What is {what} has changed: {changes}.", hint=_BACK)
    words = (*before.meaning.grouping, *before.meaning.aggregates)
    if None not in (before.zone, now.zone) and before.zone != now.zone and any(OF_SESSION in text for text in words):
        yield Finding(
            kind="silently_wrong",
            operator=operator,
            what=f"The session's time zone was {before.zone}, and would be {now.zone}.",
            hint="Set spark.sql.session.timeZone as before.",
        )


def _without_meaning(operator: int, before: Known, now: Known) -> Iterator[Finding]:
    """Nothing says what the columns meant, apart from their names in the schema."""
    for old, new in zip(before.stores, now.stores, strict=False):
        yield from _same_shapes(operator, "The key", old.key, new.key)
        if now.name not in _AGGREGATIONS or not new.value:
            continue
        was, would_be = [f.name for f in old.value], [f.name for f in new.value]
        if was != would_be:
            what = f"Its buffers were {', '.join(was)}, and would be {', '.join(would_be)}."
            yield Finding(kind="silently_wrong", operator=operator, what=what, hint=_BACK)
        else:
            what = (
                f"Its buffers have the same types and names ({', '.join(was)}), but nothing here says of which columns they were."
            )
            hint = "Name the old code (--old), or define the job's tables with it (millpond.define), and check again."
            yield Finding(kind="unknown", operator=operator, what=what, hint=hint)


# ---------------------------------------------------------------- state variables


def _variables(operator: int, before: Known, now: Known, *, by_name: bool) -> Iterator[Finding]:
    there = {store.family: store for store in before.stores}
    wanted = {store.family: store for store in now.stores}
    removed, added = [n for n in there if n not in wanted], [n for n in wanted if n not in there]
    for name in wanted:
        if name in there:
            yield from _variable(operator, there[name], wanted[name], by_name=by_name)
    for name in added:
        twin = next((n for n in removed if _is_twin(there[n], wanted[name])), None)
        if twin is None:
            if wanted[name].variable != "timer":  # these come with a time mode
                yield Finding(kind="noted", operator=operator, what=f"The variable {name} is new: it begins empty.")
            continue
        removed.remove(twin)
        yield Finding(
            kind="silently_wrong",
            operator=operator,
            what=f"The variable {twin} is gone, and {name} of the same type begins empty, as after a rename without its values.",
            hint=f'Keep the old name, or say renamed = {{"{name}": "{twin}"}} in FILE.  {EVOLVE}',
        )
    for name in removed:
        what = f"The variable {name} is gone: its values stay in the state, and nothing reads them."
        yield Finding(kind="noted", operator=operator, what=what)
    if not (removed or added):
        yield from _grouping(operator, before, now)


def _is_twin(old: StoreSchema, new: StoreSchema) -> bool:
    return (old.variable, old.ttl, _shapes(old.value)) == (new.variable, new.ttl, _shapes(new.value))


def _variable(operator: int, old: StoreSchema, new: StoreSchema, *, by_name: bool) -> Iterator[Finding]:
    title = f"The variable {new.family}"
    if _shapes(old.key) != _shapes(new.key):
        what = f"The key of {new.family} was ({_columns(old.key)}), and would be ({_columns(new.key)})."
        yield Finding(kind="refused", operator=operator, what=what, spark_error=_OTHER_KEY, hint=_BACK)
    elif old.variable != new.variable or old.ttl != new.ttl:
        was, would_be = (f"{s.variable}{' with a TTL' if s.ttl else ''}" for s in (old, new))
        what = f"{title} was a {was}, and would be a {would_be}."
        kind: Kind = "fixable" if old.variable == new.variable and not by_name else "refused"
        hint = EVOLVE if kind == "fixable" else _BACK
        yield Finding(kind=kind, operator=operator, what=what, spark_error=_OTHER_VALUE, hint=hint)
    elif by_name:
        yield from _evolved(operator, title, old.value, new.value)
    elif _shapes(old.value) == _shapes(new.value):
        yield from _same_shapes(operator, title, old.value, new.value)
    else:
        what = f"{title} was ({_columns(old.value)}), and would be ({_columns(new.value)})."
        kind = "fixable" if _can_convert(old.value, new.value) else "refused"
        hint = _changed_columns(old.value, new.value) + (EVOLVE if kind == "fixable" else _BACK)
        yield Finding(kind=kind, operator=operator, what=what, spark_error=_OTHER_VALUE, hint=hint)


def _evolved(operator: int, title: str, old: tuple[Field, ...], new: tuple[Field, ...]) -> Iterator[Finding]:
    """Avro finds columns by name: others begin as NULL."""
    was, would_be = dict(_leaves(old)), dict(_leaves(new))
    narrowed = [n for n in would_be if n in was and not is_wider(was[n], would_be[n])]
    if narrowed:
        what = f"{title} was ({_columns(old)}), and would be ({_columns(new)})."
        error = "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"
        yield Finding(kind="refused", operator=operator, what=what, spark_error=error, hint=_BACK)
        return
    removed, added = [n for n in was if n not in would_be], [n for n in would_be if n not in was]
    for name in added:
        twin = next((n for n in removed if shape_of(was[n]) == shape_of(would_be[name])), None)
        if twin is not None:
            removed.remove(twin)
            what = f"{title} has {name} in place of {twin}, which begins as NULL: as if it were renamed without its values."
            yield Finding(kind="silently_wrong", operator=operator, what=what, hint="Keep the old name.")
        else:
            yield Finding(kind="noted", operator=operator, what=f"{title} has a new column {name}, which begins as NULL.")
    for name in removed:
        yield Finding(kind="noted", operator=operator, what=f"{title} has no {name} any more.")


def _grouping(operator: int, before: Known, now: Known) -> Iterator[Finding]:
    if before.meaning is not None and now.meaning is not None:
        yield from _meaning(operator, before, now)


# ---------------------------------------------------------------- columns


def store_title(store: StoreSchema) -> str:
    """A store in a sentence."""
    return f"The state {store.family or store.store}"


def _shapes(columns: tuple[Field, ...]) -> list[object]:
    return [shape_of(field.type) for field in columns]


def _columns(columns: tuple[Field, ...]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)


def _leaves(columns: tuple[Field, ...], above: str = "") -> Iterator[tuple[str, SparkType]]:
    """The columns by name, those in structs by their path."""
    for field in columns:
        if field.type.kind == "struct":
            yield from _leaves(field.type.fields, f"{above}{field.name}.")
        else:
            yield above + field.name, field.type
