"""A user's name for the tables of an operator whose rows no plan describes.

Only the first batch shows a join's sides, the state of applyInPandasWithState and the variables of
transformWithState, and variables come and go with the job's code.  So the entry has only a name,
and the tables come from the checkpoint's schemas: `<name>`, `<name>_left`, `<name>_<variable>`,
`<name>_timers` (see `default_table`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from millpond.errors import DefinitionError, RequestError
from millpond.schema.definition.meaning import Meaning, parse_meaning
from millpond.schema.definition.parts import VariableParts, parse_variable_parts
from millpond.schema.definition.retention import parse_retention_json, retention_json
from millpond.schema.definition.table import TableDefinition, check_table_name, parse_definition, unreadable_definition
from millpond.schema.strict_json import DAMAGE
from millpond.settings import Retention

Json = Any
FORMAT = 1
KIND = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOperator:
    """The name of one stateful operator's tables.

    table:          the first part of their names
    operator:       Spark's operator id, counted from the sink
    operator_name:  Spark's name for its kind, e.g. symmetricHashJoin
    retention:      that of its tables for every follower, None if the follower decides
    parts:          how its variables lie in parts, None if they don't
    meaning:        the words for its state's key; a later name over the same checkpoint must have
                    the same
    """

    table: str
    operator: int
    operator_name: str
    retention: Retention | None = None
    parts: VariableParts | None = None
    meaning: Meaning | None = None

    def to_json(self) -> Json:
        out: dict[str, Json] = {
            "format": FORMAT,
            "kind": KIND,
            "table": self.table,
            "operator": self.operator,
            "operator_name": self.operator_name,
        }
        if self.retention is not None:
            out["retention"] = retention_json(self.retention)
        if self.parts is not None:
            out["parts"] = self.parts.to_json()
        if self.meaning is not None:
            out["meaning"] = self.meaning.to_json()
        return out

    def fingerprint(self) -> str:
        """A hash of all that identifies the operator; the name isn't part of it."""
        described: list[Json] = [KIND, self.operator, self.operator_name]
        if self.parts is not None:
            described.append({**self.parts.to_json(), "computed": None})
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def describe(self) -> list[str]:
        """The same in lines that a person can compare."""
        lines = [f"the tables of operator {self.operator}, {self.operator_name}"]
        return lines if self.parts is None else [*lines, self.parts.describe()]

    def may_name(self, table: str) -> bool:
        """Whether a table of this name could be one of the operator's."""
        return table == self.table or table.startswith(f"{self.table}_")


Entry = TableDefinition | NamedOperator
"""The content of a file in a job's folder `tables/`."""


def parse_entry(data: Json) -> Entry:
    """Turn the JSON form back into a definition or the name of an operator's tables.

    Raises:  DEFINITION_MISMATCH if its format is unknown, or it is damaged.
    """
    if not isinstance(data, dict) or "kind" not in data:
        definition = parse_definition(data)
        try:
            check_table_name(definition.table)
        except RequestError as wrong:
            raise unreadable_definition(wrong) from wrong
        return definition
    if data["kind"] != KIND or data.get("format") != FORMAT:
        raise DefinitionError(
            "DEFINITION_MISMATCH",
            f"The definition is of kind {data['kind']!r:.40}, format {data.get('format')!r:.40}; "
            f"this version reads kind {KIND!r}, format {FORMAT}.",
            hint="Read this table with the Millpond version that wrote its definition, or a newer one.",
        )
    table, operator, operator_name = data.get("table"), data.get("operator"), data.get("operator_name")
    try:
        if not isinstance(table, str) or not isinstance(operator_name, str):
            raise ValueError("a name isn't one")
        if not isinstance(operator, int) or isinstance(operator, bool) or operator < 0:
            raise ValueError("its operator isn't one")
        check_table_name(table)
        retention = parse_retention_json(data.get("retention"))
        parts = parse_variable_parts(data.get("parts"))
        meaning = parse_meaning(data.get("meaning"))
    except (*DAMAGE, RequestError) as broken:
        raise unreadable_definition(broken) from broken
    return NamedOperator(
        table=table, operator=operator, operator_name=operator_name, retention=retention, parts=parts, meaning=meaning
    )
