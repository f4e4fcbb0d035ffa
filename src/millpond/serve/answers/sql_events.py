"""A subscription to a statement as server-sent events: all rows, and then what each batch changes.

    id: <batch>-<digest of the answer's rows>
    event: snapshot, then changes
    data: {"columns": […], "since_batch": null, "changes": [{"kind": "insert", "old": null, "new": {…}}], "jobs": […]}

A client that returns with an id in `Last-Event-ID` has the rows of that answer.  If the statement
still gives them, at that batch or at the newest one, the stream goes on with the next change.  If
not, it begins with a snapshot again, which replaces all that the client has.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from msgspec import structs
from starlette.responses import Response, StreamingResponse

from millpond.errors import MillpondError
from millpond.schema.values import encode_json
from millpond.serve.answers.events import ALIVE_SECONDS, RETRY, TICK_SECONDS, Batches, error_event
from millpond.serve.answers.sql import SqlCall, whole_answer
from millpond.serve.formats import EVENTS
from millpond.serve.waiting.waits import Room
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.subscribe import AnswerAt, NextBatch, Pause, Seen, SqlChanges, Steps, subscribe
from millpond.wire.questions import SubscribeSql
from millpond.wire.sql_changes import sql_changes_json

_PLACE = re.compile(r"(\d{1,18})-([0-9a-f]{32})")
# What a row and a value take as Python's, beside their bytes in Arrow.
_ROW_BYTES, _VALUE_BYTES = 300, 60
# The two answers that a subscription compares.
_ANSWERS = 2


class BatchWatch(Batches, Protocol):
    """Counts the batches of a table that came, and knows the newest."""

    @property
    def batch(self) -> int | None:
        """The newest that was seen; None if none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A request for a stream, with the means to answer it.

    call:       for its statement
    room:       what the answers of all subscriptions may take
    watch_of:   what tells that the table of a name has another batch
    check:      raises if the reader may no longer read the table of a name
    is_ending:  whether the server ends
    """

    call: SqlCall
    question: SubscribeSql
    room: Room
    watch_of: Callable[[str], BatchWatch]
    check: Callable[[str], None]
    is_ending: Callable[[], bool]


async def stream_sql(asked: Subscription) -> Response:
    """The stream of a subscription.

    Raises:  as `answer_sql`; TOO_MANY_STREAMS; INVALID_STATEMENT if the statement can't be
             subscribed to.
    """
    scope, patience = asked.call.request.scope, asked.call.patience
    scope["resources"].enter_context(patience.streams.taken(scope["asker"]))
    stream = _Stream(asked)
    scope["resources"].callback(stream.close)
    await stream.begin()
    headers = {"cache-control": "no-store", "content-type": EVENTS.content_type}
    return StreamingResponse(stream.events(), headers=headers)


class _Stream:
    def __init__(self, asked: Subscription) -> None:
        self._asked = asked
        by = asked.question.by
        self._steps: Steps = subscribe([] if by == [""] else by, _seen(asked.question.since))
        self._step: Any = next(self._steps)
        self._table = ""
        self._kept_bytes = 0

    async def begin(self) -> None:
        """Answer the statement, so that an error of it is one of the response."""
        while isinstance(self._step, AnswerAt):
            await self._answer(self._step)

    def close(self) -> None:
        """Give back the room of its answer."""
        self._steps.close()
        self._asked.room.keep(self._asker, self._kept_bytes, 0)
        self._kept_bytes = 0

    async def events(self) -> AsyncIterator[bytes]:
        """Events, and comments between them, until the server ends or the subscription fails."""
        yield RETRY
        try:
            while not self._asked.is_ending():
                match self._step:
                    case SqlChanges():
                        yield _event(self._step)
                        self._step = self._steps.send(None)
                    case AnswerAt():
                        self._asked.check(self._table)
                        await self._answer(self._step)
                    case NextBatch() | Pause():
                        async for comment in self._wait(self._step):
                            yield comment
                        self._step = self._steps.send(None)
        except MillpondError as error:
            yield error_event(error)

    async def _answer(self, step: AnswerAt) -> None:
        """Answer the statement for a step, and take the next one.  Raises as the subscription."""
        asked = self._asked
        question = structs.replace(asked.call.question, at=step.batch)
        try:
            answer = await whole_answer(replace(asked.call, question=question), self._asker)
            self._make_room(answer)
        except MillpondError as error:
            self._step = self._steps.throw(error)
            return
        if answer.reads:
            self._table = answer.reads[0].table
        self._step = self._steps.send(answer)

    def _make_room(self, answer: SqlAnswer) -> None:
        """Raises ANSWER_TOO_LARGE."""
        rows = len(answer)
        size = _ANSWERS * (answer.to_arrow().nbytes + rows * (_ROW_BYTES + _VALUE_BYTES * len(answer.columns)))
        self._asked.room.keep(self._asker, self._kept_bytes, size)
        self._kept_bytes = size

    async def _wait(self, step: NextBatch | Pause) -> AsyncIterator[bytes]:
        """Wait as a step says; a comment now and then.  Raises if the reader may no longer read."""
        now = time.monotonic()
        batch, ends, sent_at = (step.batch, None, now) if isinstance(step, NextBatch) else (None, now + step.seconds, now)
        watch = self._asked.watch_of(self._table)
        while not self._asked.is_ending():
            now = time.monotonic()
            if ends is not None and now >= ends:
                return
            if batch is not None and watch.batch is not None and watch.batch >= batch:
                return
            count = watch.count
            await watch.beyond(count, TICK_SECONDS)
            self._asked.check(self._table)
            if batch is not None and watch.count != count:  # also a job that was replaced: then it has fewer batches
                return
            if now - sent_at > ALIVE_SECONDS:
                yield b": alive\n\n"
                sent_at = now

    @property
    def _asker(self) -> str:
        asker: str = self._asked.call.request.scope["asker"]
        return asker


def _event(changes: SqlChanges) -> bytes:
    seen = changes.seen()
    kind = b"snapshot" if changes.since_batch is None else b"changes"
    data = encode_json(sql_changes_json(changes))
    return b"id: %d-%b\nevent: %b\ndata: %b\n\n" % (seen.batch, seen.digest.encode(), kind, data)


def _seen(place: str | None) -> Seen | None:
    found = _PLACE.fullmatch(place or "")
    return None if found is None else Seen(int(found[1]), found[2])
