"""Who calls: a token by Bearer, or a reader's name and its token by Basic.

A login (Handshake) hands the token back, which the client then sends with each call.  The server
keeps nothing for it; each call is looked at anew.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

from millpond.errors import RequestError
from millpond.serve.access.access import Access
from millpond.serve.access.tokens import EVERYBODY, Reader, digest
from millpond.tables.forms.arrow import pyarrow

_HINT = "Log in with a reader's name and its token, or send the header Authorization: Bearer TOKEN."
# Logins come without the address of their client.
_LOGINS = "logins of Flight SQL"
NAME = "millpond"


class Caller(NamedTuple):
    """Who calls.

    sha256:  of the token; empty without tokens
    """

    reader: Reader
    sha256: str


def find_caller(access: Access, authorization: str | None) -> Caller:
    """The caller by its header.  Raises TOKEN_NEEDED."""
    if not access.needs_token:
        return Caller(EVERYBODY, "")
    if not authorization:
        raise RequestError("TOKEN_NEEDED", "This server needs a token.", hint=_HINT)
    user, token = _parts(authorization)
    sha256 = digest(token)
    reader = access.reader_of(sha256)
    if user is not None and reader.name != user:
        raise RequestError("TOKEN_NEEDED", "This server doesn't know the token.", hint=_HINT)
    return Caller(reader, sha256)


def _parts(authorization: str) -> tuple[str | None, str]:
    """The user, None for Bearer, and the token."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return None, rest.strip()
    try:
        user, colon, token = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise RequestError("TOKEN_NEEDED", "The header Authorization has neither a token nor a name and a token.", hint=_HINT)
    return user, token


def middleware(access: Access, on_error: Any) -> Any:
    """What pyarrow calls at the beginning of each call.

    on_error:  makes the error that a client gets
    """
    flight = _flight()

    class Headers(flight.ServerMiddleware):  # type: ignore[misc,name-defined]
        """The headers of one call."""

        def __init__(self, headers: dict[str, str], answer: dict[str, str]) -> None:
            self.headers, self._answer = headers, answer

        def sending_headers(self) -> dict[str, str]:
            return self._answer

    class Factory(flight.ServerMiddlewareFactory):  # type: ignore[misc,name-defined]
        """Keeps headers; answers logins."""

        def start_call(self, info: Any, headers: dict[str, list[Any]]) -> Any:
            given = {name.lower(): values[0] for name, values in headers.items() if values and isinstance(values[0], str)}
            if info.method != flight.FlightMethod.HANDSHAKE:
                return Headers(given, {})
            try:
                return Headers(given, {"authorization": f"Bearer {_login(access, given.get('authorization'))}"})
            except RequestError as refused:
                raise on_error(refused) from None

    return Factory()


def _login(access: Access, authorization: str | None) -> str:
    """The token of a login."""
    try:
        find_caller(access, authorization)
    except RequestError:
        access.count_failure(_LOGINS)
        raise
    return _parts(authorization)[1] if authorization and access.needs_token else "none"


def no_handler() -> Any:
    """pyarrow answers logins only with such a handler; the work is done by `middleware`."""
    flight = _flight()

    class Handler(flight.ServerAuthHandler):  # type: ignore[misc,name-defined]
        def authenticate(self, outgoing: Any, incoming: Any) -> None: ...

        def is_valid(self, token: Any) -> str:  # noqa: ARG002 - pyarrow's
            return ""

    return Handler()


def _flight() -> Any:
    pyarrow()
    from pyarrow import flight

    return flight
