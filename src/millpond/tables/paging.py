"""Where a scan goes on: a token that names the scan, the batch of its first page, and the last row shown.

    token   = base64url of: checksum (4 bytes), then a msgpack list of query, generation, batch, ordered key, place
    query   = hash of the job's id, the table's definition, and which rows in which direction

So a token of another table, job or question is told from a damaged one, and neither is ever taken for a place to go on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from millpond.errors import RequestError
from millpond.tables.binding import Binding
from millpond.tables.spans import Place, Span

_CHECKSUM_BYTES = 4
_QUERY_BYTES = 12
_LONGEST = 1 << 20


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """The place where the next page of a scan begins."""

    query: bytes
    generation: str
    batch: int
    key: bytes
    number: int

    @property
    def place(self) -> Place:
        """Of the last row that was shown."""
        return self.key, self.number


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PageToken).decode


def query_id(binding: Binding, span: Span, *, reverse: bool) -> bytes:
    """What tells the pages of one scan from those of another."""
    checks = [(column.name, repr(value)) for column, value in span.checks]
    told = repr((binding.stores.job_id, binding.definition.table, span.low, span.high, checks, reverse)).encode(
        errors="surrogateescape"
    )
    return hashlib.blake2b(told + binding.definition.fingerprint().encode(), digest_size=_QUERY_BYTES).digest()


def write_token(token: PageToken) -> str:
    """The token as text that may stand in a URL."""
    data = _encode(token)
    return base64.urlsafe_b64encode(_checksum(data) + data).rstrip(b"=").decode()


def parse_token(text: object, query: bytes, *, table: str) -> PageToken:
    """The token of a page of this scan.  Raises INVALID_TOKEN."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise _invalid(table, "it is no text that a page gave")
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        checksum, data = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if checksum != _checksum(data):
            raise ValueError
        token = _decode(data)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise _invalid(table, "it is damaged") from None
    if token.query != query:
        raise _invalid(table, "it is of another table, another job or another question")
    return token


def expired(token: PageToken, table: str, batch: int) -> RequestError:
    """The batch of a token's scan can't be read any more."""
    return RequestError(
        "TOKEN_EXPIRED",
        f"The scan of {table} began at batch {token.batch}, which isn't kept any more; the replica is at {batch}.",
        hint="Begin again without a token, or from the last row on with `range(start=…)`, which reads the newest batch; ask for "
        "pages sooner, or for larger ones.",
        table=table,
        batch=token.batch,
    )


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def _invalid(table: str, why: str) -> RequestError:
    return RequestError(
        "INVALID_TOKEN",
        f"The token isn't one of this scan of {table}: {why}.",
        hint="Give the token of the page before with the same key, limits and direction, or none.",
        table=table,
    )
