"""How a client proves who it is: nothing without tokens, SCRAM-SHA-256 with them.

The user is the reader's name, the password its token.  A token of a file that an earlier version
wrote has no verifier: it comes as it is, and only over TLS.
"""

from __future__ import annotations

import hmac
import secrets

from millpond.errors import MillpondError, RequestError
from millpond.serve.access.access import Access
from millpond.serve.access.tokens import EVERYBODY, Reader, digest
from millpond.serve.access.verifier import Verifier
from millpond.serve.postgres import wire
from millpond.serve.postgres.errors import PgError
from millpond.serve.postgres.scram import MECHANISM, Scram, ScramFailed

_MOCK = secrets.token_bytes(32)


class Login:
    """One client's.

    reader:  None until it is over
    sha256:  of the reader's token; None without tokens
    """

    def __init__(self, access: Access, user: str, address: str, *, is_safe: bool) -> None:
        self._access, self._user, self._address, self._is_safe = access, user, address, is_safe
        self._scram: Scram | None = None
        self._has_begun = False
        self.reader: Reader | None = None
        self.sha256: str | None = None

    def begin(self) -> bytes:
        """What the server asks for.  Raises PgError."""
        if not self._access.needs_token:
            self.reader = EVERYBODY
            return wire.AUTHENTICATED
        found = self._access.named(self._user)
        if found is not None and found[1].verifier is None:
            if not self._is_safe:
                raise PgError(
                    "28000",
                    f"the token of {self._user} was made by an earlier version, without a SCRAM verifier",
                    hint=f"Make a new one with `millpond token FILE {self._user} …`, or connect over TLS.",
                    is_fatal=True,
                )
            return wire.CLEARTEXT
        verifier = _mock(self._user) if found is None or found[1].verifier is None else found[1].verifier
        self._scram = Scram(verifier, found is not None)
        return wire.sasl([MECHANISM])

    def go_on(self, body: bytes) -> bytes:
        """The reply to a message of the client.  Raises PgError, BrokenProtocol."""
        try:
            if self._scram is None:
                rest = wire.Body(body)
                return self._accept(digest(rest.text()))
            if not self._has_begun:
                self._has_begun = True
                rest = wire.Body(body)
                if rest.text() != MECHANISM:
                    raise ScramFailed("client selected an invalid SASL authentication mechanism")
                return wire.sasl_step(self._scram.begin(rest.take(rest.int4())), is_last=False)
            last = wire.sasl_step(self._scram.end(body), is_last=True)
            found = self._access.named(self._user)
            if found is None or found[1].verifier != self._scram.verifier:
                raise ScramFailed("the token was replaced")
            return last + self._accept(found[0])
        except ScramFailed:
            raise self._refused() from None

    def _accept(self, sha256: str) -> bytes:
        try:
            reader = self._access.reader_of(sha256)
        except RequestError:
            raise self._refused() from None
        if reader.name != self._user:
            raise self._refused()
        self.reader, self.sha256 = reader, sha256
        return wire.AUTHENTICATED

    def _refused(self) -> PgError:
        try:
            self._access.count_failure(self._address)
        except MillpondError as error:
            return PgError("53400", error.message, is_fatal=True)
        return PgError(
            "28P01",
            f'password authentication failed for user "{self._user[:80]}"',
            hint="The user is the name of a reader in the server's file of tokens, the password its token.",
            is_fatal=True,
        )


def _mock(user: str) -> Verifier:
    """A verifier that no password fits, the same for the same user."""
    salt = hmac.digest(_MOCK, user.encode("utf-8", "surrogateescape"), "sha256")[:16]
    return Verifier(4096, salt, secrets.token_bytes(32), secrets.token_bytes(32))
