"""Names of files: numbers in them (batches, versions, operators), and the URIs of places on a local disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

# 18 digits fit into 64 bits, also for the version, which is the batch plus one.
NUMBER = "0|[1-9][0-9]{0,17}"
"""pattern of a number as Spark writes it: without zeros in front"""
_NUMBER = re.compile(NUMBER)
_LOCAL = "file://"
# One letter would be a drive.
_SCHEME = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/")
# Characters with a meaning in URIs; all others stay as they are.
_ESCAPES = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})


def numbers(names: Iterable[str]) -> list[int]:
    """The numbers among names, ascending.  Other names aren't Spark's."""
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def scheme_of(place: str) -> str | None:
    """The scheme of a URI, as Hadoop takes it: letters:/… with one slash or more; None for a path."""
    found = _SCHEME.match(place)
    return found[1].lower() if found else None


def is_local_uri(text: str) -> bool:
    """Whether a text is the URI of a place on a local disk."""
    return text.startswith("file:")


def local_uri(path: str | os.PathLike[str]) -> str:
    """The URI of a path; `path_of` gives the same path again, for any name."""
    return _LOCAL + "/" + os.path.abspath(path).lstrip("/").translate(_ESCAPES)


def path_of(uri: str) -> str:
    """The absolute path of a local URI, its escapes read once.

    Shape:  file:///x, or file:/x, as Java writes it; a host, and text after ? or #, aren't part of
            the path.
    """
    path = re.split("[?#]", uri.partition(":")[2], maxsplit=1)[0]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    return os.path.abspath(unquote(path, errors="surrogateescape"))


def hadoop_uri(uri: str) -> str:
    """A place in the form of Hadoop's `Path`, which Spark takes: paths without escapes, and s3a for S3."""
    if is_local_uri(uri):
        return _LOCAL + path_of(uri)
    return uri.replace("s3://", "s3a://", 1) if uri.startswith("s3://") else uri


def path_of_hadoop(text: str) -> str:
    """A place that Hadoop's `Path` has written, for `open_storage`: see `hadoop_uri`."""
    return "/" + text.partition(":")[2].lstrip("/") if is_local_uri(text) else text


def last_name(uri: str) -> str:
    """What the place of a URI is called in its folder."""
    return os.path.basename(path_of(uri)) if is_local_uri(uri) else uri.rpartition("/")[2]
