"""The answer of a statement, and what each further batch changes in it.

1. Answer the statement at the newest batch: its rows are the first changes, all inserted.
2. Wait for the next batch.
3. Answer the statement at each batch since, where history is kept; else at the newest one.
4. Compare each answer with the one before it, by the columns that name a row.

So each change is what a recomputation of the two batches shows, also after a job was rewound.  The
steps are a generator, of questions and their answers, since a pond waits and a client may not.

A subscriber that comes back names the last answer it has seen: its batch, and a digest of its rows.
If the statement still gives exactly these rows at that batch, or at the newest one, the changes go
on from there; if not, all rows come again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from millpond.errors import MillpondError, RequestError
from millpond.tables.answer import Answer, Cut
from millpond.tables.sql.answer import SqlAnswer

_WAIT_SECONDS = 10.0
# Where a wait ends at once, since the job is stopped.
_PAUSE_SECONDS = 1.0
# More batches than this are passed over at a time: the newest is what counts.
_MOST_BATCHES = 100
_PASSED_OVER = frozenset({"HISTORY_GONE", "NOT_UP_TO_BOUND"})
_WAITED_FOR = frozenset({"NOT_UP_TO_BOUND", "REPLICA_BUILDING", "JOB_REPLACED", "NO_COMMITTED_BATCH", "NO_COMMON_BATCH"})
SqlKind = Literal["insert", "update", "delete"]


class SqlChange(msgspec.Struct, frozen=True, kw_only=True):
    """One row's change: the row before and after, by column name; None if there was none."""

    kind: SqlKind
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class SqlChanges(list[SqlChange], Answer):
    """What one batch changed in the answer of a statement.

    answer:       after it
    since_batch:  the batch of the answer before; None for the first one
    """

    def __init__(self, changes: Iterable[SqlChange], answer: SqlAnswer, cut: Cut, since_batch: int | None) -> None:
        super().__init__(changes)
        self.answer, self.cut, self.since_batch = answer, cut, since_batch

    def seen(self) -> Seen:
        """The answer after them, by which a subscription may go on."""
        return Seen(int(self.cut.position.batch), _digest(self.answer.rows()))


class Seen(NamedTuple):
    """An answer that a subscriber has seen: its batch, and a digest of its rows."""

    batch: int
    digest: str


