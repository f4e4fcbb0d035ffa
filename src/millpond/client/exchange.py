"""Questions to a server and the meaning of its answers, without any I/O.

An exchange is a generator: it yields a `Request`, receives the `Reply`, and returns a result.  The
blocking and the asynchronous client are two loops around it (`transport`), so that they can't
differ.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from millpond.errors import CONDITIONS, PASSING, MillpondError, ReplicaError, StorageError
from millpond.schema.prepared import ready
from millpond.schema.values import Json, decode_json, encode_json, with_floats
from millpond.settings import ClientSettings

Result = TypeVar("Result")
Answer = TypeVar("Answer", bound=msgspec.Struct)
# Errors that may pass within a moment. For a bound, a read that took too long, or a job without a
# batch, the caller decides.
_PASSING = (PASSING - {"NO_COMMITTED_BATCH"}) | {
    "TOO_MANY_REQUESTS",
    "TOO_MANY_CONNECTIONS",
    "TOO_MANY_WAITS",
    "TOO_MANY_DOWNLOADS",
    "TOO_MANY_ANSWERS",
    "SERVER_UNAVAILABLE",
}
_GATEWAY = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request.

    path:          follows the server's address, percent-encoded
    wait_seconds:  how long the server itself may wait before it answers
    is_read:       whether it changes nothing, so that it may be repeated
    """

    method: str
    path: str
    body: bytes | None = None
    accept: str = "application/json"
    wait_seconds: float = 0.0
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: header names in lower case, the body whole and unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Exchange = Generator[Request, Reply, Result]


def get(path: str) -> Request:
    """A request without a body."""
    return Request(method="GET", path=path)


def post(
    path: str, body: msgspec.Struct, *, accept: str = "application/json", wait_seconds: float = 0.0, is_read: bool = True
) -> Request:
    """A request whose body is a question."""
    return Request(method="POST", path=path, body=encode_json(body), accept=accept, wait_seconds=wait_seconds, is_read=is_read)


def read_answer(reply: Reply, kind: type[Answer]) -> Answer:
    """A good reply, numbers of rows with all their digits.  Raises NOT_A_SERVER."""
    try:
        return msgspec.convert(decode_json(reply.body), ready(kind))
    except ValueError as wrong:  # also a ValidationError
        raise not_a_server(f"its answer can't be read: {wrong}") from None


def read_facts(reply: Reply) -> Json:
    """The JSON of a good reply that isn't an answer, with numbers as in Spark's files.

    Raises:  NOT_A_SERVER.
    """
    try:
        return with_floats(decode_json(reply.body))
    except ValueError:
        raise not_a_server("its answer isn't JSON") from None


def error_of(reply: Reply) -> MillpondError | None:
    """The error in a reply, of the class that the server raised; None if it is an answer."""
    if reply.status == 200:
        return None
    try:
        error = with_floats(decode_json(reply.body)["error"])
        condition, message, hint, context = error["condition"], error["message"], error["hint"], dict(error["context"])
    except (ValueError, KeyError, TypeError):
        if reply.status in _GATEWAY:
            return unavailable(f"a proxy before it answers {reply.status}")
        return not_a_server(f"it answers {reply.status} without an error of Millpond's")
    kind = CONDITIONS[condition].kind if condition in CONDITIONS else MillpondError
    return kind(condition, message, hint=hint, **{str(name): fact for name, fact in context.items()})


def may_pass(error: MillpondError) -> bool:
    """Whether the same question may be answered in a moment."""
    return error.condition in _PASSING


def unavailable(why: str) -> StorageError:
    """The server can't be reached."""
    return StorageError("SERVER_UNAVAILABLE", f"The server doesn't answer: {why}.", hint="Start it, or check the address.")


def closed() -> ReplicaError:
    """The caller has closed the client."""
    return ReplicaError("REPLICA_CLOSED", "The connection to the server was closed.", hint="Connect again.")


def not_a_server(why: str) -> StorageError:
    """Something answers that isn't a Millpond server."""
    return StorageError("NOT_A_SERVER", f"This isn't a Millpond server: {why}.", hint="Check the address, and proxies on the way.")


@dataclass(slots=True)
class Retries:
    """When to ask one question again."""

    settings: ClientSettings
    tried: int = field(default=0)

    def pause(self, error: MillpondError) -> float:
        """How long to wait before the next try.  Raises the error if there is none."""
        pause = self.next_pause()
        if pause is None or not may_pass(error):
            raise error
        wait: Any = error.context.get("retry_after_seconds")
        return min(float(wait), self.settings.last_pause_seconds) if isinstance(wait, (int, float)) else pause

    def next_pause(self) -> float | None:
        """How long to wait before the next try; None if there is none."""
        self.tried += 1
        settings = self.settings
        if self.tried >= settings.tries:
            return None
        pause: float = min(settings.last_pause_seconds, settings.first_pause_seconds * 2 ** (self.tried - 1))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret: so that many clients don't come back in step
