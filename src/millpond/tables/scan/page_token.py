"""Where a scan goes on: a token of the scan, the batch of its first page, and the last row shown.

    token   = query, generation, batch, ordered key, place, holder; see `token`
    query   = hash of the job's id, the definition, the rows and their direction, expired or not
    holder  = the process that keeps the batch readable; any that can read the batch may answer

So a token of another table, job or question isn't mistaken for a damaged one.  No read goes on from
either.
"""

from __future__ import annotations

import hashlib

import msgspec

from millpond.errors import RequestError
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.key_range import Place, Span
from millpond.tables.scan.token import unpack

_QUERY_BYTES = 12


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """The place where the next page of a scan begins."""

    query: bytes
    generation: str
    batch: int
    key: bytes
    number: int
    holder: str

    @property
    def place(self) -> Place:
        """The place of the last row that was shown."""
        return self.key, self.number


def query_id(binding: Binding, span: Span, *, reverse: bool, closed: bool) -> bytes:
    """The id of a scan, the same for all its pages.

    closed:  whether the scan shows expired rows
    """
    checks = [(column.name, repr(value)) for column, value in span.checks]
    asked = binding.stores.job_id, binding.definition.table, span.low, span.high, checks, reverse, closed
    identity = repr(asked if span.index is None else (*asked, span.index)).encode(errors="surrogateescape")
    return hashlib.blake2b(identity + binding.definition.fingerprint().encode(), digest_size=_QUERY_BYTES).digest()


def parse_token(text: object, query: bytes, *, table: str) -> PageToken:
    """The token of a page of this scan.  Raises INVALID_TOKEN."""
    token = unpack(text, PageToken)
    if token is None:
        raise _invalid(table, "it is damaged")
    if token.query != query:
        raise _invalid(table, "it is of another table, another job or another question")
    return token


def expired(token: PageToken, table: str, batch: int) -> RequestError:
    """The batch of a token's scan can no longer be read."""
    return RequestError(
        "TOKEN_EXPIRED",
        f"The scan of {table} began at batch {token.batch}, which is no longer kept; the replica is at {batch}.",
        hint="Begin again without a token, or continue in the newest batch from the last row with `range(start=…)`; ask for "
        "pages sooner, or for larger ones.",
        table=table,
        batch=token.batch,
        holder=token.holder,
    )


def _invalid(table: str, why: str) -> RequestError:
    return RequestError(
        "INVALID_TOKEN",
        f"The token doesn't belong to this scan of {table}: {why}.",
        hint="Give the token of the page before with the same key, limits and direction, or none.",
        table=table,
    )
