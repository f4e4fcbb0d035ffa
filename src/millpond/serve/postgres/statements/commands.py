"""What the server does for DECLARE, FETCH, MOVE, CLOSE, PREPARE, EXECUTE and COPY … TO STDOUT."""

from __future__ import annotations

from collections.abc import Callable

from millpond.serve.postgres import wire
from millpond.serve.postgres.errors import PgError
from millpond.serve.postgres.portals import Portal, Portals, Prepared
from millpond.serve.postgres.statements.copying import END
from millpond.serve.postgres.statements.frames import Close, Copy, Declare, Execute, Fetch, Prepare, read_command
from millpond.serve.postgres.statements.local import is_query
from millpond.serve.postgres.values import read_values


class Commands:
    """See the module.

    level:     how many savepoints there are
    is_inside: whether a transaction is open
    """

    def __init__(self, portals: Portals, level: Callable[[], int], is_inside: Callable[[], bool]) -> None:
        self._portals, self._level, self._is_inside = portals, level, is_inside

    def read(self, text: str, types: list[int], size_bytes: int) -> Prepared:
        """A statement, which may be one of those.  Raises PgError."""
        command = read_command(text)
        match command:
            case None:
                return Prepared(text, types, is_query(text), size_bytes=size_bytes)
            case Execute():
                return self._executed(command, size_bytes)
            case Declare() | Copy():
                return Prepared(command.query, types, False, command, size_bytes=size_bytes)
            case _:
                return Prepared(text, types, False, command, size_bytes=size_bytes)

    async def describe(self, prepared: Prepared, formats: list[int]) -> bytes:
        """The columns of the answer of such a statement.

        Raises:  PgError, and as `Run.begin`.
        """
        command = prepared.command
        if not isinstance(command, Fetch) or command.is_move or command.name not in self._portals.opened:
            return wire.NO_DATA
        return wire.row_description((await self._portals.begun(self._portals.portal(command.name))).columns, formats)

    async def do(self, asked: Portal, most: int, *, is_described: bool, is_block: bool) -> None:
        """Send the answer of such a statement.

        most:         rows that the client wants at a time, 0 for all
        is_described: whether its columns are sent, too
        is_block:     whether other statements came with it
        Raises:       PgError, and as `Run.begin` and `Run.take`.
        """
        portals = self._portals
        send = portals.client.send
        match asked.prepared.command:
            case Declare(name, query):
                if not (self._is_inside() or is_block):
                    raise PgError("25P01", "DECLARE CURSOR can only be used in transaction blocks", hint="Write BEGIN before it.")
                inner = Prepared(query, asked.prepared.types, True, head=asked.prepared.head, size_bytes=asked.prepared.size_bytes)
                cursor = Portal(inner, asked.values, asked.results, self._level(), size_bytes=asked.size_bytes)
                await portals.declare(name, cursor)
                send(wire.complete("DECLARE CURSOR"))
            case Fetch() as fetch:
                await self._fetch(fetch, asked.results, most, is_described=is_described)
            case Close(name):
                self._close(name)
            case Prepare(name, types, query):
                portals.check_new(name)
                prepared = Prepared(query, types, True, size_bytes=len(query.encode("utf-8", "replace")))
                await portals.describe(prepared)
                portals.add_statement(name, prepared)
                send(wire.complete("PREPARE"))
            case Copy(query, form):
                inside = Portal(Prepared(query, asked.prepared.types, True), asked.values, [])
                try:
                    head = await portals.begun(inside)
                    send(form.begin([name for name, _, _ in head.columns]))
                    count = await portals.take(inside, 0, form.lines)
                finally:
                    portals.end(inside)
                send(END + wire.complete(f"COPY {count}"))
        portals.client.counted(None)

    async def _fetch(self, fetch: Fetch, formats: list[int], most: int, *, is_described: bool) -> None:
        portals = self._portals
        cursor = portals.portal(fetch.name, "cursor")
        if most and not fetch.is_move:
            raise PgError("0A000", "the rows of FETCH come all at once", hint="Write how many in FETCH.")
        head = await portals.begun(cursor, None if fetch.is_move else formats)
        if is_described and not fetch.is_move:
            portals.client.send(wire.row_description(head.columns, formats))
        count = await portals.take(cursor, fetch.most, _nothing if fetch.is_move else None)
        portals.client.send(wire.complete(f"{'MOVE' if fetch.is_move else 'FETCH'} {count}"))

    def _close(self, name: str | None) -> None:
        opened = self._portals.opened
        if name is not None:
            self._portals.portal(name, "cursor")
        for each in [each for each in opened if each == name or (name is None and each)]:
            self._portals.end(opened.pop(each))
        self._portals.client.send(wire.complete("CLOSE CURSOR ALL" if name is None else "CLOSE CURSOR"))

    def _executed(self, command: Execute, size_bytes: int) -> Prepared:
        """The statement that EXECUTE names, with its values."""
        inner = self._portals.statement(command.name)
        if not inner.is_query:
            raise PgError("0A000", "EXECUTE is answered here for statements that read alone")
        types = inner.types if inner.head is None else inner.head.parameters
        if inner.head is not None and len(types) != len(command.values):
            raise PgError(
                "42601",
                f'wrong number of parameters for prepared statement "{command.name[:80]}"',
                hint=f"Expected {len(types)} parameters but got {len(command.values)}.",
            )
        given = [None if value is None else value.encode("utf-8", "surrogateescape") for value in command.values]
        values = read_values(given, [0] * len(given), types)
        return Prepared(inner.text, inner.types, True, values=values, head=inner.head, size_bytes=size_bytes + inner.size_bytes)


def _nothing(_: bytes) -> bytes:
    return b""
