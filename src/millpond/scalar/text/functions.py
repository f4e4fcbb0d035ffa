"""Functions of text and bytes.

Characters are code points.  Text that isn't UTF-8 is an error here: Spark counts its characters
byte by byte.

Source:  stringExpressions.scala, UTF8String, ByteArray, Spark 4.3.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from millpond.errors import RequestError
from millpond.scalar.function import STRING, Evaluate, Row, Values, function, literal_of, plain, refuse_collation, strict, takes
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.letters import lower, title, upper
from millpond.schema.definition.expression import Expression

_MAX_INT = 2**31 - 1
_BYTES = frozenset({"binary"})
_EITHER = STRING | _BYTES
_INT = frozenset({"integer"})
_LONG = frozenset({"long"})


def valid(text: str) -> str:
    """The text, if it is UTF-8.

    Raises:  VALUE_OUT_OF_RANGE.
    """
    if not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text):
        raise RequestError(
            "VALUE_OUT_OF_RANGE",
            "Its expression is computed from a text that isn't UTF-8.",
            hint="Use make_valid_utf8 on it in the job.",
        )
    return text


def encoded(text: str) -> bytes:
    """Spark's bytes of a text."""
    return text.encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    """The inverse."""
    return data.decode("utf-8", "surrogateescape")


# ---------------------------------------------------------------- parts


def _length(e: Expression) -> Values:
    return len if e.args[0].type.kind == "binary" else (lambda v: len(valid(v)))


def _octets(e: Expression) -> Values:
    times = 8 if e.op == "bit_length" else 1
    if e.args[0].type.kind == "binary":
        return lambda v: len(v) * times
    return lambda v: len(encoded(v)) * times


def _substring(e: Expression) -> Values:
    binary = e.args[0].type.kind == "binary"

    def part(value: str | bytes, position: int, length: int) -> Any:
        return substring_of(value if binary else valid(value))(position, length)  # type: ignore[arg-type]

    return part


def substring_of(value: str | bytes) -> Callable[[int, int], Any]:
    """A part of a text, from a position that counts from 1, or from the end if it is negative."""

    def part(position: int, length: int) -> str | bytes:
        start = position - 1 if position > 0 else (len(value) + position if position < 0 else 0)
        end = max(0, min(start + length, _MAX_INT))
        return value[max(0, start) : end] if end > start else value[:0]

    return part


def _refuse_levenshtein(e: Expression) -> str | None:
    if reason := takes(STRING, STRING, _INT, literal=(2,))(e):
        return reason
    if len(e.args) == 3 and (literal_of(e.args[2]) is None or literal_of(e.args[2]) < 0):
        return "levenshtein up to such a threshold isn't known here"
    return None


