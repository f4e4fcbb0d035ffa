"""The schemas of statements before they are answered: of the answer, and of the parameters.

Clients prepare each statement, and many prepare the same one again.  So what a process has found is
known for as long as the tables are what they were.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from millpond.schema.definition.table import TableDefinition
from millpond.serve.flight.call import Call
from millpond.serve.flight.streams import opening_of, session_of, whole_table
from millpond.serve.flight.tickets import Handle
from millpond.tables.forms.arrow import pyarrow, table_schema
from millpond.tables.sql.reading.opened import OpenedTables
from millpond.tables.sql.reading.scan import check_names
from millpond.tables.sql.statement import TableName

_MOST = 256
_MOST_TEXT = 4096
Schemas = tuple[Any, Any]
"""of the answer, and of the parameters: pyarrow.Schemas"""


class _Known(NamedTuple):
    """What a statement was found to be, with the tables that it read."""

    schemas: Schemas
    tables: dict[str, TableDefinition]


class Descriptions:
    """Of the statements that were prepared last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def find(self, call: Call, handle: Handle) -> Schemas:
        """The schemas of a statement.  Raises NOT_ALLOWED, UNKNOWN_TABLE; as `streams.answer`."""
        whole = whole_table(call, handle)
        if whole is not None:
            return _of_table(call, whole)
        with self._lock:
            known = self._known.get(handle.text)
        if known is None or any(call.table(name).definition != before for name, before in known.tables.items()):
            known = _described(call, handle)
            if len(handle.text) <= _MOST_TEXT:
                with self._lock:
                    self._known[handle.text] = known
                    self._known.move_to_end(handle.text)
                    while len(self._known) > _MOST:
                        self._known.popitem(last=False)
        return known.schemas


def _of_table(call: Call, name: str) -> Schemas:
    pa, definition = pyarrow(), call.table(name).definition
    check_names(definition)
    return table_schema(pa, definition, "", 0).remove_metadata(), pa.schema([])


def _described(call: Call, handle: Handle) -> _Known:
    pa, opening, tables = pyarrow(), opening_of(call, handle), dict[str, TableDefinition]()

    def open_(names: list[TableName], *, is_dry: bool) -> OpenedTables:
        tables.update({each.name: call.table(each.name).definition for each in names})
        return opening(names, is_dry=is_dry)

    session = session_of(call, handle, open_, is_described=True)
    answer, parameters = (pa.ipc.read_schema(pa.py_buffer(piece)) for piece in iter(session.next, None))
    return _Known((answer, parameters), tables)
