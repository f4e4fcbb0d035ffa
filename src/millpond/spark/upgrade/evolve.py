"""Evolve a savepoint for a changed query: what Spark says of the query, done to the savepoint's rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millpond.catalogue import savepoints_folder
from millpond.savepoint.change.evolve import EvolvePlan, plan_new_columns
from millpond.savepoint.manage.folder import open_savepoint
from millpond.schema.definition.operator_name import parse_entry
from millpond.spark.upgrade.evolution import evolution_of

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
    note: str = "",
) -> EvolvePlan:
    """Plan a new savepoint, with which a changed query goes on.  This starts nothing.

    Aggregates that the state has go on, in any order; new ones begin as Spark begins a group; others
    are dropped.  Keys and operators must stay the same.

    df:           the new query
    place:        the pond that has the savepoint, or the checkpoint that it was made of
    savepoint:    the one to begin with, which stays as it is
    name:         of the new savepoint
    output_mode:  the new query's: update, complete or append
    old:          the query that wrote the state; None for what the definitions of its tables say
    Raises:  UNSUPPORTED if only a new job can run this query; UNKNOWN_SAVEPOINT,
             SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW; SAVEPOINT_EXISTS,
             INVALID_NAME, INVALID_REQUEST, SPARK_CONNECT.
    """
    found = open_savepoint(place, savepoint)
    entries = [parse_entry(definition) for definition in found.manifest.tables.values()]
    evolution = evolution_of(df, found.checkpoint, found.manifest.batch, entries, output_mode=output_mode, old=old)
    return plan_new_columns(
        found,
        savepoints_folder(place),
        name,
        changes=evolution.changes,
        schemas=evolution.schemas,
        tables=evolution.tables,
        lines=evolution.lines,
        note=note,
    )
