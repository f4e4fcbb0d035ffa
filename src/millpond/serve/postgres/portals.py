"""The prepared statements and portals of one connection; a cursor of DECLARE is a portal.

1. A portal begins when it is described or executed, a cursor when it is declared.
2. Between two reads its process waits for it.  If the answer has come whole, the process is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millpond.errors import MillpondError
from millpond.serve.access.tokens import Reader
from millpond.serve.postgres.errors import PgError
from millpond.serve.postgres.quick import Plan, QuickLookups
from millpond.serve.postgres.run import Run
from millpond.serve.postgres.statements.frames import Command
from millpond.serve.postgres.statements.local import Local
from millpond.serve.postgres.statements.settings import Settings
from millpond.serve.sql import messages as say

# What a value takes besides its bytes.
VALUE_BYTES = 8
_MOST_STATEMENTS, _MOST_PORTALS = 1000, 100
# Answers up to so many bytes may be unread without a place among the large ones.
_WHOLE_BYTES = 8 << 20
Show = Callable[[bytes], bytes]
"""from messages DataRow to what is sent for them"""


class Client(Protocol):
    """The connection."""

    reader: Reader

    def send(self, data: bytes, /) -> None: ...

    async def until_read(self) -> None:
        """Return when the client has read enough."""

    def run(self, text: str, values: list[str | None], wanted: say.Postgres, settings: Settings, /) -> Run:
        """A statement that hasn't begun.  Raises if the client may ask no more."""

    def counted(self, error: BaseException | None, /, tables: tuple[str, ...] = ()) -> None:
        """A statement has ended.

        tables:  that were read without a process, which counts for itself
        """

    def find_plan(self, text: str, types: list[int], /) -> Plan | None:
        """See `quick.QuickLookups.find`; None as well if the reader may not read the table.  Raises TOKEN_NEEDED."""

    def may_use(self, plan: Plan, /) -> bool:
        """Whether the reader still may read the table of a lookup.  Raises TOKEN_NEEDED."""

    def look_up(self, plan: Plan, values: list[str | None], formats: list[int], /) -> tuple[bytes, int, int] | None:
        """See `quick.QuickLookups.answer`.  Raises if the client may ask no more."""


@dataclass(slots=True)
class Prepared:
    """A statement with a name.

    types:      of parameters, 0 for those that the client doesn't say
    command:    what it is, if a process answers only what is inside
    values:     of EXECUTE, in place of parameters
    head:       of its answer, when it was described
    plan:       if it is known as a lookup of one key
    size_bytes: of its message
    """

    text: str
    types: list[int]
    is_query: bool
    command: Command | None = None
    values: list[str | None] | None = None
    head: say.PostgresHead | None = None
    plan: Plan | None = None
    size_bytes: int = 0


