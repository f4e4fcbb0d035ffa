"""Text as bytes and back: character sets, Base32, Base64, URLs; and functions of bytes.

Source:  stringExpressions.scala, urlExpressions.scala, ExpressionImplUtils, ByteArrayMethods, Spark
         4.3; java.net.URLDecoder and java.util.Base64 of JDK 17.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from urllib.parse import quote_plus

from millpond.scalar.function import STRING, Values, function, literal_of, plain, strict, takes
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.functions import encoded, valid
from millpond.schema.definition.expression import Expression

_BYTES = frozenset({"binary"})
_EITHER = STRING | _BYTES
_BOOLEAN = frozenset({"boolean"})
_SETS = {
    "US-ASCII": "ascii", "ISO-8859-1": "latin-1", "UTF-8": "utf-8", "UTF-16BE": "utf-16-be", "UTF-16LE": "utf-16-le",
    "UTF-16": "utf-16", "UTF-32": "utf-32",
}  # fmt: skip
_LITTLE, _BIG = b"\xff\xfe", b"\xfe\xff"


def _malformed(what: str) -> SparkFails:
    return SparkFails("VALUE_OUT_OF_RANGE", f"Its expression reads {what} that is none.", hint="Use a try_ function in the job.")


# ---------------------------------------------------------------- character sets


def _charset(e: Expression) -> str:
    return _SETS[str(literal_of(e.args[1])).upper()]


def _refuse_charset(e: Expression) -> str | None:
    kind = STRING if e.op == "encode" else _BYTES
    if reason := takes(kind, STRING, _BOOLEAN, literal=(1, 2, 3))(e):
        return reason
    if any(literal_of(flag) is not False for flag in e.args[2:]):
        return f"{e.op} under a legacy setting isn't known here"
    name = literal_of(e.args[1])
    return None if str(name).upper() in _SETS and str(name).upper() != "UTF-32" else f"the character set {name} isn't known here"


def _encode(e: Expression) -> Values:
    name = _charset(e)

    def compute(text: str, *_: object) -> bytes:
        if name == "utf-8" or not text:
            return encoded(text)
        try:
            return _BIG + valid(text).encode("utf-16-be") if name == "utf-16" else valid(text).encode(name)
        except UnicodeEncodeError:
            raise _malformed("a text of a character set") from None

    return compute


def _decode(e: Expression) -> Values:
    name = _charset(e)

    def compute(data: bytes, *_: object) -> str:
        try:
            if name != "utf-16":
                return data.decode(name)
            return data[2:].decode("utf-16-le") if data[:2] == _LITTLE else data.removeprefix(_BIG).decode("utf-16-be")
        except UnicodeDecodeError:
            raise _malformed("bytes of a character set") from None

    return compute


# ---------------------------------------------------------------- what is UTF-8


def _is_valid(text: str) -> bool:
    return text.isascii() or not any("\udc80" <= c <= "\udcff" for c in text)


def _make_valid(text: str) -> str:
    return text if _is_valid(text) else encoded(text).decode("utf-8", "replace")


def _validate(text: str) -> str:
    if not _is_valid(text):
        raise _malformed("a text in UTF-8")
    return text


# ---------------------------------------------------------------- URLs


def _url_encode(text: str) -> str:
    return quote_plus(valid(text), safe="*").replace("~", "%7E")


def _url_decode(text: str, strictly: bool) -> str | None:
    out: list[str] = []
    for part in re.split("((?:%(?:..?)?)+)", valid(text).replace("+", " "), flags=re.DOTALL):
        if not part.startswith("%"):
            out.append(part)
            continue
        try:
            data = bytes.fromhex(part.replace("%", ""))
        except ValueError:
            data = b""
        if len(data) * 3 != len(part) or not part.isascii() or " " in part:
            if strictly:
                raise _malformed("an escaped URL")
            return None
        out.append(data.decode("utf-8", "replace"))
    return "".join(out)


# ---------------------------------------------------------------- Base32, Base64


def _from_base64(e: Expression) -> Values:
    """Java's MIME form: other characters are ignored, and nothing may follow the padding."""
    strictly = e.options["mode"] == "ansi"

    def compute(text: str) -> bytes:
        if strictly and not _is_base64(text):
            raise _malformed("a text in Base64")
        letters = "".join(_NOT_BASE64.split(text))
        body, _, after = letters.partition("=")
        rest = len(body) % 4
        padding = {0: False, 1: False, 2: after.startswith("="), 3: True}[rest] if "=" in letters else rest != 1
        if not padding or after.strip("=") or ("=" in letters and not _ends(text, rest)):
            raise _malformed("a text in Base64")
        return base64.b64decode(body + "=" * (-len(body) % 4))

    return compute


_LETTERS = ("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "abcdefghijklmnopqrstuvwxyz234567")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=]+")


def _ends(text: str, rest: int) -> bool:
    """Whether the end is valid: the two signs of a padding must be adjacent."""
    place = text.index("=")
    return rest == 3 or text[place + 1 : place + 2] == "="


def _is_base64(text: str) -> bool:
    packed = "".join(text.split()) if text.isascii() else text
    return re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?", packed) is not None


