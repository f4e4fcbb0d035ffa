"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL speaks it, with a token as the password.

The file of tokens has a verifier beside the token's hash.  It proves that a client has the token,
and nobody can log in with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from millpond.serve.access.verifier import Verifier

MECHANISM = "SCRAM-SHA-256"
_FIRST = re.compile(rb"([ny]),(?:a=[^,]*)?,((?:n=([^,]*)),r=([\x21-\x2b\x2d-\x7e]{1,200})(?:,[^,]*)*)")
_LAST = re.compile(rb"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]+)*),p=([A-Za-z0-9+/=]+)")


class ScramFailed(Exception):
    """What a client sent proves nothing."""


@dataclass(slots=True)
class Scram:
    """One exchange.

    verifier:  of the reader; that of nobody if there is none, so that a stranger doesn't learn who there is
    is_known:  whether it is a reader's
    """

    verifier: Verifier
    is_known: bool
    _header: bytes = b""
    _bare: bytes = b""
    _first: bytes = b""
    _nonce: bytes = b""

    def begin(self, data: bytes) -> bytes:
        """The server's answer to the client's first message.  Raises ScramFailed."""
        found = _FIRST.fullmatch(data)
        if found is None:
            raise ScramFailed("malformed SCRAM message")
        self._header, self._bare = data[: found.start(2)], found[2]
        self._nonce = found[4] + base64.b64encode(secrets.token_bytes(18))
        salt = base64.b64encode(self.verifier.salt)
        self._first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self.verifier.iterations)
        return self._first

    def end(self, data: bytes) -> bytes:
        """The server's answer to the client's last message.  Raises ScramFailed if it proves nothing."""
        found = _LAST.fullmatch(data)
        if found is None:
            raise ScramFailed("malformed SCRAM message")
        try:
            header, proof = base64.b64decode(found[2], validate=True), base64.b64decode(found[4], validate=True)
        except ValueError:
            raise ScramFailed("malformed SCRAM message") from None
        if header != self._header or found[3] != self._nonce or len(proof) != hashlib.sha256().digest_size:
            raise ScramFailed("malformed SCRAM message")
        signed = b",".join([self._bare, self._first, found[1]])
        signature = hmac.digest(self.verifier.stored_key, signed, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.sha256(client_key).digest(), self.verifier.stored_key)
        if not (is_right and self.is_known):
            raise ScramFailed("password authentication failed")
        return b"v=" + base64.b64encode(hmac.digest(self.verifier.server_key, signed, "sha256"))
