"""Random rows of tables without a checkpoint."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

from millpond.replica.record import StoresRecord
from millpond.schema.definition.table import TableDefinition, ValueColumn, key_columns
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType
from millpond.tables.scan.binding import Binding, bind

TEXTS = [
    "",
    "a",
    'say "x"',
    "back\\slash",
    "\x00\x01\x08\t\n\x0b\x0c\r\x1f\x7f",
    "äöü€",
    "𝄞",
    "\ud800"[:0],
    "x" * 900,
    "\udcff",
    "a\udcc3",
]
WHOLE = {"byte": 7, "short": 15, "integer": 31, "long": 63}


def bound(key: tuple[Field, ...], value: tuple[Field, ...], values: tuple[ValueColumn, ...]) -> Binding:
    """A table bound to a replica, as in a generation."""
    definition = TableDefinition(table="t", operator=0, key=key_columns(key), values=values, key_schema=key, value_schema=value)
    store = StoreSchema(operator=0, operator_name="stateStoreSave", store="default", index=0, key=key, value=value, single=True)
    stores = StoresRecord(format=1, job_id="", lineage="", checkpoint="", stores=[store], unread=[])
    return bind(definition, stores, None)


def value_of(type_: SparkType, random_: random.Random) -> Any:
    if random_.random() < 0.1:
        return None
    kind = type_.kind
    if kind == "boolean":
        return random_.random() < 0.5
    if kind == "string":
        return random_.choice(TEXTS)
    if kind in WHOLE:
        edge = 1 << WHOLE[kind]
        near = [n for n in (0, -edge, edge - 1, 2**53, 2**53 - 1, -(2**53), 1 - 2**53) if -edge <= n < edge]
        return random_.choice([*near, random_.randrange(-edge, edge)])
    number = random_.choice(
        [
            0.0,
            -0.0,
            math.nan,
            math.inf,
            1e15,
            9.999e14,
            1e-4,
            9.9e-5,
            0.1,
            1 / 3,
            random_.uniform(-1e6, 1e6),
            random_.expovariate(1e-9),
        ]
    )
    return struct32(number) if kind == "float" else number


def struct32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
