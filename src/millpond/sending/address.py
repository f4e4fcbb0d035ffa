"""A target's address and options.

Only the module of the target that is wanted is imported, since each needs a library of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from millpond.errors import RequestError, SetupError
from millpond.sending.target import Shape, Target


def open_target(to: str, shape: Shape, options: Mapping[str, str]) -> Target:
    """The target of an address, not opened yet.

    Raises:  INVALID_REQUEST, LIBRARY_MISSING.
    """
    url = urlsplit(to)
    if url.password is not None:
        raise _wrong(
            to.replace(url.password, "…"),
            "it has a password",
            "Name passwords in the file of --target-options, or as the target's own clients read them.",
        )
    match url.scheme:
        case "kafka":
            from millpond.sending.kafka import KafkaTarget

            asked, topic = _asked(url, to, "form"), url.path.strip("/")
            if not url.netloc or not topic or "/" in topic:
                raise _wrong(to, "it names no broker and topic", "Write kafka://HOST:PORT/TOPIC.")
            return KafkaTarget(url.netloc, topic, shape, form=asked.get("form", "compacted"), options=options)
        case "file":
            from millpond.sending.files import FileTarget

            asked = _asked(url, to, "format")
            return FileTarget(_path(url, to), shape, form=asked.get("format", "ndjson"))
        case "sqlite":
            from millpond.sending.sqlite import SqliteTarget

            asked = _asked(url, to, "table")
            return SqliteTarget(_path(url, to), shape, table=asked.get("table", shape.table))
        case "postgresql" | "postgres":
            from millpond.sending.postgres import PostgresTarget

            asked = dict(parse_qsl(url.query))
            table, schema = asked.pop("table", shape.table), asked.pop("schema", None)
            address = urlunsplit(url._replace(query=urlencode(asked)))
            return PostgresTarget(address, shape, table=table, schema=schema, options=options)
        case "http" | "https":
            from millpond.sending.webhook import WebhookTarget

            return WebhookTarget(to, shape, options=options)
        case "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss" | "azure":
            raise _wrong(
                to,
                "files go to a disk of this machine, and not to a bucket",
                "Write file:///FOLDER, and let another program copy the files whose names don't begin with a dot.",
            )
    raise _wrong(to, "it has no scheme that is known", "Begin it with kafka://, file://, postgresql://, sqlite:// or https://.")


def read_options(file: Path) -> dict[str, str]:
    """The options of a target from a file of lines `name=value`, as Kafka's clients have them.

    Raises:  FILE_MISSING, INVALID_REQUEST.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError("FILE_MISSING", f"{file} can't be read: {error}.", hint="Correct --target-options.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise RequestError(
                "INVALID_REQUEST", f"Line {number} of {file} isn't an option.", hint="Write name=value on each line."
            )
        found[name.strip()] = value.strip()
    return found


def _asked(url: SplitResult, to: str, *known: str) -> dict[str, str]:
    asked = dict(parse_qsl(url.query))
    if unknown := asked.keys() - set(known):
        raise _wrong(to, f"it has an unknown option {min(unknown)!r:.40}", f"Known are: {', '.join(known)}.")
    return asked


def _path(url: SplitResult, to: str) -> Path:
    if url.netloc not in ("", "localhost") or not url.path.strip("/"):
        raise _wrong(to, "it names no path of this machine", f"Write {url.scheme}:///PATH, with three slashes.")
    return Path(unquote(url.path))


def _wrong(to: str, what: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The target {to!r:.200} can't be used: {what}.", hint=hint)
