"""Admission of requests: by their Host, their token, and their client's rate.

A page in a browser can make its own host name point at 127.0.0.1 (DNS rebinding) and read from a
server there.  But it can't make the browser send another Host.  So a door on the loopback only
answers requests for the loopback's names.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from pathlib import Path

from millpond.errors import MillpondError, RequestError, SetupError
from millpond.logs import EventLog
from millpond.serve.access.rate_limit import Rates
from millpond.serve.access.tokens import EVERYBODY, Reader, digest, read_tokens
from millpond.settings import ServeSettings

log = EventLog(__name__)
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
# For so long the file of tokens isn't checked again.
_TOKENS_SECONDS = 0.4
_MAX_KNOWN_HOSTS = 100
# The requests of so many seconds may come at once.
_BURST_SECONDS = 2.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServeSettings) -> None:
    """Refuse to let everybody read everything by accident.  Raises OPEN_TO_ALL."""
    if not is_loopback(settings.host) and settings.tokens is None and not settings.insecure:
        raise SetupError(
            "OPEN_TO_ALL",
            f"Everybody who can reach {settings.host} could read everything: there are no tokens.",
            hint="Give a file of tokens with --tokens (`millpond token` makes one), or give --insecure-open.",
            host=settings.host,
        )


class Access:
    """Admits requests, or raises the reason against it."""

    def __init__(self, settings: ServeSettings, shared: Path | None = None) -> None:
        """Raises INVALID_TOKENS.

        shared:  the folder of the processes that count requests together, None if there is one
        """
        self._shared = shared
        self.use(settings)

    def use(self, settings: ServeSettings) -> None:
        """Use these settings from here on.  Raises INVALID_TOKENS, and then changes nothing."""
        tokens = Tokens(settings.tokens) if settings.tokens is not None else None
        self._hosts = frozenset(name.lower() for name in settings.allow_hosts)
        if is_loopback(settings.host):
            self._hosts |= _LOOPBACK_NAMES | {f"[{settings.host}]" if ":" in settings.host else settings.host}
        self._tokens = tokens
        self.console = settings.console
        self._known_hosts: set[bytes] = set()  # allowed hosts, as requests spelt them
        rate = self._rate = settings.requests_per_second
        self._rates = Rates(rate, max(1.0, rate * _BURST_SECONDS), self._shared) if rate else None
        failures = self._most_failures = settings.failed_logins_per_minute
        self._failures = (
            Rates(failures / 60, failures, self._shared, name="failures") if failures and self._tokens is not None else None
        )

    @property
    def needs_token(self) -> bool:
        """Whether only readers with a token are let in."""
        return self._tokens is not None

    @property
    def has_rates(self) -> bool:
        """Whether `count` may refuse a request."""
        return self._rates is not None

    def reload(self) -> None:
        """Read the file of tokens again."""
        if self._tokens is not None:
            self._tokens.look()

    def admit(self, headers: Mapping[bytes, bytes], client: str) -> Reader:
        """The reader of a request.

        headers:  of the request, with names in lower case
        client:   its address
        Raises:   HOST_NOT_ALLOWED, TOKEN_NEEDED, TOO_MANY_REQUESTS.
        """
        try:
            reader = self.peek(headers)
        except RequestError as refused:
            if refused.condition == "TOKEN_NEEDED":
                self.count_failure(client)
            raise
        self.count(reader, client)
        return reader

    def peek(self, headers: Mapping[bytes, bytes]) -> Reader:
        """The same without counting the request, which may not be answered."""
        self.check_host(headers.get(b"host"))
        return EVERYBODY if self._tokens is None else self._tokens.reader(headers.get(b"authorization"))

    def reader_of(self, sha256: str) -> Reader:
        """The reader of a token's hash, for doors that never see the token.  Raises TOKEN_NEEDED."""
        assert self._tokens is not None
        return self._tokens.reader_of(sha256)

    def named(self, name: str) -> tuple[str, Reader] | None:
        """The hash of a reader's token, and the reader; None if there is no valid one."""
        return None if self._tokens is None else self._tokens.named(name)

    def count(self, reader: Reader, client: str) -> None:
        """Count one more request.  Raises TOO_MANY_REQUESTS."""
        if self._rates is None:
            return
        wait = self._rates.take(client if reader is EVERYBODY else f"reader {reader.name}")
        if wait:
            raise RequestError(
                "TOO_MANY_REQUESTS",
                f"This client may send {self._rate:g} requests per second.",
                hint="Wait as long as Retry-After says; ask for several keys in one POST …/rows:get.",
                retry_after_seconds=round(wait, 3),
            )

    def count_failure(self, client: str) -> None:
        """Count one more request without a right token.  Raises TOO_MANY_REQUESTS."""
        wait = self._failures.take(client) if self._failures is not None else 0.0
        if wait:
            raise RequestError(
                "TOO_MANY_REQUESTS",
                f"This address may send {self._most_failures} requests per minute without a right token.",
                hint="Send the header Authorization: Bearer TOKEN; the server's operator gives out tokens.",
                retry_after_seconds=round(wait, 3),
            )

    def check_host(self, host: bytes | None) -> None:
        """Raises HOST_NOT_ALLOWED if the request is for another host."""
        if not self._hosts or host is None or host in self._known_hosts:
            return
        name = host.decode("latin-1").lower()
        if not name.endswith("]"):
            head, colon, port = name.rpartition(":")
            name = head if colon and port.isdigit() else name
        if name not in self._hosts:
            raise RequestError(
                "HOST_NOT_ALLOWED",
                f"This server doesn't answer for the host {name[:80]!r}.",
                hint="Ask localhost, or start the server with --allow-host and this name.",
                host=name[:80],
            )
        if len(self._known_hosts) < _MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)


