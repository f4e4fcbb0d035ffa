"""What is typed at the prompt of `millpond sql`: where a statement ends, and what a name may be completed to."""

from __future__ import annotations

import re
import time
from typing import Protocol

from millpond.errors import MillpondError
from millpond.serve.sql.postgres.names import KEYWORDS
from millpond.tables.sql.statement import TABLE_FUNCTIONS

COMMANDS = (".tables", ".describe", ".watch", ".help", ".quit")
_WORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "ON", "AND", "OR"),
    *("NOT", "NULL", "IN", "BETWEEN", "AS", "DESC", "HAVING", "WITH", "EXPLAIN", "AT (VERSION => "),
    *("count(*)", "sum(", "avg(", "min(", "max("),
    *(f"{name}('" for name in TABLE_FUNCTIONS),
)
# Words that DuckDB takes for no names: those of PostgreSQL, and some of its own.
_KEYWORDS = KEYWORDS.union(
    ("anti", "asof", "at", "by", "describe", "glob", "lambda", "pivot", "pivot_longer", "pivot_wider"),
    ("positional", "qualify", "semi", "show", "summarize", "unpack", "unpivot"),
)
# Texts, names in quotes, comments: each to its end, or to that of the text if it has none.
_PART = re.compile(
    r"""(?P<text>\b[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)|\$(?P<tag>\w*)\$(?:.*?\$(?P=tag)\$|.*\Z))"""
    r"""|(?P<name>"(?:[^"]|"")*(?:"|\Z))|(?P<comment>--[^\n]*|/\*(?:.*?\*/|.*\Z))|(?P<end>;)|(?P<space>\s+)|.""",
    re.DOTALL,
)
# Names that were asked for are known for so long: a server is asked for each table.
_KNOWN_SECONDS = 10.0


def split(text: str) -> tuple[list[str], str]:
    """The statements that have ended, without their `;`, and what isn't one yet.

    A `;` within a text, a name in quotes or a comment ends nothing.  Comments alone are no statement.
    """
    ended: list[str] = []
    begin, is_empty = 0, True
    for part in _PART.finditer(text):
        if part["end"]:
            if not is_empty:
                ended.append(text[begin : part.start()].strip())
            begin, is_empty = part.end(), True
        elif part["space"] is None and (part["comment"] is None or _is_open(part[0])):
            is_empty = False
    return ended, "" if is_empty else text[begin:].strip()


def _is_open(comment: str) -> bool:
    return comment.startswith("/*") and not (len(comment) >= 4 and comment.endswith("*/"))


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in _KEYWORDS
    return name if is_plain else _in_quotes(name)


def _in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Table(Protocol):
    @property
    def columns(self) -> tuple[str, ...]: ...


class _Tables(Protocol):
    def tables(self) -> list[str]: ...
    def __getitem__(self, name: str, /) -> _Table: ...


class Completer:
    """What the word before the cursor may become."""

    def __init__(self, pond: _Tables) -> None:
        self._pond = pond
        self._names: list[str] = []
        self._columns: dict[str, tuple[str, ...]] = {}
        self._asked = -_KNOWN_SECONDS

    def complete(self, before: str, begin: int) -> list[str]:
        """What may stand from `begin` on in place of what stands there.

        before:  the line up to the cursor
        begin:   where the word begins that readline replaces: after the last space or bracket, also in quotes
        """
        indent = len(before) - len(before.lstrip())
        if before.startswith(".", indent):
            command, space, named = before[indent:].partition(" ")
            if not space:
                return [each for each in COMMANDS if each.startswith(command)]
            if command == ".describe":
                self._ask()
                return [name[begin - len(before) + len(named) :] for name in self._names if name.startswith(named)]
        start = _word(before, begin)
        if start is None:
            return []
        self._ask()
        return [each[begin - start :] for each in self._found(before[start:])]

    def _found(self, word: str) -> list[str]:
        """What a word may become: a name, a column behind its table's name or an alias, a word of SQL."""
        columns = sorted({column for columns in self._columns.values() for column in columns})
        found = [_form(name, word) for name in dict.fromkeys((*self._names, *columns)) if _begins(name, word)]
        table, dot, column = word.rpartition(".")
        if dot:
            of = self._columns.get(table.strip('"').replace('""', '"'), columns)
            found += [f"{table}.{_form(name, column)}" for name in of if _begins(name, column)]
        return found + [each for each in _WORDS if each.lower().startswith(word.lower())]

    def _ask(self) -> None:
        if time.monotonic() - self._asked < _KNOWN_SECONDS:
            return
        # What a terminal would take for a command of its own isn't offered.
        self._names = [name for name in self._pond.tables() if name.isprintable()]
        self._columns = {name: self._columns_of(name) for name in self._names}
        self._asked = time.monotonic()

    def _columns_of(self, name: str) -> tuple[str, ...]:
        """None of them if the table can't be read: what is wrong with it, a statement says."""
        try:
            return tuple(column for column in self._pond[name].columns if column.isprintable())
        except MillpondError:
            return ()


def _begins(name: str, word: str) -> bool:
    """Whether a name begins as a word does, which may have a quote before it."""
    is_quoted = word.startswith('"')
    return _in_quotes(name).lower().startswith(word.lower()) if is_quoted else name.lower().startswith(word.lower())


def _form(name: str, word: str) -> str:
    """A name as SQL writes it, in quotes if the word has begun with one."""
    return _in_quotes(name) if word.startswith('"') else quoted(name)


def _word(before: str, begin: int) -> int | None:
    """Where the word before the cursor begins: at its quote, if it has one.  None within a text or a comment."""
    if not before:
        return begin
    *_, last = _PART.finditer(before)
    if last["comment"] or (last["text"] and last[0].count("'") % 2) or (last["text"] and last[0].startswith("$")):
        return None
    return min(begin, last.start()) if last["name"] and last[0].count('"') % 2 else begin