def _to_base32(data: bytes) -> str:
    return base64.b32encode(data).decode()


_BASE32 = {letter: place for place, pair in enumerate(zip(*_LETTERS, strict=True)) for letter in pair}


def _from_base32(text: str) -> bytes:
    """Other characters, all after the first padding, and incomplete bytes are ignored.

    An extra letter becomes a byte of its own, with bits of the letters before it.

    Source:  Base32 of Apache commons-codec, which Spark calls.
    """
    found = [_BASE32[c] for c in text.partition("=")[0] if c in _BASE32]
    number = 0
    for value in found:
        number = number << 5 | value
    count = len(found) * 5
    whole = (number >> count % 8).to_bytes(count // 8, "big")
    return whole + bytes([number >> 2 & 0xFF]) if len(found) % 8 == 1 else whole


# ---------------------------------------------------------------- bytes


def _pad_bytes(*, left: bool) -> Callable[[bytes, int, bytes], bytes]:
    def pad(data: bytes, length: int, filling: bytes) -> bytes:
        missing = length - len(data)
        if missing <= 0 or not filling:
            return data[: max(0, length)]
        padding = (filling * (missing // len(filling) + 1))[:missing]
        return padding + data if left else data + padding

    return pad


_DIGESTS = {"MD5": "md5", "SHA-1": "sha1", "SHA-224": "sha224", "SHA-256": "sha256", "SHA-384": "sha384", "SHA-512": "sha512"}


def _hmac(e: Expression) -> Values:
    digest = _DIGESTS[str(literal_of(e.args[2]))]

    def compute(key: bytes, message: bytes, _: str) -> bytes:
        if not key:
            raise _malformed("a key")
        return hmac.digest(key, message, digest)

    return compute


def _refuse_hmac(e: Expression) -> str | None:
    if reason := takes(_BYTES, _BYTES, STRING, literal=(2,))(e):
        return reason
    return None if literal_of(e.args[2]) in _DIGESTS else f"hmac by {literal_of(e.args[2])} isn't known here"


_BITMAP_BITS = 32_768


def _bit_position(value: int) -> int:
    return (value - 1 if value > 0 else -value) % _BITMAP_BITS


def _bucket_number(value: int) -> int:
    return 1 + (value - 1) // _BITMAP_BITS if value > 0 else -(-value // _BITMAP_BITS)


_OF_BYTES = takes(_BYTES)
_OF_TEXT = takes(STRING)
FUNCTIONS = (
    function("encode", strict(_encode), "Encode.encode", refuse=_refuse_charset),
    function("decode", strict(_decode), "StringDecode.decode", refuse=_refuse_charset),
    function("is_valid_utf8", plain(_is_valid), "UTF8String.isValid", refuse=_OF_TEXT),
    function("make_valid_utf8", plain(_make_valid), "UTF8String.makeValid", refuse=_OF_TEXT),
    function("validate_utf8", plain(_validate), "ExpressionImplUtils.validateUTF8String", refuse=_OF_TEXT),
    function(
        "try_validate_utf8",
        plain(lambda v: v if _is_valid(v) else None),
        "ExpressionImplUtils.tryValidateUTF8String",
        refuse=_OF_TEXT,
    ),
    function("url_encode", plain(_url_encode), "UrlCodec$.encode", refuse=_OF_TEXT),
    function("url_decode", plain(_url_decode), "UrlCodec$.decode", refuse=takes(STRING, _BOOLEAN)),
    function("unbase64", strict(_from_base64), "UnBase64", refuse=_OF_TEXT, reads=("strict",)),
    function("from_base32", plain(_from_base32), "UnBase32.decode", refuse=_OF_TEXT),
    function("to_base32", plain(_to_base32), "Base32.encode", refuse=_OF_BYTES),
    function("bytes_contain", plain(lambda a, b: b in a), "ByteArrayMethods.contains", refuse=_OF_BYTES),
    function("bytes_start", plain(lambda a, b: a.startswith(b)), "ByteArrayMethods.startsWith", refuse=_OF_BYTES),
    function("bytes_end", plain(lambda a, b: a.endswith(b)), "ByteArrayMethods.endsWith", refuse=_OF_BYTES),
    function("pad_bytes_left", plain(_pad_bytes(left=True)), "ByteArray.lpad", refuse=takes(_BYTES, {"integer"}, _BYTES)),
    function("pad_bytes_right", plain(_pad_bytes(left=False)), "ByteArray.rpad", refuse=takes(_BYTES, {"integer"}, _BYTES)),
    function("hmac", strict(_hmac), "ExpressionImplUtils.hmac", refuse=_refuse_hmac),
    function("bitmap_bit_position", plain(_bit_position), "BitmapExpressionUtils.bitmapBitPosition", refuse=takes({"long"})),
    function("bitmap_bucket_number", plain(_bucket_number), "BitmapExpressionUtils.bitmapBucketNumber", refuse=takes({"long"})),
    function(
        "bitmap_count", plain(lambda v: int.from_bytes(v, "big").bit_count()), "BitmapExpressionUtils.bitmapCount", refuse=_OF_BYTES
    ),
)