class Tokens:
    """The readers of a file of tokens, which may change while the server runs."""

    def __init__(self, path: Path) -> None:
        """Raises INVALID_TOKENS."""
        self._path = path
        self._stamp = self._stat()
        self._readers = read_tokens(path)
        self._looked_at = time.monotonic()

    def reader(self, authorization: bytes | None) -> Reader:
        """The token's reader.  Raises TOKEN_NEEDED."""
        scheme, _, token = (authorization or b"").decode("latin-1").partition(" ")
        return self.reader_of(digest(token.strip()) if scheme.lower() == "bearer" else None, is_given=bool(authorization))

    def reader_of(self, sha256: str | None, *, is_given: bool = True) -> Reader:
        """The reader of a token's hash.  Raises TOKEN_NEEDED."""
        self._look_now_and_then()
        reader = None if sha256 is None else self._readers.get(sha256)
        if reader is None or reader.has_expired():
            wrong = "This server doesn't know the token." if reader is None else "The token has expired."
            raise RequestError(
                "TOKEN_NEEDED",
                wrong if is_given else "This server needs a token.",
                hint="Send the header Authorization: Bearer TOKEN; the server's operator gives out tokens.",
            )
        return reader

    def named(self, name: str) -> tuple[str, Reader] | None:
        """The hash of a reader's token, and the reader; None if there is no valid one."""
        self._look_now_and_then()
        found = ((sha256, reader) for sha256, reader in self._readers.items() if reader.name == name and not reader.has_expired())
        return next(found, None)

    def _look_now_and_then(self) -> None:
        if time.monotonic() - self._looked_at > _TOKENS_SECONDS:
            self.look()

    def look(self) -> None:
        """Read the file again if it has changed."""
        self._looked_at = time.monotonic()
        stamp = self._stat()
        if stamp == self._stamp:
            return
        try:
            self._readers, self._stamp = read_tokens(self._path), stamp
        except MillpondError as wrong:
            self._stamp = stamp
            log.error(
                "tokens.unreadable",
                condition=wrong.condition,
                message=wrong.message,
                hint="The readers of before are still let in.",
            )

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
