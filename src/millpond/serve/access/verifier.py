"""What proves that a client has a token, without the token: a verifier of SCRAM-SHA-256.

Shape:   SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey, the last three in base64, as PostgreSQL
         keeps passwords.
Source:  RFC 5802; PostgreSQL 15, src/common/scram-common.c.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

# A token has 256 random bits: nobody tries them all, however quick one try is.
_ITERATIONS = 4096
_SALT_BYTES = 16
_SHAPE = re.compile(r"SCRAM-SHA-256\$([0-9]{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class Verifier:
    """See the module."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        salt, stored, server = (base64.b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key))
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"


def make_verifier(token: str) -> Verifier:
    """The verifier of a token, with a new salt."""
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", token.encode("utf-8", "surrogateescape"), salt, _ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return Verifier(_ITERATIONS, salt, hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256"))


def parse_verifier(text: str) -> Verifier:
    """Raises ValueError if the text isn't one."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ValueError("scram must be a verifier of SCRAM-SHA-256")
    salt, stored, server = (base64.b64decode(each, validate=True) for each in found.groups()[1:])
    if len(stored) != hashlib.sha256().digest_size or len(server) != len(stored) or not salt or not int(found[1]):
        raise ValueError("scram must be a verifier of SCRAM-SHA-256")
    return Verifier(int(found[1]), salt, stored, server)
