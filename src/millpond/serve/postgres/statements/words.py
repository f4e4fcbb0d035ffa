"""The words of statements that the server answers itself: where a text's statements end, and how each begins.

What a SELECT means is DuckDB's business, in a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from millpond.serve.postgres.errors import PgError

# Where something begins that may have a semicolon inside.
_OPENS = re.compile(r"--|/\*|'|\"|;|\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_NESTED = re.compile(r"/\*|\*/")
_ESCAPED = re.compile(r"\\.|''|'", re.DOTALL)
_WORD = re.compile(
    r"\s*(?:([A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$.\x80-\U0010ffff]*)|(\"(?:[^\"]|\"\")*\")|('(?:[^']|'')*')|([-+]?[0-9.]+)|(.))",
    re.DOTALL,
)
_MOST_STATEMENTS = 1000


def split_statements(text: str) -> list[str]:
    """The statements of a text, without those that are empty.

    Raises:  PgError if a quote or comment doesn't end.
    """
    found, begin = list[str](), 0
    for at in _semicolons(text):
        found.append(text[begin:at])
        begin = at + 1
    found.append(text[begin:])
    if len(found) > _MOST_STATEMENTS:
        raise PgError("54000", f"A message may have {_MOST_STATEMENTS} statements.", hint="Send them in several.")
    return [each for each in found if without_comments(each).strip()]


def _semicolons(text: str) -> Iterator[int]:
    for kind, at, _ in _pieces(text):
        if kind == ";":
            yield at


def without_comments(text: str) -> str:
    """A text with a space in place of each comment."""
    out, begin = list[str](), 0
    for kind, at, end in _pieces(text):
        if kind in ("--", "/*"):
            out += [text[begin:at], " "]
            begin = end
    return "".join([*out, text[begin:]])


def masked(text: str) -> str:
    """A text with x in place of all in quotes, as long as it was."""
    out, begin = list[str](), 0
    for kind, at, end in _pieces(text):
        if kind != ";":
            out += [text[begin:at], "x" * (end - at)]
            begin = end
    return "".join([*out, text[begin:]])


def _pieces(text: str) -> Iterator[tuple[str, int, int]]:
    """Comments, quotes and semicolons: how each begins, where, and where it ends."""
    at = 0
    while (found := _OPENS.search(text, at)) is not None:
        kind, begin = found[0], found.start()
        if kind == ";":
            end = begin + 1
        elif kind == "--":
            line = text.find("\n", begin)
            end = len(text) if line < 0 else line
        elif kind == "/*":
            end = _comment_end(text, found.end())
        elif kind == "'":
            end = _quote_end(text, begin)
        elif kind == '"':
            end = _find(text, '"', begin + 1, "quoted identifier")
        elif begin and (text[begin - 1].isalnum() or text[begin - 1] in "_$"):
            at = begin + 1  # a name such as a$b$
            continue
        else:
            end = _find(text, kind, found.end(), "dollar-quoted string")
        yield kind, begin, end
        at = end


def _comment_end(text: str, at: int) -> int:
    depth = 1
    while depth:
        found = _NESTED.search(text, at)
        if found is None:
            raise PgError("42601", "unterminated /* comment")
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return at


def _quote_end(text: str, begin: int) -> int:
    """Where a quoted text ends: E'…' knows the backslash.  Two quotes inside are two texts here, which does no harm."""
    before = text[begin - 1 : begin]
    is_escaped = before in ("E", "e") and not (begin > 1 and (text[begin - 2].isalnum() or text[begin - 2] in "_$"))
    if not is_escaped:
        return _find(text, "'", begin + 1, "quoted string")
    at = begin + 1
    while (found := _ESCAPED.search(text, at)) is not None:
        if found[0] == "'":
            return found.end()
        at = found.end()
    raise PgError("42601", "unterminated quoted string")


def _find(text: str, end: str, at: int, what: str) -> int:
    found = text.find(end, at)
    if found < 0:
        raise PgError("42601", f"unterminated {what}")
    return found + len(end)


def read_words(text: str, most: int = 64) -> list[str]:
    """The first words and signs of a statement: names in lower case, quoted ones and texts with their quotes."""
    out, at = list[str](), 0
    plain = without_comments(text)
    while len(out) < most and (found := _WORD.match(plain, at)) is not None:
        if found[5] is not None and found[5].isspace():
            break
        out.append(found[1].lower() if found[1] else found[0].strip())
        at = found.end()
    return out


def first_word(text: str) -> str:
    """The first word of a statement, without parentheses before it."""
    return next((word for word in read_words(text, 32) if word != "("), "")


def bare(word: str) -> str:
    """A word without its quotes."""
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1].replace(word[0] * 2, word[0])
    return word
