"""Tokens: structs as texts for URLs, with a checksum that shows damage.

token   = base64url of: checksum (4 bytes), then the struct as msgpack
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TypeVar

import msgspec

from millpond.schema.prepared import ready

_CHECKSUM_BYTES = 4
_LONGEST = 1 << 20
T = TypeVar("T", bound=msgspec.Struct)


def pack(token: msgspec.Struct) -> str:
    """The token as text."""
    data = msgspec.msgpack.encode(token)
    return base64.urlsafe_b64encode(_checksum(data) + data).rstrip(b"=").decode()


def unpack(text: object, kind: type[T]) -> T | None:
    """The token of that kind; None if the text isn't one."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        checksum, data = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        return msgspec.msgpack.decode(data, type=ready(kind)) if checksum == _checksum(data) else None
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        return None


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()
