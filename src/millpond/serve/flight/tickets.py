"""Statements that a client carries for the server: as handles of prepared statements, and as tickets.

A handle has all of the statement, so that the server keeps nothing for it, and any process of the
server knows it.  It is signed, and is good for one reader, for one use and for a time.

Shape:   32 bytes HMAC-SHA-256, then MessagePack of `Handle`.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from millpond.errors import RequestError
from millpond.schema.prepared import ready

_SIGNATURE_BYTES = 32
_SECONDS = {"prepared": 3600.0, "ticket": 600.0}


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with all that its answer depends on.

    use:       a prepared statement, or a ticket by which its answer is taken
    number:    random, by which it is cancelled
    reader:    hash of the reader's token; empty on a server without tokens
    ends:      when it is no longer good, by the system's clock
    values:    a record batch of parameters in Arrow's IPC form, with its schema; None for none
    at, separate:  as in `AskSql`
    bounds:    the same, each as a text
    """

    use: Literal["prepared", "ticket"]
    number: str
    reader: str
    ends: float
    text: str
    values: bytes | None = None
    at: int | str | None = None
    bounds: dict[str, str] = {}
    separate: bool = False


class Signer:
    """Writes and reads handles.

    shared:  the folder of the server's processes, which have one key; None for one process
    """

    def __init__(self, shared: Path | None) -> None:
        self._key = secrets.token_bytes(32) if shared is None else _shared_key(shared)
        self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(ready(Handle)).decode

    def write(self, handle: Handle, use: Literal["prepared", "ticket"]) -> bytes:
        """The bytes of a handle for a use, from now on."""
        made = msgspec.structs.replace(handle, use=use, number=secrets.token_hex(8), ends=time.time() + _SECONDS[use])
        body = self._encode(made)
        return self._sign(body) + body

    def read(self, data: bytes, use: str, reader: str) -> Handle:
        """The handle of some bytes.

        Raises:  INVALID_REQUEST if this server didn't write them for this use and this reader;
                 TOKEN_EXPIRED.
        """
        signature, body = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        handle = self._decode(body) if hmac.compare_digest(signature, self._sign(body)) else None
        if handle is None or handle.use != use or handle.reader != reader:
            raise RequestError(
                "INVALID_REQUEST",
                f"The {use} statement isn't one that this server gave to this reader."
                if use == "prepared"
                else "The ticket isn't one that this server gave to this reader.",
                hint="Ask for the statement again, with the same token.",
            )
        if time.time() > handle.ends:
            raise RequestError(
                "TOKEN_EXPIRED", f"The {use} is older than {_SECONDS[use]:g} seconds.", hint="Ask for the statement again."
            )
        return handle

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def _shared_key(folder: Path) -> bytes:
    """The key of all processes: the first one writes it, whole or not at all."""
    place, own = folder / "flight.key", folder / f"flight.key.{os.getpid()}"
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
    with contextlib.suppress(FileExistsError):
        os.link(own, place)
    own.unlink()
    return place.read_bytes()
