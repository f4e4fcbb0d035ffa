"""Checks of a broadcast's streams, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millpond.errors import RequestError
from millpond.schema.shards import SHARD
from millpond.spark.broadcast.control import ACTION, REALS, VERSION, WHOLE, columns_of, is_simple
from millpond.spark.derive.plan import is_deterministic, require_classic
from millpond.spark.shards import unhashable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

# Columns that the tables of control state have besides those of the control stream.
_OURS = frozenset({"since", "since_batch", "replaced", "removed"})
_SIMPLE_HINT = "Use text, booleans, numbers or bytes: times as numbers, nested values as to_json(…)."
_KEY_HINT = "Cast it to text or a decimal: to the state, 0.0 and -0.0 are two keys, to Python they are one; NaN can't be a key."
_NO_KEYS = frozenset({ACTION, VERSION, "reason", "record"})


class Subject(NamedTuple):
    """The words in errors for the operation and its two streams."""

    refusal: str
    events: str
    control: str


BROADCAST = Subject("The broadcast can't be made", "events", "control records")
MODELS = Subject("The models can't be served", "records", "model records")


def check_streams(events: DataFrame, control: DataFrame, key: str, order: str, subject: Subject = BROADCAST) -> None:
    """Refuse streams that can't be broadcast.  Raises INVALID_REQUEST, SPARK_CONNECT."""
    for df in (events, control):
        require_classic(df, "_jdf")
        if not df.isStreaming:
            raise invalid(f"{subject.events} or {subject.control} aren't a stream", "Read both with spark.readStream.", subject)
    for name in (key, order):
        if name not in control.columns:
            hint = f"Name one of {', '.join(control.columns)}."
            raise invalid(f"the {subject.control} have no column {name!r}", hint, subject)
    ours = {name for name in events.columns if name.lower() == SHARD}
    if ours:
        found = f"the {subject.events} have a column {', '.join(sorted(ours))}"
        raise invalid(found, "Rename it with withColumnRenamed.", subject)
    _check_control(control.schema, key, order)


def _check_control(schema: StructType, key: str, order: str) -> None:
    recorded = {f.name for f in columns_of(schema, key, order)}
    for field in schema.fields:
        name, kind = field.name, field.dataType.typeName()
        is_kept = name in recorded
        if is_kept and not is_simple(field.dataType):
            raise _wrong_type(name, field.dataType, _SIMPLE_HINT)
        lowered = name.lower()
        if is_kept and lowered in _OURS:
            raise invalid(f"the control records have a column {name}, a name that the tables of control state use", "Rename it.")
        if lowered in (ACTION, VERSION) and lowered != name:
            raise invalid(
                f"the control records have a column {name}", f"Spell it {lowered} if you mean that one; otherwise rename it."
            )
        if (name == ACTION and kind != "string") or (name == VERSION and kind not in WHOLE):
            raise _wrong_type(name, field.dataType, f"{ACTION} is text, and {VERSION} a whole number.")
    if key.lower() in _NO_KEYS:
        raise invalid(f"the key is called {key}, a name with another meaning in a control record", "Rename it.")
    if schema[key].dataType.typeName() in REALS:
        raise _wrong_type(key, schema[key].dataType, _KEY_HINT)


def event_columns(events: DataFrame, by: str | list[str] | None, subject: Subject = BROADCAST) -> list[str]:
    """The columns that decide an event's shard.  Raises INVALID_REQUEST."""
    names = [by] if isinstance(by, str) else by or events.columns
    unknown = [name for name in names if name not in events.columns]
    if unknown:
        hint = f"Name some of {', '.join(events.columns)}."
        raise invalid(f"the {subject.events} have no column {unknown[0]!r}", hint, subject)
    unhashed = unhashable(events.schema, names)
    if unhashed:
        raise invalid(f"Spark can't hash the column {unhashed[0]}, a map or variant", "Name other columns with by=[…].", subject)
    if not is_deterministic(events, names):
        raise invalid(
            f"the {subject.events} have columns whose values change when a task runs again",
            "Name columns that don't change, with by=[…], such as partition and offset.",
            subject,
        )
    return names


def invalid(what: str, hint: str, subject: Subject = BROADCAST) -> RequestError:
    """The error of a broadcast, or of models, that can't be made."""
    return RequestError("INVALID_REQUEST", f"{subject.refusal}: {what}.", hint=hint)


def _wrong_type(name: str, type_: DataType, hint: str) -> RequestError:
    return invalid(f"the control column {name} is of type {type_.simpleString()}", hint)
