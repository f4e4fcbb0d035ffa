"""One state store of a job, or one of its column families: its operator and its columns.

A checkpoint's schema files describe stores (`checkpoint.operators`), a query's plan does too
(`spark.derive`), and a replica's record has those of its build as JSON (`replica.record`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from millpond.schema.types import Field, parse_fields, struct_of

KeyEncoder = Literal["plain", "prefix", "range", "time_first", "time_last"]
PANDAS_TRANSFORM = "transformWithStateInPandasExec"
Variable = Literal["", "value", "list", "map", "timer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSchema:
    """One store of an operator, or one of its column families, and the columns of its rows.

    operator:       Spark's operator id
    operator_name:  Spark's name, e.g. stateStoreSave
    store:          Spark's store name
    family:         the column family; empty if the store has none
    index:          the store's place in the operator's list, which orders its ids in commits/N
    key, value:     the columns of its rows
    single:         whether only partition 0 has it (limit, aggregation without keys)
    variable:       the kind of state variable of transformWithState; empty for other operators
    ttl:            whether its values are wrapped with the time at which they expire
    many:           whether a key has a list of rows, not one
    encoder:        how keys are laid out in RocksDB
    ordinals:       the leading columns: for `prefix` the first ones, for `range` the ordered ones
    watermarked:    the key's columns that are compared with the watermark: a time, or a window
    writers:        value schema id -> columns, of every value schema that Avro rows of this store
                    may have
    schema_file:    the file of its columns, empty if they are from elsewhere
    """

    operator: int
    operator_name: str
    store: str
    index: int
    key: tuple[Field, ...]
    value: tuple[Field, ...]
    single: bool
    family: str = ""
    variable: Variable = ""
    ttl: bool = False
    many: bool = False
    encoder: KeyEncoder = "plain"
    ordinals: tuple[int, ...] = ()
    watermarked: tuple[int, ...] = ()
    writers: tuple[tuple[int, tuple[Field, ...]], ...] = ()
    schema_file: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        """The store's id in its job: operator/store or operator/store/family."""
        return store_id(self.operator, self.store, self.family)

    def folder(self, partition: int) -> str:
        """The folder of one partition, below the checkpoint."""
        return store_folder(self.operator, partition, self.store)

    def to_json(self) -> dict[str, Any]:
        """All but the schema's file, columns as Spark's JSON."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.compare},
            "key": struct_of(self.key).to_json(),
            "value": struct_of(self.value).to_json(),
            "writers": [(id_, struct_of(columns).to_json()) for id_, columns in self.writers],
        }


def parse_store(data: dict[str, Any]) -> StoreSchema:
    """The reverse of `to_json`.

    Raises ValueError, LookupError, TypeError, UNKNOWN_FORMAT if it isn't one.
    """
    # By hand: threads that let msgspec convert to a dataclass at the same time crashed the process
    # (msgspec 0.22).
    given: dict[str, Any] = {name: data[name] for name in _FORMS if name in data}
    for name, value in given.items():
        _check(name, value, _FORMS[name])
    numbers: dict[str, Any] = {name: tuple(data.get(name, ())) for name in ("ordinals", "watermarked")}
    for name, values in numbers.items():
        for value in values:
            _check(name, value, int)
    writers = []
    for id_, struct in data.get("writers", ()):
        _check("writers", id_, int)
        writers.append((id_, parse_fields(struct)))
    return StoreSchema(key=parse_fields(data["key"]), value=parse_fields(data["value"]), writers=tuple(writers), **numbers, **given)


_FORMS: dict[str, type | tuple[str, ...]] = {
    "operator": int,
    "operator_name": str,
    "store": str,
    "index": int,
    "single": bool,
    "family": str,
    "variable": get_args(Variable),
    "ttl": bool,
    "many": bool,
    "encoder": get_args(KeyEncoder),
}
"""The values of a plain member: a type, or the allowed texts."""


def _check(name: str, value: Any, form: type | tuple[str, ...]) -> None:
    if not (value in form if isinstance(form, tuple) else type(value) is form):
        raise ValueError(f"{name} is {value!r:.80}")


def store_id(operator: int, store: str, family: str = "") -> str:
    """operator/store, or operator/store/family."""
    return f"{operator}/{store}/{family}" if family else f"{operator}/{store}"


def store_folder(operator: int, partition: int, store: str) -> str:
    """The folder of one partition of a store; the store `default` has no folder level of its own."""
    return f"state/{operator}/{partition}" + ("" if store == "default" else f"/{store}")
