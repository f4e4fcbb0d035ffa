"""Parts of a URL, by the rules of java.net.URI.

Source:  urlExpressions.scala, Spark 4.3; java.net.URI of JDK 17, RFC 2396.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from millpond.errors import RequestError
from millpond.scalar.function import STRING, Values, function, literal_of, strict, takes
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.functions import valid
from millpond.schema.definition.expression import Expression

_ESCAPED = "%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9_.!~*'()\-"
_PATH = re.compile(rf"(?:[{_UNRESERVED}:@&=+$,;/]|{_ESCAPED})*")
_ANY = re.compile(rf"(?:[{_UNRESERVED};/?:@&=+$,\[\]]|{_ESCAPED})*")
_AUTHORITY = re.compile(rf"(?:[{_UNRESERVED}$,;:@&=+]|{_ESCAPED})+")
_USER = re.compile(rf"(?:[{_UNRESERVED};:&=+$,]|{_ESCAPED})*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?"
# If there are several labels, the last begins with a letter.
_HOST = re.compile(rf"(?:{_LABEL}|(?:{_LABEL}\.)+[A-Za-z](?:[A-Za-z0-9\-]*[A-Za-z0-9])?)\.?")
_BYTE = r"(?:[01]?[0-9]{1,2}|2[0-4][0-9]|25[0-5])"
_ADDRESS = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")


class _Url(NamedTuple):
    scheme: str | None = None
    authority: str | None = None
    user: str | None = None
    host: str | None = None
    path: str | None = None
    query: str | None = None
    fragment: str | None = None


def _parse(text: str) -> _Url | None:
    """The parts of a URL; None if it isn't one.

    Raises:  VALUE_OUT_OF_RANGE for a kind that isn't known here.
    """
    if not valid(text).isascii() or "[" in text:
        raise RequestError(
            "VALUE_OUT_OF_RANGE", "Its expression parses a URL of a kind that isn't known here.", hint="Escape it in the job."
        )
    scheme = None
    first = re.search("[:/?#]", text)
    rest = text
    if first is not None and first[0] == ":":
        scheme, rest = text[: first.start()], text[first.end() :]
        if not _SCHEME.fullmatch(scheme):
            return None
    rest, mark, end = rest.partition("#")
    fragment = end if mark else None
    if fragment is not None and not _ANY.fullmatch(fragment):
        return None
    if scheme is not None and not rest.startswith("/"):
        return _Url(scheme=scheme, fragment=fragment) if rest and _ANY.fullmatch(rest) else None
    rest, mark, end = rest.partition("?")
    query = end if mark else None
    if query is not None and not _ANY.fullmatch(query):
        return None
    found = _Url(scheme=scheme, query=query, fragment=fragment, path=rest)
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        found = found._replace(path=slash + path)
        if authority:
            if not _AUTHORITY.fullmatch(authority):
                return None
            found = _with_server(found._replace(authority=authority), authority)
        elif not slash:
            return None
    return found if _PATH.fullmatch(found.path or "") else None


def _with_server(url: _Url, authority: str) -> _Url:
    user, mark, server = authority.rpartition("@")
    host, _, port = server.partition(":")
    is_host = _ADDRESS.fullmatch(host) or _HOST.fullmatch(host)
    if not is_host or not _USER.fullmatch(user) or not re.fullmatch("[0-9]{0,9}", port, re.ASCII):
        return url
    return url._replace(host=host, user=user if mark else None)


def _file(url: _Url) -> str | None:
    return url.path if url.query is None else f"{url.path}?{url.query}"


_PARTS: dict[str, Callable[[_Url], str | None]] = {
    "HOST": lambda u: u.host,
    "PATH": lambda u: u.path,
    "QUERY": lambda u: u.query,
    "REF": lambda u: u.fragment,
    "PROTOCOL": lambda u: u.scheme,
    "FILE": _file,
    "AUTHORITY": lambda u: u.authority,
    "USERINFO": lambda u: u.user,
}


def _parse_url(e: Expression) -> Values:
    part, strictly = str(literal_of(e.args[1])), e.options["mode"] == "ansi"
    take = _PARTS.get(part)
    key = re.compile(rf"(?:&|^){literal_of(e.args[2])}=([^&]*)") if len(e.args) == 3 else None

    def compute(text: str, *_: str) -> str | None:
        url = _parse(text)
        if url is None:
            if strictly:
                raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression parses a URL that is none.", hint="Use try_parse_url.")
            return None
        found = take(url) if take is not None else None
        if key is None or found is None:
            return found
        if part != "QUERY":
            return None
        member = key.search(found)
        return None if member is None else member[1]

    return compute


def _refuse(e: Expression) -> str | None:
    if reason := takes(STRING, literal=(1, 2))(e):
        return reason
    if any(literal_of(a) is None for a in e.args[1:]) or (len(e.args) == 3 and not re.fullmatch(r"\w+", literal_of(e.args[2]))):
        return "parse_url by such a key isn't known here"
    return None


FUNCTIONS = (function("parse_url", strict(_parse_url), "ParseUrlEvaluator.evaluate", refuse=_refuse, reads=("evaluator_mode",)),)
