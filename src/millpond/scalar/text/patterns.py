"""Patterns: LIKE, regular expressions, and formats of dates.

Features of Java's regular expressions that Python lacks, or that mean something else there, are
refused.

Source:  regexpExpressions.scala, java.util.regex.Pattern of JDK 17, DateTimeFormatterHelper, Spark
         4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from millpond.scalar.function import STRING, Values, function, literal_of, strict, takes
from millpond.scalar.text.functions import valid
from millpond.scalar.text.showing import year_text
from millpond.scalar.time.calendar import DAY_MICROS, MICROS, civil, days_of, weekday
from millpond.scalar.time.zones import zone_of
from millpond.schema.definition.expression import Expression

# ---------------------------------------------------------------- LIKE


def _like(e: Expression) -> Values:
    pattern = literal_of(e.args[1])
    if pattern is None:
        return lambda _, __: None
    found = re.compile(like_pattern(pattern, e.options["escape"]), re.DOTALL)
    return lambda text, _: found.fullmatch(valid(text)) is not None


def like_pattern(pattern: str, escape: str) -> str:
    """A LIKE pattern as a regular expression.  Raises ValueError for an escape that escapes nothing."""
    parts, rest = [], iter(pattern)
    for character in rest:
        if character == escape:
            following = next(rest, None)
            if following is None or following not in ("_", "%", escape):
                raise ValueError(pattern)
            parts.append(re.escape(following))
        else:
            parts.append({"_": ".", "%": ".*"}.get(character) or re.escape(character))
    return "".join(parts)


def _refuse_like(e: Expression) -> str | None:
    reason = takes(STRING, literal=(1,))(e)
    if reason is None and literal_of(e.args[1]) is not None:
        try:
            like_pattern(literal_of(e.args[1]), e.options["escape"])
        except ValueError:
            return "this pattern of LIKE isn't known here"
    return reason


# ---------------------------------------------------------------- regular expressions

_TERMINATORS = "\n\r\u0085\u2028\u2029"
_ANY = f"[^{_TERMINATORS}]"
_END = r"(?=(?:\r\n|(?<!\r)\n|[\r\u0085\u2028\u2029])?\Z)"
_CLASSES = {
    "d": "[0-9]", "D": "[^0-9]", "w": "[a-zA-Z0-9_]", "W": "[^a-zA-Z0-9_]", "s": r"[ \t\n\x0b\f\r]", "S": r"[^ \t\n\x0b\f\r]",
}  # fmt: skip
_IN_CLASS = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r" \t\n\x0b\f\r"}
_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\})\??", re.ASCII)
_PUNCTUATION = frozenset("\\.[]{}()*+-?^$|/,:;=!<>@#%&~'\"` _")


class NotTranslatable(ValueError):
    """A regular expression of Java without a known equivalent in Python."""


def python_pattern(pattern: str) -> str:
    """Java's regular expression as Python's with the same matches.

    Raises:  NotTranslatable.
    """
    out: list[str] = []
    place, depth, can_repeat = 0, 0, False
    while place < len(pattern):
        quantifier = _QUANTIFIER.match(pattern, place)
        character = pattern[place]
        if quantifier:
            if not can_repeat or pattern[quantifier.end() : quantifier.end() + 1] in ("+", "*", "?", "{"):
                raise NotTranslatable(pattern)
            out.append(quantifier[0])
            place, can_repeat = quantifier.end(), False
            continue
        can_repeat = character not in "^$|("
        if character == "\\":
            out.append(_escaped(pattern[place + 1 : place + 2], _CLASSES))
            place += 2
            continue
        if character == "[":
            text, place = _class(pattern, place)
            out.append(text)
            continue
        if character == "(":
            if pattern.startswith("(?", place):
                if not pattern.startswith("(?:", place):
                    raise NotTranslatable(pattern)
                out.append("(?:")
                place += 2
            else:
                out.append("(")
            depth += 1
        elif character == ")":
            depth -= 1
            if depth < 0:
                raise NotTranslatable(pattern)
            out.append(")")
        elif character in "{}]":
            raise NotTranslatable(pattern)
        else:
            out.append({".": _ANY, "^": r"\A", "$": _END, "|": "|"}.get(character) or re.escape(character))
        place += 1
    return "".join(out)


def _escaped(character: str, classes: dict[str, str]) -> str:
    if character in classes:
        return classes[character]
    if character in _CONTROLS:
        return _CONTROLS[character]
    if character and character in _PUNCTUATION:
        return re.escape(character)
    raise NotTranslatable(character)


def _class(pattern: str, place: int) -> tuple[str, int]:
    """A class of characters that starts here, and where it ends."""
    end = place + 1
    out = "["
    if pattern.startswith("^", end):
        out, end = "[^", end + 1
    first = True
    while end < len(pattern) and (pattern[end] != "]"):
        character = pattern[end]
        if character in "[&^" or (first and character == "-"):
            raise NotTranslatable(pattern)
        if character == "\\":
            out += _escaped(pattern[end + 1 : end + 2], _IN_CLASS)
            end += 2
        elif character == "-":
            out += "-" if pattern[end + 1 : end + 2] != "]" else r"\-"
            end += 1
        else:
            out += re.escape(character)
            end += 1
        first = False
    if first or end >= len(pattern):
        raise NotTranslatable(pattern)
    return out + "]", end + 1


def _compiled(e: Expression) -> re.Pattern[str]:
    return re.compile(python_pattern(literal_of(e.args[1])))


def _refuse_regex(e: Expression) -> str | None:
    literals = {"rlike": (1,), "regexp_replace": (1, 2, 3)}.get(e.op, (1, 2))
    for place in literals:
        if e.args[place].op != "literal" or literal_of(e.args[place]) is None:
            return f"{e.op} with a pattern that is computed isn't known here"
    if reason := takes(STRING)(Expression(e.op, e.type, e.args[:2])):
        return reason
    try:
        found = _compiled(e)
    except (NotTranslatable, re.error):
        return f"the regular expression {literal_of(e.args[1])!r} isn't known here"
    if e.op.startswith("regexp_extract") and not 0 <= literal_of(e.args[2]) <= found.groups:
        return "a group that its regular expression doesn't have isn't known here"
    if e.op == "regexp_replace" and (literal_of(e.args[3]) != 1 or set(literal_of(e.args[2])) & set("$\\")):
        return "regexp_replace from another place than the first, or with groups, isn't known here"
    # After an empty match, Java moves on by half a character if that is a pair of surrogates.
    if e.op in ("split", "regexp_replace", "regexp_extract_all") and found.search("") is not None:
        return f"{e.op} of what may be empty isn't known here"
    return None


def _rlike(e: Expression) -> Values:
    search = _compiled(e).search
    return lambda text, _: search(valid(text)) is not None


def _extract(e: Expression) -> Values:
    search, group = _compiled(e).search, literal_of(e.args[2])

    def extract(text: str, *_: object) -> str:
        found = search(valid(text))
        return (found[group] or "") if found else ""

    return extract


def _extract_all(e: Expression) -> Values:
    found, group = _compiled(e), literal_of(e.args[2])
    return lambda text, *_: [match[group] or "" for match in found.finditer(valid(text))]


def _regex_place(e: Expression) -> Values:
    """Where the match begins, counted from 1 in Java's UTF-16 units; 0 if there is none."""
    search = _compiled(e).search

    def place(text: str, *_: object) -> int:
        found = search(valid(text))
        return 0 if found is None else len(text[: found.start()].encode("utf-16-le")) // 2 + 1

    return place


