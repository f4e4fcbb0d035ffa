"""The buffers of schema_of_variant_agg: types as JSON, which Spark shows as SQL types.

Source:  SchemaOfVariantAgg and SchemaOfVariant.printSchema, Spark 4.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from millpond.errors import CheckpointError, MillpondError
from millpond.schema.definition.expression import Expression
from millpond.schema.types import SparkType, parse_type

_PLAIN_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_SQL = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}


def compile_variant_schema(_: Expression) -> Callable[[bytes | None], str]:
    """The function from a buffer to the type's text; VOID if there was no value."""

    def finish(data: bytes | None) -> str:
        if not data:
            return "VOID"
        try:
            return _shown(parse_type(json.loads(data.decode())))
        except (ValueError, KeyError, TypeError, RecursionError, MillpondError) as error:
            raise CheckpointError(
                "CORRUPT_FILE",
                f"A buffer of schema_of_variant_agg has {len(data)} bytes that aren't a type.",
                hint="Compare the job's checkpoint with a backup; report this if Spark can read it.",
            ) from error

    return finish


def _shown(type_: SparkType) -> str:
    if type_.kind == "struct":
        return f"OBJECT<{', '.join(f'{_name(f.name)}: {_shown(f.type)}' for f in type_.fields)}>"
    if type_.kind == "array" and type_.element is not None:
        return f"ARRAY<{_shown(type_.element)}>"
    return _SQL.get(type_.kind) or str(type_).upper()


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