def _pad(e: Expression) -> Values:
    left = e.op == "pad_left"

    def pad(text: str, length: int, filling: str) -> str:
        valid(text)
        valid(filling)
        missing = length - len(text)
        if missing <= 0 or not filling:
            return text[: max(0, length)]
        padding = (filling * (missing // len(filling) + 1))[:missing]
        return padding + text if left else text + padding

    return pad


def _substring_index(text: str, delimiter: str, count: int) -> str:
    if not delimiter or not count:
        return ""
    data, mark = encoded(text), encoded(delimiter)
    if count > 0:
        place = -1
        for _ in range(count):
            place = data.find(mark, place + 1)
            if place < 0:
                return text
        return decoded(data[:place])
    place = len(data) - len(mark) + 1
    for _ in range(-count):
        # The next occurrence may overlap with the last one.
        place = data.rfind(mark, 0, max(0, place - 1) + len(mark)) if place > 0 else -1
        if place < 0:
            return text
    return decoded(data[place + len(mark) :])


# ---------------------------------------------------------------- joining


def _concat(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    kind = e.type.kind

    def evaluate(key: Row, buffers: Row) -> object:
        parts = [operand(key, buffers) for operand in operands]
        if None in parts:
            return None
        if kind == "array":
            return [item for part in parts for item in part]
        return b"".join(parts) if kind == "binary" else "".join(parts)

    return evaluate


def _refuse_concat(e: Expression) -> str | None:
    if e.type.kind not in ("string", "binary", "array"):
        return f"concat on {e.type} isn't known here"
    return next((reason for a in e.args if (reason := refuse_collation("concat", a.type))), None)


def _concat_with(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """NULLs are left out; an array counts as its elements."""
    between, *rest = operands

    def evaluate(key: Row, buffers: Row) -> str | None:
        separator = between(key, buffers)
        if separator is None:
            return None
        parts: list[str] = []
        for operand in rest:
            value = operand(key, buffers)
            parts += [v for v in value if v is not None] if isinstance(value, list) else ([] if value is None else [value])
        return str(separator.join(parts))

    return evaluate


def _refuse_concat_with(e: Expression) -> str | None:
    for arg in e.args:
        of = arg.type.element if arg.type.kind == "array" and arg.type.element else arg.type
        if of.kind not in ("string", "void"):
            return f"concat_ws on {arg.type} isn't known here"
        if reason := refuse_collation("concat_ws", of):
            return reason
    return None


# ---------------------------------------------------------------- trimming, searching, replacing


def _trim(strip: Callable[..., str]) -> Callable[[Expression], Values]:
    def make(_: Expression) -> Values:
        def trimmed(text: str, characters: str = " ") -> str:
            return strip(valid(text), valid(characters)) if characters else text

        return trimmed

    return make


def _instr(text: str, wanted: str) -> int:
    return valid(text).find(valid(wanted)) + 1


def _instr_of(text: str, wanted: str, start: int, occurrence: int) -> int:
    """The place of an occurrence, counted from 1; a negative start counts and searches from the end."""
    if occurrence <= 0:
        raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression finds an occurrence below 1.", hint="Use 1 or more in the job.")
    whole, part = valid(text), valid(wanted)
    if not part:
        return 1
    if start == 0 or abs(start) > len(whole):
        return 0
    place = start - 1 if start > 0 else len(whole) + start
    step = 1 if start > 0 else -1
    while 0 <= place < len(whole):
        if whole.startswith(part, place):
            occurrence -= 1
            if occurrence == 0:
                return place + 1
        place += step
    return 0


def _locate(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    wanted, whole, first = operands

    def evaluate(key: Row, buffers: Row) -> int | None:
        start = first(key, buffers)
        if start is None:
            return 0
        part, text = wanted(key, buffers), whole(key, buffers)
        if part is None or text is None:
            return None
        if start < 1:
            return 0
        return valid(text).find(valid(part), start - 1) + 1 if part else 1

    return evaluate


def _replace(text: str, old: str, new: str) -> str:
    return valid(text).replace(valid(old), new) if old else text


def _translate(text: str, matching: str, replacing: str) -> str:
    table: dict[int, str | None] = {}
    for place, character in enumerate(valid(matching)):
        if ord(character) not in table:
            given = replacing[place] if place < len(valid(replacing)) else "\0"
            table[ord(character)] = None if given == "\0" else given
    return valid(text).translate(table)


def _split_text(text: str, delimiter: str) -> list[str]:
    return text.split(delimiter) if delimiter else [text]


def _char(number: int) -> str:
    if number < 0:
        return ""
    return chr(number & 0xFF)


# ---------------------------------------------------------------- digits and hashes


def _hex(e: Expression) -> Values:
    kind = e.args[0].type.kind
    if kind == "long":
        return lambda v: f"{v % (1 << 64):X}"
    return (lambda v: v.hex().upper()) if kind == "binary" else (lambda v: encoded(v).hex().upper())


def _sha2(data: bytes, bits: int) -> str | None:
    name = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}.get(bits)
    return None if name is None else hashlib.new(name, data).hexdigest()


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _base64(data: bytes, lines: bool) -> str:
    """Java's MIME form has lines of 76 characters."""
    text = base64.b64encode(data).decode()
    return "\r\n".join(text[n : n + 76] for n in range(0, len(text), 76)) if lines else text


def _unhex(e: Expression) -> Values:
    def compute(text: str) -> bytes | None:
        digits = text if len(text) % 2 == 0 else f"0{text}"
        if not digits.isascii() or not all(c in "0123456789abcdefABCDEF" for c in digits):
            if e.options["mode"] == "ansi":
                raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression reads digits that are none.", hint="Use try_unhex.")
            return None
        return bytes.fromhex(digits)

    return compute


def _overlay(e: Expression) -> Values:
    """From substrings, as in Spark."""
    whole = (lambda v: v) if e.type.kind == "binary" else valid

    def overlay(value: Any, new: Any, position: int, length: int) -> Any:
        part = substring_of(whole(value))
        taken = length if length >= 0 else len(whole(new))
        return part(1, position - 1) + new + part(position + taken, _MAX_INT)

    return overlay


def _elt(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """The operand with this number, counted from 1; others aren't evaluated."""
    number, *given = operands
    ansi = e.options["mode"] == "ansi"

    def evaluate(key: Row, buffers: Row) -> object:
        place = number(key, buffers)
        if place is None:
            return None
        if 1 <= place <= len(given):
            return given[place - 1](key, buffers)
        if ansi:
            raise RequestError(
                "VALUE_OUT_OF_RANGE", "Its expression takes a text that elt doesn't have.", hint="Use a number that it has."
            )
        return None

    return evaluate


def _find_in_set(word: str, words: str) -> int:
    return 0 if "," in word else next((n for n, w in enumerate(words.split(","), 1) if w == word), 0)


def _levenshtein(a: str, b: str, most: int = _MAX_INT) -> int:
    """How many characters to insert, delete or replace; -1 if that is more than `most`."""
    row = list(range(len(valid(b)) + 1))
    for i, x in enumerate(valid(a), 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1] if row[-1] <= most else -1


FUNCTIONS = (
    function("space", plain(lambda count: " " * max(0, count)), "StringSpace", refuse=takes(_INT)),
    function("elt", _elt, "Elt", refuse=takes(_INT, _EITHER), reads=("strict",)),
    function("unhex", strict(_unhex), "Unhex", refuse=takes(STRING), reads=("strict",)),
    function("overlay", strict(_overlay), "Overlay", refuse=takes(_EITHER, _EITHER, _INT)),
    function("find_in_set", plain(_find_in_set), "FindInSet", refuse=takes(STRING)),
    function("levenshtein", plain(_levenshtein), "Levenshtein", refuse=_refuse_levenshtein),
    function("base64", plain(_base64), "Base64.encode", refuse=takes(_BYTES, {"boolean"})),
    function("upper", plain(upper), "Upper", refuse=takes(STRING), reads=("letters",)),
    function("lower", plain(lower), "Lower", refuse=takes(STRING), reads=("letters",)),
    function("initcap", plain(title), "InitCap", refuse=takes(STRING), reads=("letters",)),
    function("length", strict(_length), "Length", refuse=takes(_EITHER)),
    function("octet_length", strict(_octets), "OctetLength", refuse=takes(_EITHER)),
    function("bit_length", strict(_octets), "BitLength", refuse=takes(_EITHER)),
    function("substring", strict(_substring), "Substring", refuse=takes(_EITHER, _INT)),
    function("pad_left", strict(_pad), "StringLPad", refuse=takes(STRING, _INT, STRING)),
    function("pad_right", strict(_pad), "StringRPad", refuse=takes(STRING, _INT, STRING)),
    function("repeat", plain(lambda v, n: v * max(0, n)), "StringRepeat", refuse=takes(STRING, _INT)),
    function("substring_index", plain(_substring_index), "SubstringIndex", refuse=takes(STRING, STRING, _INT)),
    function("concat", _concat, "Concat", refuse=_refuse_concat),
    function("concat_ws", _concat_with, "ConcatWs", refuse=_refuse_concat_with),
    function("trim", strict(_trim(str.strip)), "StringTrim", refuse=takes(STRING)),
    function("ltrim", strict(_trim(str.lstrip)), "StringTrimLeft", refuse=takes(STRING)),
    function("rtrim", strict(_trim(str.rstrip)), "StringTrimRight", refuse=takes(STRING)),
    function("contains", plain(lambda a, b: encoded(b) in encoded(a)), "Contains", refuse=takes(STRING)),
    function("starts_with", plain(lambda a, b: encoded(a).startswith(encoded(b))), "StartsWith", refuse=takes(STRING)),
    function("ends_with", plain(lambda a, b: encoded(a).endswith(encoded(b))), "EndsWith", refuse=takes(STRING)),
    function("instr", plain(_instr), "StringInstr", refuse=takes(STRING)),
    function("instr_of", plain(_instr_of), "StringInstrWithOccurrence", refuse=takes(STRING, STRING, _INT)),
    function("locate", _locate, "StringLocate", refuse=takes(STRING, STRING, _INT)),
    function("replace", plain(_replace), "StringReplace", refuse=takes(STRING)),
    function("translate", plain(_translate), "StringTranslate", refuse=takes(STRING)),
    function("split_text", plain(_split_text), "StringSplitSQL", refuse=takes(STRING)),
    function("ascii", plain(lambda v: ord(valid(v)[0]) if v else 0), "Ascii", refuse=takes(STRING)),
    function("char", plain(_char), "Chr", refuse=takes(_LONG)),
    function("hex", strict(_hex), "Hex", refuse=takes(_EITHER | _LONG)),
    function("bin", plain(lambda v: f"{v % (1 << 64):b}"), "Bin", refuse=takes(_LONG)),
    function("md5", plain(_md5), "Md5", refuse=takes(_BYTES)),
    function("sha1", plain(_sha1), "Sha1", refuse=takes(_BYTES)),
    function("sha2", plain(_sha2), "Sha2", refuse=takes(_BYTES, _INT)),
    function("crc32", plain(zlib.crc32), "Crc32", refuse=takes(_BYTES)),
)