def _regex_replace(e: Expression) -> Values:
    found, new = _compiled(e), literal_of(e.args[2])
    return lambda text, *_: found.sub(lambda _: new, valid(text))


def _split(e: Expression) -> Values:
    found, limit = _compiled(e), literal_of(e.args[2])

    def split(text: str, *_: object) -> list[str]:
        parts: list[str] = []
        start = 0
        for match in found.finditer(valid(text)):
            if 0 < limit <= len(parts) + 1:
                break
            parts.append(text[start : match.start()])
            start = match.end()
        return [*parts, text[start:]]

    return split


# ---------------------------------------------------------------- formats of dates

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_RUN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z'\[\]{}#]")
FieldWriter = Callable[[int, int], str]
"""(days, microseconds of the day) -> a part of the text"""


def _year(count: int) -> FieldWriter | None:
    if count == 2:
        return lambda days, _: f"{abs(civil(days)[0]) % 100:02d}"
    if count == 4:
        return lambda days, _: year_text(civil(days)[0])
    if count in (1, 3):
        return lambda days, _: f"{civil(days)[0]:0{count + (civil(days)[0] < 0)}d}"
    return None


def _fixed(text: str) -> Callable[[int], FieldWriter | None]:
    return lambda _: lambda __, ___: text


def _number(value: Callable[[int, int], int], most: int = 2) -> Callable[[int], FieldWriter | None]:
    def part(count: int) -> FieldWriter | None:
        return None if count > most else (lambda days, rest: f"{value(days, rest):0{count}d}")

    return part


def _month(count: int) -> FieldWriter | None:
    if count <= 2:
        return lambda days, _: f"{civil(days)[1]:0{count}d}"
    if count in (3, 4):
        return lambda days, _: MONTHS[civil(days)[1] - 1][: 3 if count == 3 else None]
    return None


def _day_name(count: int) -> FieldWriter | None:
    if count > 4:
        return None
    return lambda days, _: _DAYS[weekday(days)][: 3 if count < 4 else None]


def _fraction(count: int) -> FieldWriter | None:
    return None if count > 6 else (lambda _, rest: f"{rest % MICROS:06d}"[:count])


