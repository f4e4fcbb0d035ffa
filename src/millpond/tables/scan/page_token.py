"""Where a scan goes on: a token that names the scan, the batch of its first page, and the last row shown.

    token   = query, generation, batch, ordered key, place, holder; see `token`
    query   = hash of the job's id, the table's definition, and which rows in which direction, expired ones or not
    holder  = the process that keeps the batch readable; whoever can read it may answer

So a token of another table, job or question differs from a damaged one, and neither is ever taken for a place to go on.
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
        """Of the last row that was shown."""
        return self.key, self.number


def query_id(binding: Binding, span: Span, *, reverse: bool, closed: bool) -> bytes:
    """What tells the pages of one scan from those of another.

    closed:  whether the scan shows rows that expired
    """
    checks = [(column.name, repr(value)) for column, value in span.checks]
    identity = repr((binding.stores.job_id, binding.definition.table, span.low, span.high, checks, reverse, closed)).encode(
        errors="surrogateescape"
    )
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
    """The batch of a token's scan can't be read any more."""
    return RequestError(
        "TOKEN_EXPIRED",
        f"The scan of {table} began at batch {token.batch}, which isn't kept any more; the replica is at {batch}.",
        hint="Begin again without a token, or from the last row on with `range(start=…)`, which reads the newest batch; ask for "
        "pages sooner, or for larger ones.",
        table=table,
        batch=token.batch,
        holder=token.holder,
    )


def _invalid(table: str, why: str) -> RequestError:
    return RequestError(
        "INVALID_TOKEN",
        f"The token isn't one of this scan of {table}: {why}.",
        hint="Give the token of the page before with the same key, limits and direction, or none.",
        table=table,
    )
