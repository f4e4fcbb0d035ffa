"""Which tables compiled code can read by key, and what it must know of them."""

from __future__ import annotations

from millpond.native.lookup import TEXT_KEY, TableFacts
from millpond.replica.history.delete_cause import loses_rows
from millpond.schema.values import encode_json
from millpond.tables.answer import Row
from millpond.tables.finish.stored_members import WHOLE_BYTES, stored_members
from millpond.tables.scan.binding import Binding


def table_facts(binding: Binding) -> TableFacts | None:
    """A table as compiled code reads it; None if only Python can.

    That is so for keys of several columns, for rows that are judged, merged or filtered when they
    are read, and for values that take more than their stored bytes.
    """
    definition = binding.definition
    if len(definition.key) != 1 or definition.key[0].path or len(binding.schema.key) != 1:
        return None
    judged = binding.ttl or definition.resolutions is not None or definition.having is not None
    if judged or binding.many or binding.parts is not None:
        return None
    column = definition.key[0]
    width = TEXT_KEY if column.type.kind == "string" else WHOLE_BYTES.get(column.type.kind)
    members = stored_members(definition)
    if width is None or members is None:
        return None
    return TableFacts(
        name=binding.table,
        columns=len(definition.value_schema),
        members=members,
        names=definition.columns,
        key_width=width,
        head=b"{" + encode_json(column.name) + b":",
        lasts=not (binding.may_expire or loses_rows(binding.schema) or binding.stores.shard),
        row_type=Row,
        cut_name="_cut",
        stored_name="_stored",
        evicted_name="evicted",
    )
