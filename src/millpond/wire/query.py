"""The part of a URL after the question mark: pairs of column and text, and controls with an underscore.

No library reads it, because the usual ones replace bytes that aren't UTF-8 by U+FFFD, and so answer
another question.  Here percent-encoded bytes are the bytes of Spark's string, UTF-8 or not.
"""

from __future__ import annotations

from urllib.parse import unquote

from millpond.errors import RequestError

Pairs = list[tuple[str, str]]


def parse_query(query: bytes) -> Pairs:
    """Pairs of a query string, in order, as text.

    Shape:   `name=text&name=text`, percent-encoded; + is a blank, as in forms; bytes outside UTF-8
             are surrogate escapes.
    Raises:  INVALID_REQUEST if a parameter has no `=`.
    """
    pairs: Pairs = []
    for part in query.decode("latin-1").split("&"):
        if not part:
            continue
        name, equals, text = part.partition("=")
        if not equals:
            raise RequestError(
                "INVALID_REQUEST",
                f"The parameter {_decode(name)!r} has no value.",
                hint=f"Write {name}= for the empty text, or {name}__isnull=1 for NULL.",
                parameter=_decode(name),
            )
        pairs.append((_decode(name), _decode(text)))
    return pairs


def split_controls(pairs: Pairs, known: tuple[str, ...]) -> tuple[Pairs, dict[str, str]]:
    """The pairs that name columns, and the controls (names that begin with an underscore) by name.

    Raises:  INVALID_REQUEST if a control isn't known, or is given twice.
    """
    columns = [pair for pair in pairs if not pair[0].startswith("_")]
    controls: dict[str, str] = {}
    for name, text in pairs:
        if not name.startswith("_"):
            continue
        if name not in known:
            raise RequestError(
                "INVALID_REQUEST",
                f"This route has no parameter {name}.",
                hint=f"Use {', '.join(known)}; a column whose name begins with an underscore can be asked for by POST …/rows:get."
                if known
                else "Leave it out: this route takes no parameters.",
                parameter=name,
            )
        if name in controls:
            raise RequestError("INVALID_REQUEST", f"{name} is given twice.", hint=f"Give {name} once.", parameter=name)
        controls[name] = text
    return columns, controls


def _decode(text: str) -> str:
    return unquote(text.replace("+", " ").encode("latin-1").decode("utf-8", "surrogateescape"), errors="surrogateescape")
