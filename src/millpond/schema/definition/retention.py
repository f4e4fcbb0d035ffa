"""The retention in a table's definition: `settings.Retention`, from and to JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from millpond.settings import Retention

Json = Any
_WHOLE = ("closed_bytes", "history_batches")


def retention_json(retention: Retention | None) -> Json:
    """The numbers by their names in `Retention`, null for no limit; null without a retention."""
    return None if retention is None else asdict(retention)


def parse_retention_json(data: Json) -> Retention | None:
    """The reverse; missing numbers have the defaults of `Retention`.  Raises ValueError."""
    if data is None:
        return None
    names = asdict(Retention())
    if not isinstance(data, dict) or not data.keys() <= names.keys():
        raise ValueError(f"its retention is {data!r:.100}")
    for name, value in data.items():
        if value is None and name != "closed_bytes":
            continue
        if isinstance(value, bool) or not isinstance(value, int if name in _WHOLE else int | float) or not value >= 0:
            raise ValueError(f"{name} of its retention is {value!r:.100}")
    return Retention(**data)
