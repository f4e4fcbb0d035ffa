"""Evolve a savepoint for a changed query: what Spark says of the query, done to the savepoint's rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.catalogue import savepoints_folder
from millpond.savepoint.change.evolve import EvolvePlan, plan_new_state
from millpond.savepoint.change.variables import ValueOf
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.rewrite.row_edit import MergeValues
from millpond.schema.definition.operator_name import parse_entry
from millpond.spark.upgrade.evolution import evolution_of
from millpond.spark.upgrade.variables import VariableRules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_evolve(
    df: DataFrame,
    place: str | Path,
    savepoint: str,
    name: str,
    *,
    output_mode: str = "update",
    old: DataFrame | None = None,
    expire: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
    value_of: ValueOf | None = None,
    merge: MergeValues | None = None,
    note: str = "",
) -> EvolvePlan:
    """Plan a new savepoint, with which a changed query goes on.  This starts nothing.

    Aggregates that the state has go on, in any order; new ones begin as Spark begins a group; others
    are dropped.  Of transformWithState, variables and their columns go on by their names, numbers also
    in a wider type; a variable may get a TTL or lose it.  Operators must stay the same, and keys but for columns that
    an aggregation doesn't group by any more.

    df:           the new query
    place:        the pond that has the savepoint, or the checkpoint that it was made of
    savepoint:    the one to begin with, which stays as it is
    name:         of the new savepoint
    output_mode:  the new query's: update, complete or append
    old:          the query that wrote the state; None for what the definitions of its tables say
    expire:       variable that gets a TTL -> how long after the savepoint's batch the values that
                  it has expire, as `30 days`
    renamed:      new name of a variable -> its old one
    value_of:     gets the name of a variable whose columns change, and an element of it as a dict,
                  and returns a dict of the new columns.  Without it new columns begin with NULL
    merge:        of an aggregation that groups by fewer columns: gets two values that have the same
                  key now, as dicts of the columns that Spark stores, and returns the one in place
                  of both
    Raises:  UNSUPPORTED if only a new job can run this query; UNKNOWN_SAVEPOINT,
             SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW; SAVEPOINT_EXISTS,
             INVALID_NAME, INVALID_REQUEST, SPARK_CONNECT.
    """
    found = open_savepoint(place, savepoint)
    entries = [parse_entry(definition) for definition in found.manifest.tables.values()]
    rules = VariableRules(expire=dict(expire or {}), renamed=dict(renamed or {}), value_of=value_of)
    evolution = evolution_of(
        df, found.checkpoint, found.manifest.batch, entries, output_mode=output_mode, old=old, rules=rules, merge=merge
    )
    return plan_new_state(
        found,
        savepoints_folder(place),
        name,
        edits=evolution.edits,
        schemas=evolution.schemas,
        removed=evolution.removed,
        tables=evolution.tables,
        lines=evolution.lines,
        note=note,
    )
