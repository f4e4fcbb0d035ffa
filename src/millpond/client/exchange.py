"""One question to a server and its answer, without doing I/O: requests, what an answer means, and when to ask again.

The client that waits and the one that doesn't are the same two loops around these, so that they can't differ in what they say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from millpond.errors import CONDITIONS, MillpondError, StorageError
from millpond.schema.convert import to_stored
from millpond.schema.definition import TableDefinition, parse_definition
from millpond.schema.types import SparkType
from millpond.settings import ClientSettings
from millpond.checkpoint.position import Batch, Position
from millpond.tables.answer import Cut, Lag, Row, Rows
from millpond.tables.keys import Key, KeyReader
from millpond.tables.values import Json, decode_json, encode_json, from_json, to_json

ARROW = "application/vnd.apache.arrow.stream"
_DEFINITION = "millpond-definition"
# Errors that may pass by themselves.
_PASSING = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Question:
    """A request: only reads are asked, so any of them may be asked again."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: header names in lower case, the body whole and unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