@dataclass(slots=True)
class Portal:
    """A statement with values.

    results:  the formats of columns
    level:    how many savepoints there were when it was made
    shown:    the head that the client has seen
    size_bytes: of its values here
    """

    prepared: Prepared
    values: list[str | None]
    results: list[int]
    level: int = 0
    shown: say.PostgresHead | None = None
    run: Run | None = None
    local: Local | None = None
    is_over: bool = False
    taken_rows: int = 0
    sent_bytes: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Portals:
    """See the module.

    process:    the number of the server's process
    max_bytes:  of statements, values and rows that a client may leave here
    """

    client: Client
    settings: Settings
    process: int
    max_bytes: int
    quick: QuickLookups
    running: Run | None = None
    prepared: dict[str, Prepared] = field(default_factory=dict)
    opened: dict[str, Portal] = field(default_factory=dict)
    _ended: list[Run] = field(default_factory=list)

    # ------------------------------------------------------------ statements

    def add_statement(self, name: str, prepared: Prepared) -> None:
        """Raises PgError if its name is taken, or there is no room."""
        self.check_new(name)
        self._check_room(prepared.size_bytes)
        self.prepared[name] = prepared

    def check_new(self, name: str) -> None:
        """Raise PgError if there can't be one more statement of this name."""
        if name and name in self.prepared:
            raise PgError("42P05", f'prepared statement "{name[:80]}" already exists')
        if len(self.prepared) >= _MOST_STATEMENTS:
            raise PgError(
                "53400", f"A connection may have {_MOST_STATEMENTS} prepared statements.", hint="Close some: DEALLOCATE ALL."
            )

    def statement(self, name: str) -> Prepared:
        """Raises PgError."""
        found = self.prepared.get(name)
        if found is None:
            raise PgError("26000", f'prepared statement "{name[:80]}" does not exist')
        return found

    def forget(self, name: str | None) -> None:
        """Forget a statement, or all of them.  Raises PgError."""
        if name is None:
            self.prepared.clear()
        elif self.prepared.pop(name, None) is None:
            raise PgError("26000", f'prepared statement "{name[:80]}" does not exist')

    async def describe(self, prepared: Prepared) -> say.PostgresHead:
        """The head of a statement's answer.  Raises as `Run.begin`."""
        if prepared.head is None:
            wanted = self._wanted(prepared.types, [], is_described=True)
            run = self.client.run(prepared.text, [], wanted, self.settings)
            try:
                self.running = run
                prepared.head = await run.begin()
                self.quick.note(prepared.text, prepared.types, prepared.head)
            finally:
                self.running = None
                await run.close()
        return prepared.head

    # ------------------------------------------------------------ portals

    def add_portal(self, name: str, portal: Portal) -> None:
        """Raises PgError if its name is taken, or there is no room."""
        self.check_free(name)
        self._check_room(portal.size_bytes)
        self.opened[name] = portal

    def check_free(self, name: str) -> None:
        """Raise PgError if there can't be one more portal of this name; the one without a name makes room."""
        if name in self.opened:
            if name:
                raise PgError("42P03", f'cursor "{name[:80]}" already exists')
            self.end(self.opened.pop(""))
        if len(self.opened) >= _MOST_PORTALS:
            raise PgError("53400", f"A connection may have {_MOST_PORTALS} portals.", hint="Close some.")

    def portal(self, name: str, kind: str = "portal") -> Portal:
        """Raises PgError."""
        found = self.opened.get(name)
        if found is None:
            raise PgError("34000", f'{kind} "{name[:80]}" does not exist')
        return found

    async def declare(self, name: str, portal: Portal) -> None:
        """Begin a cursor.  Raises as `Run.begin`, and as `add_portal`."""
        self.check_free(name)
        await self.begun(portal)
        run = portal.run
        assert run is not None
        try:
            self.running = run
            portal.size_bytes += await run.settle()
            self.note_batches(run)
            self.add_portal(name, portal)
        except (PgError, MillpondError):
            await run.close()
            raise
        finally:
            self.running = None

    async def begun(self, portal: Portal, formats: list[int] | None = None) -> say.PostgresHead:
        """The head of a portal's answer, which begins if it hasn't yet.

        formats:  of its rows, if they may be others than it was made with: then it begins anew
        Raises:   PgError; as `Run.begin`.
        """
        if formats is not None and _alike(formats) != _alike(portal.results):
            if portal.taken_rows:
                raise PgError("0A000", "the rows of a cursor have the format of the first ones")
            portal.results = formats
            if portal.run is not None:
                portal.shown = portal.run.head
                await portal.run.close()
                portal.run = None
        if portal.run is None:
            prepared = portal.prepared
            types = prepared.types if prepared.head is None else prepared.head.parameters
            wanted = self._wanted(types, portal.results, is_described=False)
            portal.run = self.client.run(prepared.text, portal.values, wanted, self.settings)
            self.running = portal.run
            try:
                self.quick.note(prepared.text, prepared.types, await portal.run.begin())
            except BaseException:
                portal.is_over = True  # it gives its place back now: a Sync may never come
                await portal.run.close()
                raise
            finally:
                self.running = None
        head = portal.run.head
        if head is None:
            raise PgError("55000", "the portal has failed before")
        known = portal.shown or portal.prepared.head
        if known is not None and [each[1] for each in known.columns] != [each[1] for each in head.columns]:
            raise PgError("0A000", "cached plan must not change result type", hint="Prepare the statement again.")
        return head

    async def take(self, portal: Portal, most: int, show: Show | None = None) -> int:
        """Send at most so many rows (0: all); afterwards the portal is over, or rows may be left.  How many they were.

        Raises:  PgError; as `Run.take`.
        """
        await self.begun(portal)
        run = portal.run
        assert run is not None
        self.running = run
        try:
            count = await self._send_rows(portal, run, most, show)
        except (PgError, MillpondError):
            portal.is_over, run.head = True, None
            await run.close()
            raise
        finally:
            self.running = None
        if portal.is_over:
            self.note_batches(run)
            await run.close()
        elif run.is_over:
            await run.give_back()
        return count

    async def _send_rows(self, portal: Portal, run: Run, most: int, show: Show | None) -> int:
        count, more = 0, not portal.is_over
        while more and not (most and count >= most):
            data, rows, more = await run.take(most - count if most else 0)
            count += rows
            portal.taken_rows += rows
            data = data if show is None else show(data)
            portal.sent_bytes += len(data)
            self.client.send(data)
            if portal.sent_bytes > _WHOLE_BYTES:
                run.count_as_large()
                await self.client.until_read()
        if most and count >= most and not portal.is_over:
            if not run.is_over:
                run.count_as_large()
        else:
            portal.is_over = True
        return count

    def end_from(self, level: int) -> None:
        """End the portals that were made after so many savepoints."""
        for name in [name for name, portal in self.opened.items() if portal.level >= level]:
            self.end(self.opened.pop(name))

    def lower(self, level: int) -> None:
        """Savepoints are released: so many are left."""
        for portal in self.opened.values():
            portal.level = min(portal.level, level)

    def end(self, portal: Portal) -> None:
        """End a portal; `give_back` gives its process back."""
        if portal.run is not None:
            self._ended.append(portal.run)
            portal.run = None
            portal.is_over = True

    @property
    def has_ended(self) -> bool:
        """Whether `give_back` has something to do."""
        return bool(self._ended)

    async def give_back(self) -> None:
        """Give back the processes of portals that have ended."""
        while self._ended:
            await self._ended.pop().close()

    # ------------------------------------------------------------ both

    def note_batches(self, run: Run) -> None:
        """Tell the client which batches a statement reads."""
        cuts = run.cuts
        if len(cuts) == 1:
            self.settings.note("millpond.batch", str(cuts[0].position.batch))
        elif cuts:
            self.settings.note("millpond.batch", ", ".join(f"{cut.job}={cut.position.batch}" for cut in cuts))

    def _wanted(self, types: Sequence[int], formats: list[int], *, is_described: bool) -> say.Postgres:
        return say.Postgres(list(types), formats, is_described, self.settings.of_session(self.process))

    def _check_room(self, more_bytes: int) -> None:
        """Raise PgError if so many bytes more are too many.  Portals hold statements that have been closed."""
        held = {id(each): each for each in (*self.prepared.values(), *(portal.prepared for portal in self.opened.values()))}
        texts = sum(each.size_bytes for each in held.values())
        values = sum(portal.size_bytes for portal in self.opened.values())
        if texts + values + more_bytes > self.max_bytes:
            raise PgError(
                "53200",
                f"A connection may leave {self.max_bytes:,} bytes of statements, values and rows here.",
                hint="Close some: DEALLOCATE ALL.",
            )


def _alike(formats: list[int]) -> list[int]:
    """The same formats in one form."""
    found = formats or [0]
    return found[:1] if len(set(found)) == 1 else found
