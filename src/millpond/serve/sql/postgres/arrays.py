"""Arrays as texts in PostgreSQL's form: {1,2,NULL,"a b"}."""

from __future__ import annotations

from millpond.errors import RequestError


def array_items(text: str) -> list[str | None]:
    """The items of an array of one dimension, as a text in PostgreSQL's form.

    Raises:  INVALID_STATEMENT.
    """
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise _malformed(text)
    items: list[str | None] = []
    at, end = 1, len(inner) - 1
    while at < end:
        item, at, is_quoted = _item(inner, at, end, text)
        items.append(None if not is_quoted and item.lower() == "null" else item)
        if at < end:
            if inner[at] != "," or at + 1 == end:
                raise _malformed(text)
            at += 1
    return items


def _item(inner: str, at: int, end: int, text: str) -> tuple[str, int, bool]:
    """The item that begins here, where it ends, and whether it is in quotes."""
    while at < end and inner[at].isspace():
        at += 1
    out, is_quoted = [], at < end and inner[at] == '"'
    at += is_quoted
    while at < end:
        sign = inner[at]
        if sign == "\\":
            at += 1
            sign = inner[at] if at < end else ""
        elif is_quoted and sign == '"':
            at += 1
            break
        elif not is_quoted and sign == ",":
            break
        elif not is_quoted and sign in '{}"':
            raise _malformed(text)
        out.append(sign)
        at += 1
    else:
        if is_quoted:
            raise _malformed(text)
    while at < end and inner[at].isspace():
        at += 1
    found = "".join(out) if is_quoted else "".join(out).rstrip()
    if not found and not is_quoted:
        raise _malformed(text)
    return found, at, is_quoted


def _malformed(text: str) -> RequestError:
    return RequestError("INVALID_STATEMENT", f"malformed array literal: {text[:80]!r}", hint="Write an array as {1,2}.")
