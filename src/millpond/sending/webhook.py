"""A webhook: each transaction's changes as signed requests, one after the other.  The only user of httpx here.

    POST, JSON: {"type": "millpond.changes", "table", "changes": […]}, signed (`wire/signature.py`)

HTTP has no transactions: a request whose answer is lost is sent again, so the receiver must leave
out ids that it has seen.  One request at a time keeps the order, of each key and of all.  The
position is in a file here, and is written after the last request of a batch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from millpond.errors import RequestError
from millpond.schema.values import encode_json
from millpond.sending.target import Part, SentPosition, Shape, Target, decode_position
from millpond.storage import open_storage
from millpond.tables.history.changes import RowChange
from millpond.wire.signature import parse_secret, sign

REQUEST_CHANGES = 500
_SECONDS = 30.0
# The receiver says: not now.
_LATER = frozenset({408, 409, 425, 429})


class WebhookTarget(Target):
    """One address; `options` are `secret`, `positions` (a folder), and `header.NAME` for further headers."""

    # The ids of requests are those of their batch, so that they are the same when sent again.
    one_batch = True

    def __init__(self, address: str, shape: Shape, *, options: Mapping[str, str]) -> None:
        super().__init__(address.partition("?")[0], shape)
        unknown = [name for name in options if name not in ("secret", "positions") and not name.startswith("header.")]
        if unknown:
            raise RequestError("INVALID_REQUEST", f"A webhook has no option {unknown[0]!r:.60}.", hint="See docs/send.md.")
        self._secret = parse_secret(
            options.get("secret", os.environ.get("MILLPOND_WEBHOOK_SECRET", "")), "the file of --target-options"
        )
        self._headers = {name.removeprefix("header."): value for name, value in options.items() if name.startswith("header.")}
        self._address = address
        digest = hashlib.sha256(address.encode()).hexdigest()[:16]
        self._folder = Path(options.get("positions") or _state_folder()).absolute()
        self._file = f"{shape.name}-{digest}.json"
        self._lock = -1
        self._client: httpx.Client | None = None
        self._waiting: list[bytes] = []
        self._begun = ""
        self._part = Part(batch=0, run=0)
        self._number = 0

    def open(self, *, resync: bool) -> SentPosition | None:  # noqa: ARG002 - a receiver has no rows
        """Read the position from its file."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / f".{self._file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken() from None
            stored = (self._folder / self._file).read_bytes()
        except FileNotFoundError:
            stored = None
        except OSError as error:
            raise self._unavailable(error) from error
        self._client = httpx.Client(timeout=_SECONDS, headers=self._headers)
        return None if stored is None else decode_position(stored, self.shape, self.uri)

    def begin(self, part: Part) -> None:
        """Begin the requests of a batch."""
        self._waiting, self._number, self._part = [], 0, part
        self._begun = f"{self.shape.name}-{part.run}-{part.batch}{'-whole' if part.whole else ''}"

    def add(self, changes: list[RowChange]) -> None:
        """Send full requests; the rest waits for the next changes, or the commit."""
        self._waiting += [self.shape.change_json(change, self._part) for change in changes]
        while len(self._waiting) > REQUEST_CHANGES:
            self._post()

    def _post(self) -> None:
        now, self._waiting = self._waiting[:REQUEST_CHANGES], self._waiting[REQUEST_CHANGES:]
        name = encode_json(self.shape.table)
        body = b'{"type":"millpond.changes","table":%b,"changes":[%b]}' % (name, b",".join(now))
        # The same number may have other changes if a whole read begins anew; so their digest is in the id.
        identity = f"{self._begun}-{self._number}-{hashlib.sha256(body).hexdigest()[:12]}"
        stamp = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            "webhook-id": identity,
            "webhook-timestamp": stamp,
            "webhook-signature": sign(self._secret, identity, stamp, body),
        }
        assert self._client is not None
        try:
            reply = self._client.post(self._address, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error
        self._number += 1
        if reply.is_success:
            return
        if reply.status_code >= 500 or reply.status_code in _LATER:
            raise self._unavailable(f"it answers {reply.status_code}")
        raise self._refused(RuntimeError(f"it answers {reply.status_code}"))

    def commit(self, position: SentPosition) -> None:
        """Send the rest, and keep the position."""
        while self._waiting:
            self._post()
        try:
            open_storage(self._folder).write(self._file, position.encode())
        except OSError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
        self._client = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _state_folder() -> Path:
    """Positions aren't a cache: without them the whole table is sent again."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "millpond/sent"
