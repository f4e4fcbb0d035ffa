"""GET below the other commands: a row from its stored bytes.

1. One call of compiled code answers all plain commands that a connection has sent, if it can read
   the table of the one before (`Lookups.compiled`).  All are of one batch.
2. Of the others, all that the event loop finds at a time share one view, as in `serve.hot`, which
   says why.
3. What isn't plain is left to the other commands: rows that expire, an error, NULL in a key of one
   text.

A test compares all three.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_to_bytes

from millpond.errors import MillpondError
from millpond.native.lookup import TableLookup
from millpond.replica.keys.codec import text_key
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.app import HttpDoor, check_reader
from millpond.serve.hot.row_json import RowWriter, RowWriters
from millpond.serve.redis.commands import Client
from millpond.serve.redis.keyspace import NULL, RedisKeys
from millpond.serve.redis.wire import Commands, encode
from millpond.tables.scan.raw_lookup import Lookups
from millpond.tables.table import Table

# What follows the row in what `RowWriter` writes.
_AFTER = b'],"changed":['
_NO_ROW = {protocol: encode(None, protocol) for protocol in (2, 3)}


class NotPlain(Exception):
    """The command isn't one that can be answered so."""


class _Plan:
    """How to read the keys of one table, and how to write its rows."""

    def __init__(self, name: str, table: Table) -> None:
        definition = table.definition
        self.name, self.definition = name, definition
        self.keys = RedisKeys(name, definition)
        self.reader = table.key_reader
        self.is_text = [c.type.kind for c in definition.key] == ["string"] and self.reader.columns is not None
        self.writers = RowWriters()


class QuickRows:
    """Answers GET for a door, in its event loop."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._plans: dict[str, _Plan] = {}
        self._moments: dict[bytes, tuple[Lookups, RowWriter, _Plan]] = {}
        # The table that compiled code read last: its name, the beginning of its keys.
        self._last: tuple[str, bytes, Table, TableLookup] | None = None

    def get_many(self, reader: Reader, commands: Commands, protocol: int) -> tuple[bytes, int, str] | None:
        """The replies to the next commands, their number, and the table that they read.

        None if the next one isn't plain, or nobody knows yet.

        The commands are taken and counted: without a limit of requests, counting can't refuse one.
        """
        last, pending, ponds = self._last, commands.pending(), self._door.ponds
        if last is None or pending is None or self._door.access.has_rates:
            return None
        name, begin, table, lookup = last
        try:
            if reader is not EVERYBODY:
                check_reader(ponds, reader, name)
            if ponds[name] is not table:
                return None
        except MillpondError:
            return None
        found = lookup.redis(*pending, begin, _NO_ROW[protocol])
        if found is None or not found[2]:
            return None
        commands.skip(found[1])
        return found[0], found[2], name

    def get(self, client: Client, key: bytes) -> bytes | None:
        """The row of a Redis key as JSON, None if there is none.  Raises NotPlain, and counts nothing then."""
        name, _, rest = key.partition(b":")
        reader = client.reader
        assert reader is not None
        try:
            if reader is not EVERYBODY:
                check_reader(self._door.ponds, reader, name.decode())
            lookups, writer, plan = self._moments.get(name) or self._begin(name)
            if plan.is_text and rest != NULL:
                text = unquote_to_bytes(rest) if b"%" in rest else rest
                stored = lookups.get(text_key(text))
                row = writer.write_of_text(text, stored) if stored else None
            else:
                columns = plan.keys.parse(rest)
                wanted = None if columns is None else plan.reader.row(plan.reader.stored(columns))
                if wanted is None:
                    raise NotPlain
                stored = lookups.get(lookups.binding.codec.encode(wanted))
                row = writer.write(wanted, stored) if stored else None
            if stored is None:
                raise NotPlain
            self._door.access.count(reader, client.address)
        except (MillpondError, UnicodeDecodeError):
            raise NotPlain from None
        client.tables.add(plan.name)
        return None if row is None else row[: row.rindex(_AFTER)]

    def _begin(self, name: bytes) -> tuple[Lookups, RowWriter, _Plan]:
        """A view of a table.  Raises NotPlain, and as `Table.get`."""
        text = name.decode()
        table = self._door.ponds[text]
        if table.definition.many:
            raise NotPlain
        lookups = table.lookups()
        try:
            if lookups.is_judged:  # these answers change between two batches
                raise NotPlain
            plan = self._plans.get(text)
            if plan is None or plan.definition is not table.definition:
                plan = self._plans[text] = _Plan(text, table)
            moment = lookups, plan.writers.of(lookups.binding), plan
            if lookups.compiled is not None:
                self._last = text, name + b":", table, lookups.compiled
        except BaseException:
            lookups.close()
            raise
        if not self._moments:
            asyncio.get_running_loop().call_soon(self._end)
        self._moments[name] = moment
        return moment

    def _end(self) -> None:
        for lookups, *_ in self._moments.values():
            lookups.close()
        self._moments.clear()
