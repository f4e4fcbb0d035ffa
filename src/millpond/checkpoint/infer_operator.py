"""Which operator wrote a store, by its schema alone: Spark 3.5 and older write no operator metadata.

    join                       four stores, left-keyToNumValues and so on
    applyInPandasWithState     value groupState struct, with time-outs timeoutTimestamp as well
    dropDuplicates             value __dummy__ void; within the watermark expiresAtMicros
    limit                      key one void column, value one number
    session windows            the key ends with sessionStartTime, the value begins with the grouping columns, a window among them
    aggregation                everything else

Names of buffers come from Spark's functions and can't be chosen by a user; names of grouping
columns can.  In the old format 1 of applyInPandasWithState the value is the user's columns: then it
looks like an aggregation, and either is possible.
"""

from __future__ import annotations

from millpond.checkpoint.schemas import FamilySchema
from millpond.errors import CheckpointError
from millpond.schema.types import is_window

JOIN_STORES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")


def infer_operator(schema: FamilySchema, *, apply_format: int) -> tuple[str, int]:
    """(operator name, number of the key's leading columns) of a store called `default`.

    apply_format:  Spark's flatMapGroupsWithState.stateFormatVersion, as the batch pins it
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
    return "stateStoreSave", 0


def _is_session(schema: FamilySchema) -> bool:
    grouping = schema.value[: len(schema.key)]
    others = [f.type for f in schema.key[:-1]]
    return len(grouping) == len(schema.key) and any(
        is_window(field.type) and [g.type for place, g in enumerate(grouping) if place != i] == others
        for i, field in enumerate(grouping)
    )
