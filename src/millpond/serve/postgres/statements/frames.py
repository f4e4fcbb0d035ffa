"""The words around a SELECT that DuckDB doesn't know: DECLARE, FETCH, MOVE, CLOSE, PREPARE, EXECUTE, COPY … TO STDOUT.

Only these words are read here.  What is inside, a process reads as any other statement; what isn't recognised is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from millpond.serve.postgres.errors import NOT_SUPPORTED, PgError
from millpond.serve.postgres.statements.copying import CopyForm
from millpond.serve.postgres.statements.words import bare, first_word, masked, read_words, without_comments
from millpond.serve.sql.postgres.parameters import oid_of_word

_NAME = r'(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*|"(?:[^"]|"")+")'
_FLAGS = re.IGNORECASE | re.DOTALL
_ONE_NAME = re.compile(_NAME)
_DECLARE = re.compile(rf"\s*declare\s+({_NAME})\s+((?:[a-z]+\s+)*?)cursor\s+(?:(with|without)\s+hold\s+)?for\b(.*)", _FLAGS)
_PREPARE = re.compile(rf"\s*prepare\s+({_NAME})\s*(?:\(([^()]*)\))?\s+as\b(.*)", _FLAGS)
_EXECUTE = re.compile(rf"\s*execute\s+({_NAME})\s*(?:\((.*)\))?\s*", _FLAGS)
_VALUE = re.compile(r"\s*(?:(null)|(true|false)|([-+]?\s*[0-9]+(?:\.[0-9]+)?)|'((?:[^']|'')*)')\s*(,|$)", _FLAGS)
_COPY_TABLE = re.compile(
    rf"\s*copy\s+({_NAME}(?:\s*\.\s*{_NAME})?)\s*(\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?\s+to\s+stdout\b", _FLAGS
)
_COPY_QUERY = re.compile(r"\s*copy\s*\(", _FLAGS)
_TO_STDOUT = re.compile(r"\s*to\s+stdout\b", _FLAGS)
_INSIDE = frozenset({"select", "with", "values", "table", "from"})
_CURSOR_WORDS = frozenset({"insensitive", "asensitive", "no scroll"})
_MOST_ROWS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Declare:
    """DECLARE: a cursor's name and its SELECT."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """FETCH, or MOVE.

    most:  rows, 0 for all
    """

    name: str
    most: int
    is_move: bool


@dataclass(frozen=True, slots=True)
class Close:
    """CLOSE; None for all."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Prepare:
    """PREPARE.

    types:  of parameters, 0 for those that aren't said
    """

    name: str
    types: list[int]
    query: str


