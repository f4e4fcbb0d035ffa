"""All text output goes through here: names and values are untrusted, and terminals obey control characters.

On a terminal these are shown as escapes, in JSON as JSON's escapes.  In a pipe, stdout has all
characters unchanged.  Lines for people on stderr are escaped in a pipe too: people read logs later,
and a name with a line end would be a line of its own.
"""

from __future__ import annotations

import sys

import click

from millpond.schema.values import Json, encode_json


def say(text: str) -> None:
    """One line to stderr."""
    click.echo(visible(text), err=True)


def write_line(line: str) -> None:
    """One line to stdout; bytes that aren't UTF-8 stay unchanged, but not on a terminal."""
    if sys.stdout.isatty():
        line = "\t".join(map(visible, line.split("\t")))
    sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")


def write_bytes(piece: bytes) -> None:
    """A piece of lines to stdout."""
    if sys.stdout.isatty():
        piece = "\n".join(map(visible, piece.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n"))).encode()
    sys.stdout.buffer.write(piece)


def write_json(value: Json, *, err: bool = False) -> None:
    """One line of JSON to stdout or stderr."""
    line = encode_json(value).decode()
    stream = sys.stderr if err else sys.stdout
    if stream.isatty() and not line.isprintable():
        line = "".join(c if c.isprintable() else _json_escape(c) for c in line)
    if err:
        click.echo(line, err=True)
    else:
        write_line(line)


def visible(text: str) -> str:
    """The text with control characters, and bytes that aren't UTF-8, as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
