"""A file of readers, each with the hash of a token and the tables that the token opens.

    {"format": 1, "readers": [{"name": "dashboard", "sha256": "…", "tables": ["page_*"], "metrics": false,
                                 "savepoints": "read", "expires": "2027-03-01T00:00:00+00:00",
                                 "scram": "SCRAM-SHA-256$4096:…"}]}

Tokens are 32 random bytes, which nobody can guess, so a plain SHA-256 is enough.  The file has no
tokens, only hashes, and of each token what PostgreSQL's protocol needs to check it (`verifier`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from millpond.errors import RequestError, SetupError
from millpond.serve.access.verifier import Verifier, make_verifier, parse_verifier

FORMAT = 1
_PREFIX = "mp_"
SavepointRight = Literal["read", "create"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who may read.

    name:     for people; logs and metrics never show it beside a question
    tables:   patterns of table names: * is any text, ? any character
    metrics:  whether the token opens /metrics, which covers all jobs
    savepoints: read to list, show and verify the savepoints of all jobs; create to make them, too
    expires:  when the token ends, by the system's clock; None for never
    verifier: of the token; None for one of a file that an earlier version wrote
    """

    name: str
    tables: tuple[str, ...]
    metrics: bool = False
    savepoints: SavepointRight | None = None
    expires: float | None = None
    verifier: Verifier | None = None

    def has_expired(self) -> bool:
        """Whether the token has ended."""
        return self.expires is not None and time.time() >= self.expires

    @property
    def opens_all(self) -> bool:
        """Whether this reader may read every table, also one that nobody knows yet."""
        return "*" in self.tables

    def may_read(self, names: Iterable[str]) -> bool:
        """Whether this reader may read a table with these names."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.tables)


EVERYBODY = Reader("everybody", ("*",), metrics=True, savepoints="read")
"""The reader of a server without tokens, who makes no savepoints: they take the server's disk."""


def check_may_read(reader: Reader, name: str, names: Iterable[str]) -> None:
    """Raise NOT_ALLOWED if this reader may not read a table, even if it doesn't exist.

    names:  all that the table has
    """
    if reader is not EVERYBODY and not reader.may_read(names):
        raise RequestError(
            "NOT_ALLOWED",
            f"This token doesn't open the table {name!r}.",
            hint="GET /tables lists those that it opens; ask the server's operator for more.",
            table=name,
        )


def check_sees_metrics(reader: Reader, path: str) -> None:
    """Raise NOT_ALLOWED if this reader may not see what is measured.

    path:  of the request
    """
    if not reader.metrics:
        raise RequestError(
            "NOT_ALLOWED",
            f"This token doesn't open {path}, which covers all jobs.",
            hint="Make one that does: millpond token FILE NAME --metrics",
        )


def digest(token: str) -> str:
    """A token's hash, for the file."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def read_tokens(path: Path) -> dict[str, Reader]:
    """Digest of a token -> its reader.  Raises INVALID_TOKENS if the file is missing or invalid."""
    try:
        return _parse(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise SetupError(
            "INVALID_TOKENS",
            f"The file of tokens {path} can't be used: {wrong!r:.200}.",
            hint=f"Make one: millpond token {path} NAME --tables 'page_*'",
            path=str(path),
        ) from wrong


def _parse(data: Any) -> dict[str, Reader]:
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("readers"), list):
        raise ValueError(f"it must be an object with format {FORMAT} and a list of readers")
    readers: dict[str, Reader] = {}
    for entry in data["readers"]:
        tables, sha256, name, metrics = entry["tables"], entry["sha256"], entry["name"], entry.get("metrics", False)
        if not isinstance(tables, list) or not all(isinstance(t, str) for t in tables) or not isinstance(metrics, bool):
            raise ValueError("tables must be a list of texts, metrics true or false")
        if not isinstance(name, str) or not isinstance(sha256, str) or len(sha256) != 64:
            raise ValueError("name must be a text, sha256 a hash of 64 hex digits")
        savepoints = entry.get("savepoints")
        if savepoints is not None and savepoints not in get_args(SavepointRight):
            raise ValueError("savepoints must be read or create")
        verifier = None if entry.get("scram") is None else parse_verifier(entry["scram"])
        readers[sha256] = Reader(name, tuple(tables), metrics, savepoints, _parse_expires(entry.get("expires")), verifier)
    return readers


def _parse_expires(text: Any) -> float | None:
    if text is None:
        return None
    when = dt.datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError("expires must be a time with its zone")
    return when.timestamp()


def add_token(
    path: Path,
    name: str,
    *,
    tables: Iterable[str],
    metrics: bool = False,
    savepoints: SavepointRight | None = None,
    valid_seconds: float | None = None,
) -> str:
    """Give a reader a new token in place of the old one; only this call returns the token.

    valid_seconds:  how long it is valid, None for ever
    Raises:  INVALID_TOKENS if there is a file that isn't one of tokens; NOT_WRITABLE.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    known = {d: r for d, r in read_tokens(path).items() if r.name != name} if path.exists() else {}
    expires = None if valid_seconds is None else time.time() + valid_seconds
    known[digest(token)] = Reader(name, tuple(tables), metrics, savepoints, expires, make_verifier(token))
    _write(path, known)
    return token


def remove_token(path: Path, name: str) -> bool:
    """Remove a reader's token; False if there is no such reader.  Raises as `add_token`."""
    known = read_tokens(path)
    left = {d: r for d, r in known.items() if r.name != name}
    if len(left) < len(known):
        _write(path, left)
    return len(left) < len(known)


def _entry(sha256: str, reader: Reader) -> dict[str, Any]:
    entry = {"name": reader.name, "sha256": sha256, "tables": list(reader.tables), "metrics": reader.metrics}
    if reader.savepoints is not None:
        entry["savepoints"] = reader.savepoints
    if reader.expires is not None:
        entry["expires"] = dt.datetime.fromtimestamp(reader.expires, dt.UTC).isoformat()
    if reader.verifier is not None:
        entry["scram"] = str(reader.verifier)
    return entry


def _write(path: Path, readers: dict[str, Reader]) -> None:
    entries = [_entry(d, reader) for d, reader in readers.items()]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps({"format": FORMAT, "readers": entries}, indent=1) + "\n")
        temporary.replace(path)
    except OSError as broken:
        raise SetupError(
            "NOT_WRITABLE",
            f"{path} can't be written: {broken.strerror}.",
            hint="Name a file in a folder that this user may write to.",
            path=str(path),
        ) from broken
