"""A restart with the times for which readers see buckets already: the state gets them first.

A lower retention that hides buckets from readers (`RetentionPlan.hide`) stands beside a state that
has them.  If the job is started again with just these times in its declaration, and nothing else of
its state has changed, the state is changed as `millpond retention --yes` does it.  Every other
declaration is left to `start`, which refuses other times.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.catalogue import JobFolder
from millpond.schema.definition.table import TableDefinition
from millpond.spark.aggregate.meaning import derive_aggregate
from millpond.spark.derive.same_state import state_changes
from millpond.tables.buckets.retention import plan_retention
from millpond.tables.kept.shorter import least, read_shorter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millpond.spark.aggregate.declare import Aggregate


def make_hidden_real(aggregate: Aggregate, source: DataFrame, pond: str | Path, folder: JobFolder, *, take_over: bool) -> None:
    """Change the state of a stopped job if readers see its buckets for the declared times, and it keeps them for longer.

    Raises:  as `RetentionPlan.run`; then the job is as it was.
    """
    entries, _ = folder.read_entries()
    there = next((e for e in entries if isinstance(e, TableDefinition) and e.table == aggregate.table), None)
    if there is None or there.resolutions is None or not (shorter := read_shorter(folder.storage, there)):
        return
    before = {str(r): r.keep_seconds for r in there.resolutions.each}
    seen = {name: least(keep, shorter.get(name)) for name, keep in before.items()}
    if seen == before or seen != {str(r): r.keep_seconds for r in aggregate.declared.resolutions}:
        return
    kept = tuple(replace(r, keep_seconds=before[str(r)]) for r in aggregate.declared.resolutions)
    if state_changes(there, derive_aggregate(aggregate.keeping(kept), source, folder)):
        return
    done = plan_retention(pond, aggregate.table, take_over=take_over).run()
    print(f"millpond: {aggregate.table}: its state has the times that readers see; the old one is {done.kept}", file=sys.stderr)
