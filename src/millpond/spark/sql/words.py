"""The words of a statement, by sqlglot's tokenizer of Spark's SQL: names, texts, numbers, comments.

Only the clauses are read here.  Value expressions are cut out as they are written, and Spark parses
them.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from millpond.errors import RequestError, SetupError

# Above this, a file isn't one of statements.
MOST_CHARACTERS = 1_000_000
_NAME = re.compile(r"[^\W\d]\w*")
_DIGITS = re.compile(r"[0-9]{1,9}")
_OPEN, _CLOSE = "([{", ")]}"


class Place(NamedTuple):
    """Where something stands in a file, from 1."""

    line: int
    column: int


class Written(NamedTuple):
    """A part of a statement as it is written, which Spark is to check."""

    text: str
    place: Place


class Word(NamedTuple):
    """One word.

    kind:        name, quoted (in backticks), text, number or sign
    value:       without its quotes
    begin, end:  positions in the whole text
    """

    kind: str
    value: str
    begin: int
    end: int


def refused(found: str, place: Place, hint: str) -> RequestError:
    """The error of a statement."""
    return RequestError(
        "INVALID_STATEMENT",
        f"Line {place.line}, column {place.column}: {found}.",
        hint=hint,
        line=place.line,
        column=place.column,
    )


def split_words(text: str) -> list[Word]:
    """All words of a text.  Raises INVALID_STATEMENT, LIBRARY_MISSING."""
    try:
        from sqlglot import TokenType
        from sqlglot.dialects import Spark
        from sqlglot.errors import SqlglotError
    except ImportError:
        raise SetupError(
            "LIBRARY_MISSING", "Reading statements needs the library sqlglot.", hint="Run: pip install 'millpond[spark]'"
        ) from None
    if len(text) > MOST_CHARACTERS:
        raise refused(f"there are {len(text):,} characters", Place(1, 1), f"Write at most {MOST_CHARACTERS:,} in one file.")
    texts = (TokenType.STRING, TokenType.RAW_STRING)
    try:
        tokens = Spark().tokenize(text)
    except SqlglotError:
        found = "a quote, a backtick or a comment isn't closed, or a number can't be read"
        raise refused(found, place_of(text, len(text)), "Close it.") from None
    words = []
    for token in tokens:
        written = text[token.start : token.end + 1]
        if token.token_type in texts:
            kind = "text"
        elif token.token_type is TokenType.IDENTIFIER:
            kind = "quoted"
        elif token.token_type is TokenType.NUMBER:
            kind = "number"
        else:
            kind = "name" if _NAME.fullmatch(written) else "sign"
        words.append(Word(kind, token.text if kind in ("text", "quoted") else written, token.start, token.end + 1))
    return words


def place_of(text: str, position: int) -> Place:
    """The line and column of a position."""
    before = text[:position]
    return Place(before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)


class Words:
    """The words of a statement, read from left to right."""

    def __init__(self, text: str, words: list[Word]) -> None:
        self._text, self._words, self._at = text, words, 0

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""
        return self._at >= len(self._words)

    @property
    def place(self) -> Place:
        """Of the next word."""
        if self.is_over:
            return place_of(self._text, self._words[-1].end if self._words else len(self._text))
        return place_of(self._text, self._words[self._at].begin)

    def fail(self, wanted: str, hint: str) -> NoReturn:
        """Raises INVALID_STATEMENT at the next word."""
        found = "the text ends" if self.is_over else f"{self._raw(self._words[self._at])!r:.60} stands here"
        raise refused(f"{found}, where {wanted} is expected", self.place, hint)

    def is_next(self, *words: str) -> bool:
        """Whether these come next, in upper or lower case."""
        ahead = self._words[self._at : self._at + len(words)]
        return len(ahead) == len(words) and all(
            w.kind in ("name", "sign") and w.value.upper() == expected for w, expected in zip(ahead, words, strict=True)
        )

    def take(self, *words: str) -> bool:
        """Go on behind these, if they come next."""
        found = self.is_next(*words)
        self._at += len(words) if found else 0
        return found

    def expect(self, *words: str, hint: str) -> None:
        """Go on behind these.  Raises INVALID_STATEMENT if others come next."""
        if not self.take(*words):
            self.fail(" ".join(words), hint)

    def name(self, what: str) -> str:
        """The next word, a name.  Raises INVALID_STATEMENT."""
        return self._next(("name", "quoted"), what, "Write a name, in backticks if it has other characters than letters.")

    def text(self, what: str) -> str:
        """The next word, a text in quotes.  Raises INVALID_STATEMENT."""
        return self._next(("text",), what, "Write it in single quotes.")

    def whole_number(self, what: str) -> int:
        """The next word, digits.  Raises INVALID_STATEMENT."""
        if self.is_over or not _DIGITS.fullmatch(self._words[self._at].value):
            self.fail(what, "Write a whole number.")
        return int(self._next(("number",), what, "Write a whole number."))

    def path(self) -> str:
        """The next word, in backticks or quotes.  Raises INVALID_STATEMENT."""
        return self._next(("quoted", "text"), "a path", "Write the path in backticks: json.`/data/visits`.")

    def option(self) -> str:
        """The value of an option: a text, a number, true or false.  Raises INVALID_STATEMENT."""
        sign = "-" if self.take("-") else ""
        if sign:
            return sign + self._next(("number",), "a number", "Write a number behind the sign.")
        return self._next(("text", "number", "name"), "the value of an option", "Write a text in quotes, or a number.")

    def option_name(self) -> str:
        """Names with dots between, or a text.  Raises INVALID_STATEMENT."""
        name = self._next(("text", "name", "quoted"), "the name of an option", "Write OPTIONS (maxFilesPerTrigger 10).")
        while self.take("."):
            name += "." + self.name("a part of the option's name")
        return name

    def until(self, *ends: str) -> list[Word]:
        """All words up to the first of these that isn't in brackets, or up to the end.  Raises INVALID_STATEMENT."""
        opened: list[Word] = []
        begin = self._at
        while not self.is_over:
            word = self._words[self._at]
            if not opened and any(self.is_next(end) for end in ends):
                break
            bracket = word.value if word.kind == "sign" else ""
            if bracket and bracket in _OPEN:
                opened.append(word)
            elif bracket and bracket in _CLOSE and (not opened or _OPEN.index(opened.pop().value) != _CLOSE.index(bracket)):
                self.fail("no closing bracket", "Open it first.")
            self._at += 1
        if opened:
            found = f"{opened[-1].value!r} isn't closed"
            raise refused(found, place_of(self._text, opened[-1].begin), "Close the bracket.")
        return self._words[begin : self._at]

    def written(self, words: list[Word]) -> Written:
        """Words as they are written, with what is between."""
        return Written(self._text[words[0].begin : words[-1].end], place_of(self._text, words[0].begin))

    def part(self, words: list[Word]) -> Words:
        """A reader of some of the words."""
        return Words(self._text, words)

    def _next(self, kinds: tuple[str, ...], what: str, hint: str) -> str:
        if self.is_over or self._words[self._at].kind not in kinds:
            self.fail(what, hint)
        self._at += 1
        return self._words[self._at - 1].value

    def _raw(self, word: Word) -> str:
        return self._text[word.begin : word.end]
