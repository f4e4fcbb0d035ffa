"""What the streams of a broadcast have to be, looked at before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millpond.errors import RequestError
from millpond.spark.broadcast.control import ACTION, REALS, VERSION, WHOLE, columns_of, is_simple
from millpond.spark.derive.plan import is_deterministic, require_classic
from millpond.spark.shards import SHARD, unhashable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

# Columns of the tables of control state that stand beside a control stream's own.
_OURS = frozenset({"since", "since_batch", "replaced", "removed"})
_SIMPLE_HINT = "Give text, booleans, numbers or bytes: a time as a number, what is nested as to_json(…)."
_KEY_HINT = "Cast it to text or a decimal: 0.0 and -0.0 are two keys to the state and one to Python, and NaN is none."
_NO_KEYS = frozenset({ACTION, VERSION, "reason", "record"})


class Subject(NamedTuple):
    """How errors name what can't be made, and its two streams."""

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
            raise invalid(f"{subject.events} or {subject.control} are no stream", "Read both with spark.readStream.", subject)
    for name in (key, order):
        if name not in control.columns:
            hint = f"Name one of {', '.join(control.columns)}."
            raise invalid(f"the {subject.control} have no column {name!r}", hint, subject)
    ours = {name for name in events.columns if name.lower() == SHARD}
    if ours:
        found = f"the {subject.events} have a column {', '.join(sorted(ours))}"
        raise invalid(found, "Call it otherwise: withColumnRenamed.", subject)
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
            raise invalid(f"the control records have a column {name}, as the tables of control state have", "Rename it.")
        if lowered in (ACTION, VERSION) and lowered != name:
            raise invalid(
                f"the control records have a column {name}", f"Write it {lowered}, if that is what it is; else rename it."
            )
        if (name == ACTION and kind != "string") or (name == VERSION and kind not in WHOLE):
            raise _wrong_type(name, field.dataType, f"{ACTION} is text, and {VERSION} a whole number.")
    if key.lower() in _NO_KEYS:
        raise invalid(f"the key is called {key}, which means something else of a control record", "Rename it.")
    if schema[key].dataType.typeName() in REALS:
        raise _wrong_type(key, schema[key].dataType, _KEY_HINT)


def event_columns(events: DataFrame, by: str | list[str] | None, subject: Subject = BROADCAST) -> list[str]:
    """The columns that decide an event's shard.  Raises INVALID_REQUEST."""
    names = [by] if isinstance(by, str) else by or events.columns
    unknown = [name for name in names if name not in events.columns]
    if unknown:
        hint = f"Name some of {', '.join(events.columns)}."
        raise invalid(f"the {subject.events} have no column {unknown[0]!r} to go by", hint, subject)
    unhashed = unhashable(events.schema, names)
    if unhashed:
        raise invalid(f"Spark can't hash the column {unhashed[0]}, a map or variant", "Name other columns with by=[…].", subject)
    if not is_deterministic(events, names):
        raise invalid(
            f"the {subject.events} have columns that aren't the same when a task runs again",
            "Name columns that are with by=[…], such as partition and offset.",
            subject,
        )
    return names


def invalid(what: str, hint: str, subject: Subject = BROADCAST) -> RequestError:
    """The error of a broadcast, or of models, that can't be."""
    return RequestError("INVALID_REQUEST", f"{subject.refusal}: {what}.", hint=hint)


def _wrong_type(name: str, type_: DataType, hint: str) -> RequestError:
    return invalid(f"the control column {name} is of type {type_.simpleString()}", hint)
