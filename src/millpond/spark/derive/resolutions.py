"""Tables of buckets: the metadata of the grouping column `resolution` says so, see `schema.definition.resolutions`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from millpond.schema.definition.resolutions import (
    COLUMNS,
    EVENT_TIME,
    METADATA,
    OF_BUCKETS,
    Resolution,
    Resolutions,
    parse_each,
    words_of_column,
)
from millpond.schema.definition.table import TableDefinition
from millpond.spark.derive.parts import merges_of
from millpond.spark.derive.plan import Java, class_name, not_derivable

_DECLARE = "Declare the buckets with millpond.Aggregate."
# Offsets from UTC were multiples of 15 minutes from then on; before, towns had times of their own.
_SINCE = 0


def described(grouping: list[Java], table: str) -> tuple[Resolution, ...] | None:
    """The resolutions in the metadata of a grouping column; None if no column has any.

    Raises:  NOT_DERIVABLE if they can't be understood.
    """
    found = [json.loads(str(attribute.metadata().json())).get(METADATA) for attribute in grouping]
    data = next((each for each in found if each is not None), None)
    if data is None:
        return None
    try:
        return parse_each(list(data.items()))
    except (ValueError, TypeError, AttributeError) as broken:
        raise not_derivable(table, f"its resolutions aren't known here: {broken}.", _DECLARE) from broken


def words_of_buckets(grouping: list[Java]) -> dict[int, str]:
    """The meaning of the columns that tell buckets apart, by their places; empty for other tables.

    The plan has them in words of all resolutions at once.  These say of each column what it is, so
    that `tables.buckets.retention` can change it.
    """
    if any(class_name(column) != "AttributeReference" for column in grouping):
        return {}  # the condition of a join
    notes = [json.loads(str(attribute.metadata().json())) for attribute in grouping]
    note = next((note for note in notes if note.get(METADATA) is not None and EVENT_TIME in note), None)
    if note is None:
        return {}
    try:
        each = parse_each(list(note[METADATA].items()))
    except (ValueError, TypeError, AttributeError):
        return {}  # `described` says what is wrong
    names = [str(attribute.name()) for attribute in grouping]
    return {i: words_of_column(name, each, note[EVENT_TIME]) for i, name in enumerate(names) if name in OF_BUCKETS}


def over_buckets(
    definition: TableDefinition,
    each: tuple[Resolution, ...],
    aggregates: list[tuple[Java, tuple[int, ...]]],
    zone: dict[str, Any],
) -> TableDefinition:
    """The same definition with how its buckets are merged.

    aggregates:  each with the places of its buffers
    zone:        the rules of the session's time zone
    Raises:  NOT_DERIVABLE, which names the function whose buckets can't be merged, or what else
             the buckets alone don't tell.
    """
    if not {c.name for c in definition.key}.issuperset(COLUMNS):
        raise not_derivable(definition.table, f"its key lacks one of {', '.join(COLUMNS)}.", _DECLARE)
    if definition.having is not None:
        why = "the filter after the aggregation sees single buckets and not their sum."
        raise not_derivable(definition.table, why, "Leave it out, and filter the rows that you read.")
    times = {c.index for c in definition.key if c.name in COLUMNS}
    for column in definition.values:
        if any(e.op == "key" and e.options["index"] in times for e in column.expression.walk()):
            why = f"the column {column.name!r} uses the time of a bucket, which a sum of buckets doesn't have."
            raise not_derivable(definition.table, why, "Leave it out: totals and series say which span they are of.")
    _check_offsets(definition.table, each, zone)
    merges = merges_of(definition, aggregates, "Leave it out, or aggregate it in a query without resolutions.")
    return replace(definition, resolutions=Resolutions(each=each, merges=merges, zone=zone))


def _check_offsets(table: str, each: tuple[Resolution, ...], zone: dict[str, Any]) -> None:
    """Refuse buckets of minutes that don't begin with the hours of the zone.  Raises NOT_DERIVABLE."""
    since = [place for place, at in enumerate(zone.get("at", [])) if at >= _SINCE]
    offsets = zone["to"][since[0] :] if since else zone["to"][-1:]
    offsets = offsets + [offset for rule in zone.get("rules", []) for offset in rule[-2:]]
    for resolution in each:
        seconds = resolution.most_seconds
        if resolution.unit == "minute" and any(offset % seconds for offset in offsets):
            why = f"buckets of {resolution} don't begin with the hours of {zone['id']}."
            raise not_derivable(table, why, "Use buckets of 1, 5 or 15 minutes, or the session time zone UTC.")
