"""The console's files as answers: read once, packed once, with headers that forbid all else.

They have the same for everybody, and nothing of the server's.  All that a page shows comes from the
other routes, with the token that the reader has typed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millpond.errors import RequestError
from millpond.serve.formats import HTML, JAVASCRIPT, JSON, STYLES, SVG, Format, choose_format

_FOLDER = Path(__file__).parent
_INDEX = "index.html"
_FORMS = {".html": HTML, ".js": JAVASCRIPT, ".css": STYLES, ".svg": SVG}
# What a script could load, run or be shown in, were one smuggled in after all: nothing but these files.
_CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
    "vary": "accept, accept-encoding",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that ships with the server.

    packed:  the same as gzip
    """

    form: Format
    content: bytes
    packed: bytes
    etag: str


def _read() -> Iterator[tuple[str, StaticFile]]:
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _FORMS:
            content = path.read_bytes()
            pack = zlib.compressobj(9, zlib.DEFLATED, 31)
            packed = pack.compress(content) + pack.flush()
            yield path.name, StaticFile(_FORMS[path.suffix], content, packed, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


FILES = dict(_read())
"""The files by name, whatever folder they are in."""
PAGE = FILES.pop(_INDEX)


def is_page(path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is a browser's for the page at the root."""
    if path != "/":
        return False
    try:
        return choose_format(headers.get(b"accept", b"").decode("latin-1"), (JSON, HTML)) is HTML
    except RequestError:
        return False