def _half(count: int) -> FieldWriter | None:
    return None if count > 1 else (lambda _, rest: "AM" if rest < DAY_MICROS // 2 else "PM")


def _quarter(count: int) -> FieldWriter | None:
    shown = {1: "{n}", 2: "0{n}", 3: "Q{n}", 4: "{n}{end} quarter"}.get(count)
    if shown is None:
        return None
    ends = ("st", "nd", "rd", "th")

    def part(days: int, _: int) -> str:
        number = (civil(days)[1] - 1) // 3 + 1
        return shown.format(n=number, end=ends[number - 1])

    return part


_LETTERS: dict[str, Callable[[int], FieldWriter | None]] = {
    "y": _year,
    "M": _month,
    "d": _number(lambda days, _: civil(days)[2]),
    "H": _number(lambda _, rest: rest // (3600 * MICROS)),
    "h": _number(lambda _, rest: (rest // (3600 * MICROS) + 11) % 12 + 1),
    "m": _number(lambda _, rest: rest // (60 * MICROS) % 60),
    "s": _number(lambda _, rest: rest // MICROS % 60),
    "k": _number(lambda _, rest: (rest // (3600 * MICROS) + 23) % 24 + 1),
    "K": _number(lambda _, rest: rest // (3600 * MICROS) % 12),
    "D": _number(lambda days, _: days - days_of(civil(days)[0], 1, 1) + 1, 3),
    "Q": _quarter,
    "S": _fraction,
    "E": _day_name,
    "a": _half,
}


def split_format(pattern: str) -> list[tuple[str, bool]] | None:
    """Fields of letters and the texts between them, with whether each is a field; None for brackets etc."""
    out: list[tuple[str, bool]] = []
    place = 0
    while place < len(pattern):
        run = _RUN.match(pattern, place)
        if run is None:
            return None
        text, place = run[0], run.end()
        fixed = text if text[0] != "'" else (text[1:-1].replace("''", "'") or "'")
        out.append((text, True) if run[1] else (fixed, False))
    return out


def compile_format(pattern: str) -> Callable[[int], str] | None:
    """A function from local time, in microseconds, to its text; None if the format isn't known here."""
    parts: list[FieldWriter] = []
    for text, is_field in split_format(pattern) or [("?", True)]:
        letter = _LETTERS.get(text[0]) if is_field else _fixed(text)
        part = letter(len(text)) if letter else None
        if part is None:
            return None
        parts.append(part)

    def show(local: int) -> str:
        days, rest = divmod(local, DAY_MICROS)
        return "".join([part(days, rest) for part in parts])

    return show


def _name_of(e: Expression) -> Values:
    show = compile_format("EEE" if e.op == "day_name" else "MMM")
    assert show is not None
    return lambda days: show(days * DAY_MICROS)


def _date_format(e: Expression) -> Values:
    zone = zone_of(e)
    show = compile_format(literal_of(e.args[1]))
    assert show is not None
    if e.args[0].type.kind == "time":
        return lambda nanos, _: show(nanos // 1000)
    if e.op == "from_unixtime":
        return lambda seconds, _: show(zone.to_local(_wrapped(seconds * MICROS)))
    return lambda micros, _: show(zone.to_local(micros))


def _wrapped(micros: int) -> int:
    return (micros + 2**63) % 2**64 - 2**63


def _refuse_format(e: Expression) -> str | None:
    kinds = {"long"} if e.op == "from_unixtime" else {"timestamp", "time"}
    if reason := takes(kinds, STRING, literal=(1,))(e):
        return reason
    pattern = literal_of(e.args[1])
    if pattern is None or compile_format(pattern) is None:
        return f"the format {pattern!r} isn't known here"
    return None


FUNCTIONS = (
    function("like", strict(_like), "Like", refuse=_refuse_like, reads=("escape",)),
    function("rlike", strict(_rlike), "RLike", refuse=_refuse_regex),
    function("regexp_extract", strict(_extract), "RegExpExtract", refuse=_refuse_regex),
    function("regexp_replace", strict(_regex_replace), "RegExpReplace", refuse=_refuse_regex),
    function("split", strict(_split), "StringSplit", refuse=_refuse_regex),
    function("regexp_extract_all", strict(_extract_all), "RegExpExtractAll", refuse=_refuse_regex),
    function("regexp_instr", strict(_regex_place), "RegExpInStr", refuse=_refuse_regex),
    function("day_name", strict(_name_of), "DayName", refuse=takes({"date"})),
    function("month_name", strict(_name_of), "MonthName", refuse=takes({"date"})),
    function("date_format", strict(_date_format), "DateFormatClass", refuse=_refuse_format, reads=("zone", "formats")),
    function("from_unixtime", strict(_date_format), "FromUnixTime", refuse=_refuse_format, reads=("zone", "formats")),
)
