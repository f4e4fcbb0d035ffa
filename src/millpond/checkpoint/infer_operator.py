"""Which operator wrote a store, by its schema alone: Spark 3.5 and older write no operator metadata.

    join                       four stores, left-keyToNumValues and so on
    applyInPandasWithState     value groupState struct, with time-outs timeoutTimestamp as well
    dropDuplicates             value __dummy__ void, or before Spark 3.4 all columns of the input, those of the key among
                               them; within the watermark expiresAtMicros
    limit                      key one void column, value one number
    session windows            the key ends with sessionStartTime, the value begins with the grouping columns, a window among them
    aggregation                everything else

Names of buffers come from Spark's functions and can't be chosen by a user; names of grouping
columns can.  In the old format 1 of applyInPandasWithState the value is the user's columns: then it
looks like an aggregation, and either is possible.
"""

from __future__ import annotations

import re

from millpond.checkpoint.schemas import FamilySchema
from millpond.errors import CheckpointError
from millpond.schema.types import is_window

JOIN_STORES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")


# The names that Spark's functions give their buffers.
_BUFFER = re.compile(
    r"sum|count|isEmpty|min|max|avg|first|last|valueSet|n|m[234]|[xy]Avg|[xy]Mk|ck|buf|(bit|bool)_(and|or|xor)|product"
    r"|valueWithExtremumOrdering|extremumOrdering|MS\[\d+\]"
)


def infer_operator(schema: FamilySchema, *, apply_format: int, aggregation_format: int = 2) -> tuple[str, int]:
    """(operator name, number of the key's leading columns) of a store called `default`.

    apply_format, aggregation_format:  Spark's flatMapGroupsWithState.stateFormatVersion and
                   aggregation.stateFormatVersion, as the batch pins them
    Raises:  UNSUPPORTED if two operators could have written it.
    Source:  the planner's stateful operators, Spark 3.5; golden checkpoints of 3.5.
    """
    value = [(f.name, f.type.kind) for f in schema.value]
    if value in ([("groupState", "struct")], [("groupState", "struct"), ("timeoutTimestamp", "long")]):
        return "applyInPandasWithState", 0
    if value == [("__dummy__", "void")]:
        return "dedupe", 0
    if value == [("expiresAtMicros", "long")]:
        return "dedupeWithinWatermark", 0
    if [f.type.kind for f in schema.key] == ["void"] and value == [("value", "long")]:
        return "globalLimit", 0
    if schema.key and schema.key[-1].name == "sessionStartTime":
        if _is_session(schema):
            return "sessionWindowStateStoreSaveExec", len(schema.key) - 1
        raise CheckpointError(
            "UNSUPPORTED",
            "The checkpoint has no operator metadata, and its key ends with sessionStartTime as that of session windows does, but "
            "its values aren't those of sessions.",
            hint="Start the job once with Spark 4.0 or newer, which writes the metadata; or rename that grouping column.",
        )
    if apply_format == 1:
        raise CheckpointError(
            "UNSUPPORTED",
            "The checkpoint has no operator metadata, and applyInPandasWithState writes format 1 in it, whose state looks like "
            "that of an aggregation.",
            hint="Start the job once with Spark 4.0 or newer, which writes the metadata.",
        )
    return "dedupe" if _is_old_dedupe(schema, aggregation_format) else "stateStoreSave", 0


def _is_old_dedupe(schema: FamilySchema, aggregation_format: int) -> bool:
    """Whether the value is the input of dropDuplicates, and not the buffers of an aggregation.

    Format 1 of an aggregation has the columns of the key before its buffers.
    """
    key = [(f.name, f.type) for f in schema.key]
    value = [(f.name, f.type) for f in schema.value]
    if not key or any(column not in value for column in key):
        return False
    begins_with_key = aggregation_format == 1 and value[: len(key)] == key
    are_buffers = all(_BUFFER.fullmatch(name) for name, _ in value[len(key) if begins_with_key else 0 :])
    if begins_with_key and are_buffers and len(value) > len(key):
        return False
    if not begins_with_key and not are_buffers:
        return True
    raise CheckpointError(
        "UNSUPPORTED",
        "The checkpoint has no operator metadata, and its schema may be that of an aggregation or of dropDuplicates: the columns "
        "of the key are among its values.",
        hint="Start the job once with Spark 4.0 or newer, which writes the metadata; or rename the columns of the key.",
    )


def _is_session(schema: FamilySchema) -> bool:
    grouping = schema.value[: len(schema.key)]
    others = [f.type for f in schema.key[:-1]]
    return len(grouping) == len(schema.key) and any(
        is_window(field.type) and [g.type for place, g in enumerate(grouping) if place != i] == others
        for i, field in enumerate(grouping)
    )
