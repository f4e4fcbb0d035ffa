"""Which groups of a job are hot, as the file in its folder says.

    {"hot": [hash, …], "unnamed": [hash, …],
     "keys": [{"hash": …, "key": {"page": "/"}, "share": 0.48, "found_in_batch": 3}, …]}

Spark's tasks read `hot` and `unnamed`, people read `keys`.  No answer hangs on this list, only where rows go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HotKey:
    """A group that gets a large share of the rows.

    hash:            what tasks know it by
    key:             its values by column, as JSON has them; None until a batch has named it
    share:           of the newest rows, 0 to 1, as it was when the list was last written
    found_in_batch:  the batch that showed it; the next ones split it
    """

    hash: int
    key: dict[str, Any] | None
    share: float
    found_in_batch: int


def to_bytes(keys: Iterable[HotKey]) -> bytes:
    """The file's content."""
    listed = list(keys)
    told = [{"hash": k.hash, "key": k.key, "share": round(k.share, 4), "found_in_batch": k.found_in_batch} for k in listed]
    hot = [key.hash for key in listed]
    return json.dumps({"hot": hot, "unnamed": [key.hash for key in listed if key.key is None], "keys": told}).encode()


def from_bytes(content: bytes) -> list[HotKey]:
    """The groups in a file.

    Raises:  ValueError where it isn't one.
    """
    try:
        told = json.loads(content)["keys"]
        return [HotKey(int(k["hash"]), k["key"], float(k["share"]), int(k["found_in_batch"])) for k in told]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as broken:
        raise ValueError(f"it isn't a list of hot keys: {type(broken).__name__} {broken}") from broken
