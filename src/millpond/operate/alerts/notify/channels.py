"""Where messages go: webhooks and mail.  The only user of httpx and smtplib for alerts."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import smtplib
import ssl
import time
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from millpond.errors import RequestError, StorageError, library_missing
from millpond.operate.alerts.notify.message import Message
from millpond.storage.machine import host_name
from millpond.wire.signature import parse_secret, sign

SECRET = "MILLPOND_WEBHOOK_SECRET"  # noqa: S105 - its name
PASSWORD = "MILLPOND_SMTP_PASSWORD"  # noqa: S105 - its name
_SECONDS = 20.0


class Channel(Protocol):
    """One place to which messages go."""

    @property
    def name(self) -> str:
        """The same as long as it is the same place; without secrets."""

    def send(self, message: Message) -> None:
        """Send a message.  Raises STORAGE_UNAVAILABLE if it didn't take it."""


class Webhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A POST of the message as JSON.

    url:      http or https
    secret:   signs the request; by default that in MILLPOND_WEBHOOK_SECRET, if there is one
    headers:  further ones
    """

    url: str
    secret: str | None = None
    headers: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Without what may be secret in the path and the query."""
        return f"webhook {urlsplit(self.url).hostname} {hashlib.sha256(self.url.encode()).hexdigest()[:8]}"

    def check(self) -> None:
        """Raise INVALID_REQUEST if this can't be one; LIBRARY_MISSING without httpx."""
        if importlib.util.find_spec("httpx") is None:
            raise library_missing("httpx", "client")
        import httpx

        self._secret()
        try:
            scheme, host = urlsplit(self.url).scheme, httpx.URL(self.url).raw_host.decode("ascii")
            httpx.Request("POST", self.url, headers=self.headers)
            is_right = scheme in ("http", "https") and bool(host)
            is_right &= all(name.isascii() and (name + value).isprintable() for name, value in self.headers.items())
        except (ValueError, httpx.InvalidURL):
            is_right = False
        if not is_right:  # without the address, which may have a secret
            raise RequestError(
                "INVALID_REQUEST",
                "A webhook's url isn't an address of http or https, or a header can't be one.",
                hint="Write https://….",
            )

    def _secret(self) -> bytes | None:
        secret = self.secret if self.secret is not None else os.environ.get(SECRET)
        return parse_secret(secret, "the file of --config") if secret else None

    def send(self, message: Message) -> None:
        """Post it once."""
        import httpx

        body, stamp = message.to_json(), str(int(time.time()))
        headers = {**self.headers, "content-type": "application/json", "webhook-id": message.identity, "webhook-timestamp": stamp}
        secret = self._secret()
        if secret is not None:
            headers["webhook-signature"] = sign(secret, message.identity, stamp, body)
        try:
            with httpx.Client(timeout=_SECONDS, follow_redirects=False) as client:
                status = client.post(self.url, content=body, headers=headers).status_code
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise _unavailable(self.name, str(error) or type(error).__name__) from error
        if not 200 <= status < 300:
            raise _unavailable(self.name, f"it answers {status}")


class Mail(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"sender": "from"}):
    """A mail in plain text.

    server:    host:port
    sender:    the file's `from`: an address
    to:        addresses
    security:  starttls, tls from the first byte, or none
    user:      whose password is in MILLPOND_SMTP_PASSWORD; None: no login
    """

    server: str
    sender: str
    to: list[str]
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None

    @property
    def name(self) -> str:
        """Server and addresses."""
        return f"mail {self.server} {','.join(self.to)}"

    def check(self) -> None:
        """Raise INVALID_REQUEST if this can't be one."""
        host, _, port = self.server.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise RequestError("INVALID_REQUEST", f"{self.server!r:.80} isn't a server's host:port.", hint="Write host:587.")
        if self.security == "none" and self.user is not None:
            raise RequestError(
                "INVALID_REQUEST", "A mail's password would go in clear.", hint='Write security = "starttls" or "tls".'
            )
        if not self.to:
            raise RequestError("INVALID_REQUEST", "A mail goes to nobody.", hint='Write to = ["oncall@example.org"].')
        for address in (self.sender, *self.to):
            if not address.isprintable() or "@" not in address or " " in address or "," in address:
                raise RequestError("INVALID_REQUEST", f"{address!r:.80} isn't a mail address.", hint="Write name@example.org.")

    def send(self, message: Message) -> None:
        """Hand it to the server once."""
        mail = EmailMessage()
        mail["Subject"] = " ".join(f"[millpond] {message.title}".split())[:200]
        mail["From"], mail["To"] = self.sender, ", ".join(self.to)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain="millpond")
        mail.set_content(message.to_text())
        host, _, port = self.server.rpartition(":")
        name = host_name()  # smtplib would ask a name server for more
        try:
            if self.security == "tls":
                trust = ssl.create_default_context()
                server: smtplib.SMTP = smtplib.SMTP_SSL(host.strip("[]"), int(port), name, timeout=_SECONDS, context=trust)
            else:
                server = smtplib.SMTP(host.strip("[]"), int(port), name, timeout=_SECONDS)
            with server:
                if self.security == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.user is not None:
                    server.login(self.user, os.environ.get(PASSWORD, ""))
                refused = server.send_message(mail)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise _unavailable(self.name, str(error) or type(error).__name__) from error
        if refused:
            raise _unavailable(self.name, f"it refuses {', '.join(refused)}")


def _unavailable(name: str, why: str) -> StorageError:
    return StorageError("STORAGE_UNAVAILABLE", f"{name} didn't take a message: {why:.200}.", hint="It is tried again.")