@dataclass(frozen=True, slots=True)
class Execute:
    """EXECUTE, with its values as texts."""

    name: str
    values: list[str | None]


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY … TO STDOUT."""

    query: str
    form: CopyForm


Command = Declare | Fetch | Close | Prepare | Execute | Copy


def read_command(text: str) -> Command | None:
    """The command that a statement is; None for another statement.  Raises PgError."""
    word = first_word(text)
    read = _READERS.get(word)
    if read is None or (word == "copy" and "from" in _outside(text)):
        return None
    return read(without_comments(text))


def _outside(text: str) -> list[str]:
    """The words of COPY outside of parentheses, in lower case."""
    out, depth = list[str](), 0
    for word in re.findall(r"[()]|[^\s()]+", masked(without_comments(text))):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if not depth:
            out.append(word.lower())
    return out


def _wrong(text: str) -> PgError:
    word = first_word(text).upper()
    return PgError("42601", f"syntax error in {word}", hint=f"Write {_FORMS[word]}.")


def _name(word: str) -> str:
    return bare(word) if word.startswith('"') else word.lower()


def _query(text: str) -> str:
    """The SELECT of a command.  Raises PgError for anything else."""
    if first_word(text) not in _INSIDE:
        raise PgError(
            "42601", f'syntax error at or near "{first_word(text)[:80]}"', hint="Write one SELECT over tables of the pond."
        )
    return text.strip()


def _declare(text: str) -> Declare:
    found = _DECLARE.fullmatch(text)
    if found is None:
        raise _wrong(text)
    words = re.sub(r"no\s+scroll", "no scroll", found[2].lower())
    asked = set(re.findall(r"no scroll|[a-z]+", words))
    if not asked <= _CURSOR_WORDS | {"scroll", "binary"}:
        raise _wrong(text)
    if (found[3] or "").lower() == "with" or not asked <= _CURSOR_WORDS:
        raise PgError(
            NOT_SUPPORTED,
            "cursors WITH HOLD, SCROLL and BINARY are not answered here",
            hint="Declare a cursor without these words, and read it forwards inside of its transaction.",
        )
    return Declare(_name(found[1]), _query(found[4]))


def _fetch(text: str) -> Fetch:
    words = read_words(text, 10)
    word, *direction, name = words if len(words) > 1 else [*words, ""]
    if direction and direction[-1] in ("from", "in"):
        direction.pop()
    if not _ONE_NAME.fullmatch(name) or "." in name.partition('"')[0]:
        raise _wrong(text)
    shown = " ".join(direction)
    if re.fullmatch(r"prior|backward( [0-9]+| all)?|(forward )?-[0-9]+", shown):
        raise PgError("55000", "cursor can only scan forward", hint="Read the rows in their order.")
    if re.fullmatch(r"first|last|(absolute|relative) [-+]?[0-9]+|(forward )?\+?0+", shown):
        raise PgError(NOT_SUPPORTED, f"{word.upper()} {shown.upper()} is not answered here", hint="Write FETCH number FROM name.")
    if shown in ("", "next", "forward"):
        return Fetch(_name(name), 1, word == "move")
    if shown in ("all", "forward all"):
        return Fetch(_name(name), 0, word == "move")
    number = re.fullmatch(r"(?:forward )?\+?([0-9]{1,10})", shown)
    if number is None or int(number[1]) > _MOST_ROWS:
        raise _wrong(text)
    return Fetch(_name(name), int(number[1]), word == "move")


def _close(text: str) -> Close:
    words = read_words(text, 4)
    if len(words) != 2 or not _ONE_NAME.fullmatch(words[1]):
        raise _wrong(text)
    return Close(None if words[1] == "all" else _name(words[1]))


def _prepare(text: str) -> Prepare:
    found = _PREPARE.fullmatch(text)
    if found is None:
        raise _wrong(text)
    types = [each.strip() for each in found[2].split(",")] if found[2] else []
    return Prepare(_name(found[1]), [_type(each) for each in types], _query(found[3]))


def _type(word: str) -> int:
    oid = oid_of_word(bare(word))
    if oid is None:
        raise PgError("42704", f'type "{word[:80]}" does not exist')
    return oid


def _execute(text: str) -> Execute:
    found = _EXECUTE.fullmatch(text)
    if found is None:
        raise _wrong(text)
    values, rest, at = list[str | None](), found[2] or "", 0
    is_more = bool(rest.strip())
    while is_more:
        value = _VALUE.match(rest, at)
        if value is None:
            raise PgError(NOT_SUPPORTED, "the values of EXECUTE are numbers, texts in quotes, TRUE, FALSE and NULL here")
        null, boolean, number, quoted, comma = value.groups()
        if null:
            values.append(None)
        elif boolean:
            values.append(boolean.lower())
        elif number:
            values.append(_number(number))
        else:
            values.append(quoted.replace("''", "'"))
        at, is_more = value.end(), bool(comma)
    return Execute(_name(found[1]), values)


def _number(text: str) -> str:
    shown = format(Decimal("".join(text.split())), "f")
    return shown.removeprefix("-") if not shown.strip("-0.") else shown


def _copy(text: str) -> Copy:
    found = _COPY_TABLE.match(text)
    if found is not None:
        columns = "*" if found[2] is None else found[2].strip()[1:-1]
        query = f"SELECT {columns} FROM {found[1]}"  # noqa: S608 - of a client that may ask any SELECT
        return Copy(query, _form(text, text[found.end() :]))
    begun = _COPY_QUERY.match(text)
    if begun is None:
        raise PgError(NOT_SUPPORTED, "COPY is answered here to STDOUT alone", hint=f"Write {_FORMS['COPY']}.")
    mask, depth, at = masked(text), 1, begun.end()
    while depth and at < len(mask):
        depth += {"(": 1, ")": -1}.get(mask[at], 0)
        at += 1
    to = _TO_STDOUT.match(text, at)
    if depth or to is None:
        raise _wrong(text)
    return Copy(_query(text[begun.end() : at - 1]), _form(text, text[to.end() :]))


def _form(text: str, rest: str) -> CopyForm:
    """The options of COPY, in today's form with parentheses and in the old one."""
    words = read_words(rest, 60)
    if words[:1] == ["with"]:
        del words[0]
    is_list = words[:1] == ["("]
    if is_list and words[-1] != ")":
        raise _wrong(text)
    words = words[1:-1] if is_list else words
    options = dict[str, str | None]()
    while words:
        name = words.pop(0)
        if not is_list and name in ("csv", "binary"):
            name, words = "format", [name, *words]
        if name not in ("format", "header", "delimiter", "null", "encoding") or name in options:
            known = "FORMAT text or csv, HEADER, DELIMITER and NULL"
            raise PgError(NOT_SUPPORTED, f"COPY's option {name[:80]!r} is not answered here", hint=f"COPY knows {known}.")
        if words[:1] == ["as"] and not is_list:
            del words[0]
        has_value = bool(words) and words[0] != "," if is_list else name != "header"
        options[name] = _option(text, words) if has_value else None
        if is_list and words and words.pop(0) != ",":
            raise _wrong(text)
        if is_list and not words:
            break
    return CopyForm.of(options)


def _option(text: str, words: list[str]) -> str:
    """The value of an option, taken from the words."""
    if not words:
        raise _wrong(text)
    word = words.pop(0)
    if word == "e" and words[:1] == [r"'\t'"]:
        del words[0]
        return "\t"
    return bare(word)


_READERS: dict[str, Callable[[str], Command]] = {
    "declare": _declare,
    "fetch": _fetch,
    "move": _fetch,
    "close": _close,
    "prepare": _prepare,
    "execute": _execute,
    "copy": _copy,
}
_FORMS = {
    "DECLARE": "DECLARE name CURSOR FOR SELECT …",
    "FETCH": "FETCH number FROM name",
    "MOVE": "MOVE number FROM name",
    "CLOSE": "CLOSE name, or CLOSE ALL",
    "PREPARE": "PREPARE name (types) AS SELECT …",
    "EXECUTE": "EXECUTE name (values)",
    "COPY": "COPY (SELECT …) TO STDOUT WITH (FORMAT csv, HEADER)",
}