@dataclass(frozen=True, slots=True)
class AnswerAt:
    """Answer the statement at a batch; None for the newest."""

    batch: int | None


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Wait until the job of a table has a batch, at most so many seconds.  Raises NOT_UP_TO_BOUND."""

    table: str
    batch: int
    seconds: float = _WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


Step = AnswerAt | NextBatch | Pause | SqlChanges
Steps = Generator[Step, Any, None]


def subscribe(key: Sequence[str] | None, seen: Seen | None = None) -> Steps:
    """The steps; a step that is SqlChanges is a result.

    key:     the columns that name a row: a change of another column is an update.  None: all
             columns, so that rows only come and go
    seen:    go on after this answer, if it can be found again; None or else begin with all rows
    Raises:  INVALID_STATEMENT if the statement reads more than one table, or the columns don't name
             one row.
    """
    answer = yield AnswerAt(None)  # 1
    again = (yield from _found_again(seen, answer)) if seen is not None else None
    answer = answer if again is None else again  # one without rows is false
    table, cut = _read(answer)
    rows = _by_key(answer, key)
    if again is None:
        yield SqlChanges([SqlChange(kind="insert", old=None, new=row) for row in rows.values()], answer, cut, None)
    shown = int(cut.position.batch)
    while True:
        try:
            yield NextBatch(table, shown + 1)  # 2
        except MillpondError as error:
            if error.condition not in _WAITED_FOR:
                raise
            yield Pause(_PAUSE_SECONDS)
        try:
            newest = yield AnswerAt(None)  # 3
        except MillpondError as error:
            if error.condition not in _WAITED_FOR:
                raise
            continue
        if int(_read(newest)[1].position.batch) == shown:
            yield Pause(_PAUSE_SECONDS)
            continue
        between = range(shown + 1, int(_read(newest)[1].position.batch))
        for batch in between if len(between) <= _MOST_BATCHES else ():
            try:
                answer = yield AnswerAt(batch)
            except MillpondError as error:
                if error.condition not in _PASSED_OVER:
                    raise
                continue
            rows, shown = yield from _compared(answer, rows, shown, key)
        rows, shown = yield from _compared(newest, rows, shown, key)


Rows = dict[str, dict[str, Any]]


def _compared(answer: SqlAnswer, before: Rows, shown: int, key: Sequence[str] | None) -> Generator[Step, Any, tuple[Rows, int]]:
    """Yield what differs, if anything does; returns the rows and their batch."""  # 4
    rows, cut = _by_key(answer, key), _read(answer)[1]
    changes: list[SqlChange] = []
    for name, row in rows.items():
        old = before.get(name)
        if old is None:
            changes.append(SqlChange(kind="insert", old=None, new=row))
        elif repr(old) != repr(row):  # NaN equals NaN
            changes.append(SqlChange(kind="update", old=old, new=row))
    changes += [SqlChange(kind="delete", old=old, new=None) for name, old in before.items() if name not in rows]
    if changes:
        yield SqlChanges(changes, answer, cut, shown)
    return rows, int(cut.position.batch)


def _found_again(seen: Seen, newest: SqlAnswer) -> Generator[Step, Any, SqlAnswer | None]:
    """The answer that was seen, at its batch or at the newest one."""
    batch = int(_read(newest)[1].position.batch)
    if seen.batch < batch:
        try:
            answer: SqlAnswer = yield AnswerAt(seen.batch)
        except MillpondError as error:
            if error.condition not in _PASSED_OVER:
                raise
        else:
            if _digest(answer.rows()) == seen.digest:
                return answer
    return newest if _digest(newest.rows()) == seen.digest else None


def _digest(rows: Iterable[dict[str, Any]]) -> str:
    """Of rows in any order."""
    whole = hashlib.blake2b(digest_size=16)
    for each in sorted(hashlib.blake2b(repr(row).encode("utf-8", "surrogateescape"), digest_size=16).digest() for row in rows):
        whole.update(each)
    return whole.hexdigest()


def _read(answer: SqlAnswer) -> tuple[str, Cut]:
    """The table that a statement has read, and its cut."""
    tables = {read.table for read in answer.reads}
    if len(tables) != 1 or len(answer.cuts) != 1 or answer.is_plan:
        raise RequestError(
            "INVALID_STATEMENT",
            f"A subscription is to a SELECT from one table, and this one reads {len(tables)}.",
            hint="Name one table, without AT.",
        )
    return tables.pop(), answer.cuts[0]


def _by_key(answer: SqlAnswer, key: Sequence[str] | None) -> Rows:
    """The rows by what names them."""
    out: Rows = {}
    equal = Counter[str]()
    missing = [name for name in key or () if name not in answer.columns]
    if missing:
        raise RequestError(
            "INVALID_STATEMENT",
            f"The answer has no column {missing[0]}.",
            hint="Name columns of the SELECT list.",
            column=missing[0],
        )
    for row in answer.rows():
        name = repr(tuple(row.items()) if key is None else [row[column] for column in key])
        if key is None:  # equal rows, one by one
            equal[name] += 1
            name = f"{name} {equal[name]}"
        if name in out:
            raise RequestError(
                "INVALID_STATEMENT",
                f"Two rows of the answer have the same {', '.join(key or ())}.",
                hint="Name columns that name one row: those of GROUP BY, or the table's key.",
            )
        out[name] = row
    return out


def run_steps(steps: Steps, do: Callable[[Step], Any]) -> Iterator[SqlChanges]:
    """The results of the steps.

    do:  does what a step says, and returns what came of it
    """
    step = next(steps)
    while True:
        if isinstance(step, SqlChanges):
            yield step
            step = steps.send(None)
            continue
        try:
            found = do(step)
        except MillpondError as error:
            step = steps.throw(error)
        else:
            step = steps.send(found)


async def run_steps_awaited(steps: Steps, do: Callable[[Step], Awaitable[Any]]) -> AsyncIterator[SqlChanges]:
    """The same on an event loop."""
    step = next(steps)
    while True:
        if isinstance(step, SqlChanges):
            yield step
            step = steps.send(None)
            continue
        try:
            found = await do(step)
        except MillpondError as error:
            step = steps.throw(error)
        else:
            step = steps.send(found)
