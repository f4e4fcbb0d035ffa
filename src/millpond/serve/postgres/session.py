"""The statements and portals of one connection, by the simple and the extended protocol.

1. After an error, messages of the extended protocol are skipped until Sync.
2. Outside of a transaction, Sync ends all portals; inside, its end does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from millpond.errors import MillpondError
from millpond.serve.postgres import wire
from millpond.serve.postgres.errors import PgError, error_message
from millpond.serve.postgres.portals import VALUE_BYTES, Client, Portal, Portals, Prepared
from millpond.serve.postgres.quick import Plan, QuickLookups
from millpond.serve.postgres.run import Run
from millpond.serve.postgres.statements.commands import Commands
from millpond.serve.postgres.statements.frames import Declare
from millpond.serve.postgres.statements.local import Transactions
from millpond.serve.postgres.statements.settings import REPORTED, Settings
from millpond.serve.postgres.statements.words import split_statements
from millpond.serve.postgres.values import read_values
from millpond.serve.sql import messages as say

_TEXT_OID = 25
# Of values that are answered with all that comes with them.
_MOST_ONCE_BYTES = 4000
_ONE, _NONE, _IDLE = wire.complete("SELECT 1"), wire.complete("SELECT 0"), wire.ready(b"I")
Reply = bytes | Awaitable[None]


@dataclass(slots=True)
class Session:
    """See the module.

    process:    the number of the server's process
    max_bytes:  of statements and values that a client may leave here
    """

    client: Client
    settings: Settings
    process: int
    max_bytes: int
    quick: QuickLookups
    _is_skipping: bool = False
    _reported: dict[str, str] = field(default_factory=dict)
    _portals: Portals = field(init=False)
    _transactions: Transactions = field(init=False)
    _commands: Commands = field(init=False)

    def __post_init__(self) -> None:
        self._portals = Portals(self.client, self.settings, self.process, self.max_bytes, self.quick)
        self._transactions = Transactions(self.settings, self._portals.forget, self._portals.end_from, self._portals.lower)
        self._commands = Commands(self._portals, lambda: self._transactions.level, lambda: self._transactions.status != b"I")

    @property
    def running(self) -> Run | None:
        """The statement that a process answers now."""
        return self._portals.running

    # ------------------------------------------------------------ messages

    def begin(self) -> bytes:
        """The settings that the server names to a client at first."""
        return self._changes()

    def answer(self, letter: bytes, body: bytes) -> Reply:
        """The reply to a message, or what makes it.  Raises BrokenProtocol."""
        if letter == b"S":
            return self._sync()
        if self._is_skipping:
            return b""
        known = _MESSAGES.get(letter)
        if known is None:
            raise wire.BrokenProtocol(f"invalid frontend message type {letter[0]}")
        try:
            return known(self, body)
        except (PgError, MillpondError) as error:
            return self._failed(error)

    def answer_once(self, body: bytes, *, is_described: bool) -> bytes | None:
        """The reply to Bind, Describe, Execute and Sync of a lookup; None if each must be answered by itself.

        body:  of Bind
        """
        portals = self._portals
        if self._is_skipping or portals.opened or portals.has_ended or self._transactions.status != b"I" or not self._is_plain():
            return None
        try:
            bound = wire.read_bind(body)
            prepared = portals.prepared.get(bound.statement)
            if prepared is None or prepared.values is not None or bound.portal or len(body) > _MOST_ONCE_BYTES:
                return None
            plan = self._plan_of(prepared)
            if plan is None or len(bound.values) != len(plan.head.parameters):
                return None
            values = read_values(bound.values, bound.formats, (prepared.head or plan.head).parameters)
            found = self.client.look_up(plan, values, bound.results)
        except (wire.BrokenProtocol, PgError, MillpondError):
            return None
        if found is None:
            return None
        rows, count, batch = found
        shown = str(batch)
        self.settings.note("millpond.batch", shown)
        self.client.counted(None, (plan.lookup.table,))
        # Nothing else has changed since the Sync before.
        ready = _IDLE if self._reported.get("millpond.batch") == shown else self._ready()
        head = plan.described(bound.results) if is_described else b""
        return b"".join([wire.BIND_COMPLETE, head, rows, _ONE if count else _NONE, ready])

    async def close(self) -> None:
        """Give back all processes."""
        self._portals.end_from(0)
        await self._portals.give_back()

    def _failed(self, error: PgError | MillpondError) -> bytes:
        self._is_skipping = True
        self._transactions.fail()
        self.client.counted(error)
        return error_message(error)

    def _sync(self) -> Reply:
        self._is_skipping = False
        if self._transactions.status == b"I" and self._portals.opened:
            self._portals.end_from(0)
        if self._portals.has_ended:
            return self._after(self._ready())
        return self._ready()

    async def _after(self, data: bytes) -> None:
        await self._portals.give_back()
        self.client.send(data)

    def _ready(self) -> bytes:
        return self._changes() + wire.ready(self._transactions.status)

    def _changes(self) -> bytes:
        out = []
        for name in REPORTED:
            value = self.settings[name]
            if self._reported.get(name) != value:
                self._reported[name] = value
                out.append(wire.parameter_status(name, value))
        return b"".join(out)

    # ------------------------------------------------------------ simple

    def _query(self, body: bytes) -> Reply:
        rest = wire.Body(body)
        text = rest.text()
        rest.end()
        return self._simple(text)

    async def _simple(self, text: str) -> None:
        send, portal = self.client.send, None
        if "" in self._portals.opened:
            self._portals.end(self._portals.opened.pop(""))
            await self._portals.give_back()
        try:
            statements = split_statements(_plain(text))
            if not statements:
                send(wire.EMPTY_QUERY)
            for each in statements:
                self._transactions.check(each)
                prepared = self._commands.read(each, [], len(each))
                portal = Portal(prepared, prepared.values or [], [])
                if prepared.command is not None:
                    await self._commands.do(portal, 0, is_described=True, is_block=len(statements) > 1)
                    continue
                if not prepared.is_query:
                    send(self._execute_local(portal, 0, is_described=True))
                    continue
                send(await self._describe_portal(portal))
                await self._execute(portal, 0)
        except (PgError, MillpondError) as error:
            send(self._failed(error))
        self._is_skipping = False
        if portal is not None:
            self._portals.end(portal)
        if self._transactions.status == b"I":
            self._portals.end_from(0)
        await self._portals.give_back()
        send(self._ready())

    # ------------------------------------------------------------ extended

    def _parse(self, body: bytes) -> Reply:
        name, text, types = wire.read_parse(body)
        plan = self.client.find_plan(text, types)
        statements = [text] if plan is not None else split_statements(_plain(text))
        if len(statements) > 1:
            raise PgError("42601", "cannot insert multiple commands into a prepared statement")
        self._portals.check_new(name)
        found = statements[0] if statements else ""
        if found:
            self._transactions.check(found)
        if plan is not None or not found:
            prepared = Prepared(found, types, plan is not None, plan=plan, size_bytes=len(body))
        else:
            prepared = self._commands.read(found, types, len(body))
        self._portals.add_statement(name, prepared)
        return wire.PARSE_COMPLETE

    def _bind(self, body: bytes) -> Reply:
        bound = wire.read_bind(body)
        prepared = self._portals.statement(bound.statement)
        if prepared.text:
            self._transactions.check(prepared.text)
        self._portals.check_free(bound.portal)
        plan = self._plan_of(prepared)
        known = prepared.head or (None if plan is None else plan.head)
        types = prepared.types if known is None else known.parameters
        needed = 0 if prepared.values is not None else None if prepared.head is None else len(types)
        if needed is not None and len(bound.values) != needed:
            raise PgError("08P01", f"bind message supplies {len(bound.values)} parameters, but the statement requires {needed}")
        values = read_values(bound.values, bound.formats, types) if prepared.values is None else prepared.values
        size_bytes = len(body) + VALUE_BYTES * (len(bound.values) + len(bound.results))
        made = Portal(prepared, values, bound.results, self._transactions.level, size_bytes=size_bytes)
        self._portals.add_portal(bound.portal, made)
        return wire.BIND_COMPLETE

    def _plan_of(self, prepared: Prepared) -> Plan | None:
        if prepared.plan is None and prepared.is_query:
            prepared.plan = self.client.find_plan(prepared.text, prepared.types)
        return prepared.plan

    def _describe(self, body: bytes) -> Reply:
        kind, name = wire.read_named(body)
        if kind == b"P":
            portal = self._portals.portal(name)
            if portal.prepared.command is not None:
                return self._send_of(self._commands.describe(portal.prepared, portal.results))
            if not portal.prepared.is_query:
                return self._describe_local(portal.prepared)
            plan = portal.prepared.plan
            if plan is not None and portal.run is None and self._is_plain() and self.client.may_use(plan):
                portal.shown = plan.head
                return _columns(portal.shown, portal.results)
            return self._send_of(self._describe_portal(portal))
        prepared = self._portals.statement(name)
        if prepared.is_query and prepared.head is not None:
            return _description(prepared)
        if prepared.is_query or prepared.command is not None:
            return self._send_of(self._describe_statement(prepared))
        return wire.parameter_description([]) + self._describe_local(prepared)

    def _execute_message(self, body: bytes) -> Reply:
        rest = wire.Body(body)
        name, most = rest.text(), rest.int4()
        rest.end()
        portal = self._portals.portal(name)
        if not portal.prepared.text:
            return wire.EMPTY_QUERY
        self._transactions.check(portal.prepared.text)
        if portal.prepared.command is not None:
            return self._guarded(self._commands.do(portal, max(0, most), is_described=False, is_block=False))
        if not portal.prepared.is_query:
            return self._execute_local(portal, max(0, most), is_described=False)
        return self._look_up(portal, most) or self._guarded(self._execute(portal, max(0, most)))

    def _is_plain(self) -> bool:
        """Whether statements read the newest batch, whatever it is."""
        settings = self.settings
        return settings.at is None and settings.bounds is None

    def _look_up(self, portal: Portal, most: int) -> bytes | None:
        """The answer of a lookup; None if a process must answer."""
        plan = portal.prepared.plan
        if plan is None or most > 0 or portal.run is not None or portal.is_over or not self._is_plain():
            return None
        found = self.client.look_up(plan, portal.values, portal.results)
        if found is None:
            return None
        rows, count, batch = found
        portal.is_over = True
        self.settings.note("millpond.batch", str(batch))
        self.client.counted(None, (plan.lookup.table,))
        return rows + (_ONE if count else _NONE)

    def _close(self, body: bytes) -> Reply:
        kind, name = wire.read_named(body)
        if kind == b"S":
            self._portals.prepared.pop(name, None)
        elif (portal := self._portals.opened.pop(name, None)) is not None:
            self._portals.end(portal)
        return wire.CLOSE_COMPLETE

    def _flush(self, _: bytes) -> Reply:
        return b""

    def _copy(self, _: bytes) -> Reply:
        return b""  # of a COPY that failed: ignored, as PostgreSQL does

    def _call(self, _: bytes) -> Reply:
        raise PgError("0A000", "function calls are not answered here", hint="Write a SELECT.")

    async def _send_of(self, making: Awaitable[bytes]) -> None:
        try:
            data = await making
        except (PgError, MillpondError) as error:
            data = self._failed(error)
        self.client.send(data)

    async def _guarded(self, doing: Awaitable[None]) -> None:
        try:
            await doing
        except (PgError, MillpondError) as error:
            self.client.send(self._failed(error))

    # ------------------------------------------------------------ parts

    async def _describe_statement(self, prepared: Prepared) -> bytes:
        self._transactions.check(prepared.text)
        if prepared.is_query:
            await self._portals.describe(prepared)
            return _description(prepared)
        types = (await self._portals.describe(prepared)).parameters if isinstance(prepared.command, Declare) else []
        return wire.parameter_description(types) + await self._commands.describe(prepared, [])

    async def _describe_portal(self, portal: Portal) -> bytes:
        return _columns(await self._portals.begun(portal), portal.results)

    async def _execute(self, portal: Portal, most: int) -> None:
        head = await self._portals.begun(portal)
        count = await self._portals.take(portal, most)
        if not portal.is_over:
            self.client.send(wire.SUSPENDED)
            return
        is_plan = [name for name, _, _ in head.columns] == ["QUERY PLAN"]
        self.client.counted(None)
        self.client.send(wire.complete("EXPLAIN" if is_plan else f"SELECT {count}"))

    def _execute_local(self, portal: Portal, most: int, *, is_described: bool) -> bytes:
        if portal.local is None:
            portal.local = self._transactions.answer(portal.prepared.text)
        local = portal.local
        rows = local.rows[: most or len(local.rows)]
        del local.rows[: len(rows)]
        out = [*local.notices]
        local.notices = []
        if is_described and local.columns:
            out.append(_shown(local.columns))
        out += [wire.data_row(row) for row in rows]
        self.client.counted(None)
        return b"".join([*out, wire.SUSPENDED if local.rows else wire.complete(local.tag)])

    def _describe_local(self, prepared: Prepared) -> bytes:
        # Only SHOW has columns, and it changes nothing.
        if prepared.text.split(None, 1)[:1] and prepared.text.split(None, 1)[0].lower() == "show":
            return _shown(self._transactions.answer(prepared.text).columns)
        return wire.NO_DATA


_MESSAGES: dict[bytes, Callable[[Session, bytes], Reply]] = {
    b"Q": Session._query,
    b"P": Session._parse,
    b"B": Session._bind,
    b"D": Session._describe,
    b"E": Session._execute_message,
    b"C": Session._close,
    b"H": Session._flush,
    b"F": Session._call,
    b"d": Session._copy,
    b"c": Session._copy,
    b"f": Session._copy,
}


def _plain(text: str) -> str:
    """The text, if it is UTF-8.  Raises PgError."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PgError("22021", 'invalid byte sequence for encoding "UTF8"') from None
    return text


def _description(prepared: Prepared) -> bytes:
    """Of a statement that has been described."""
    head = prepared.head
    assert head is not None
    return wire.parameter_description([] if prepared.values is not None else head.parameters) + _columns(head, [])


def _columns(head: say.PostgresHead, formats: list[int]) -> bytes:
    return wire.row_description(head.columns, formats)


def _shown(columns: Iterable[str]) -> bytes:
    return wire.row_description([(name, _TEXT_OID, -1) for name in columns], [])
