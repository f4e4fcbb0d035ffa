"""The hot groups of a job, as a file in its folder.

    {"hot": [hash, …], "unnamed": [hash, …], "columns": {"page": "string"},
     "keys": [{"hash": …, "key": {"page": "/"}, "share": 0.48, "found_in_batch": 3}, …]}

Spark's tasks read `hot` and `unnamed`, people read `keys`, whose values have the JSON forms of
`schema.values` and the types of `columns`.  No answer depends on this list, only the parts of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import MillpondError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.schema.types import SparkType, parse_type
from millpond.schema.values import encode_json, from_json, to_json


@dataclass(frozen=True, slots=True)
class HotKey:
    """A group that gets a large share of the rows.

    hash:            its id for tasks
    key:             its values by column, as for `get`; None until a batch has named it
    share:           of the newest rows, 0 to 1, when the list was last written
    found_in_batch:  the batch that showed it; later ones split it
    as_json:         its values in JSON's form, as the file has them; None in a list that is yet to be written
    """

    hash: int
    key: dict[str, Any] | None
    share: float
    found_in_batch: int
    as_json: dict[str, Any] | None = field(default=None, repr=False, compare=False)


def to_bytes(keys: Iterable[HotKey], columns: Mapping[str, SparkType]) -> bytes:
    """The file's content.

    columns:  the types of the columns that distinguish groups
    """
    listed = list(keys)
    write = {name: to_json(type_) for name, type_ in columns.items()}
    entries = [
        {
            "hash": k.hash,
            "key": None if k.key is None else {name: write[name](value) for name, value in k.key.items()},
            "share": round(k.share, 4),
            "found_in_batch": k.found_in_batch,
        }
        for k in listed
    ]
    return encode_json(
        {
            "hot": [key.hash for key in listed],
            "unnamed": [key.hash for key in listed if key.key is None],
            "columns": {name: type_.to_json() for name, type_ in columns.items()},
            "keys": entries,
        }
    )


def from_bytes(content: bytes) -> list[HotKey]:
    """The groups in a file.

    Raises:  ValueError if it isn't such a file.
    """
    try:
        listed = parse_json(content, exact=True)
        columns = {name: parse_type(type_) for name, type_ in listed["columns"].items()}
        return [
            HotKey(int(k["hash"]), parse_key(k["key"], columns), float(k["share"]), int(k["found_in_batch"]), k["key"])
            for k in listed["keys"]
        ]
    except (*DAMAGE, MillpondError) as broken:
        raise ValueError(f"it isn't a list of hot keys: {type(broken).__name__} {broken}") from broken


def parse_key(data: Any, columns: Mapping[str, SparkType]) -> dict[str, Any] | None:
    """A group's values from decoded JSON.  A member that is missing is NULL.  Raises WRONG_TYPE."""
    return None if data is None else {name: from_json(type_, column=name)(data.get(name)) for name, type_ in columns.items()}
