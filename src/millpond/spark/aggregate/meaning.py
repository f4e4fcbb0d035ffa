"""What the state of an aggregate's job is by its declaration, without starting it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import newest_conf
from millpond.schema.definition.table import TableDefinition
from millpond.settings import Retention
from millpond.spark.derive.definition import derive
from millpond.spark.derive.same_state import with_history
from millpond.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millpond.spark.aggregate.declare import Aggregate


def derive_aggregate(aggregate: Aggregate, source: DataFrame, folder: JobFolder) -> TableDefinition:
    """The definition of its table over the checkpoint of a job.

    Raises:  as `Aggregate.on`; NOT_DERIVABLE if the buckets of a value can't be merged.
    """
    pinned = newest_conf(open_storage(folder.checkpoint))
    df = aggregate.on(source, checkpoint=folder.checkpoint)
    derived = derive(df, table=aggregate.table, strict=True, pinned=pinned)
    assert isinstance(derived, TableDefinition), "an aggregate is a table"
    return with_history(folder, replace(derived, retention=Retention.parse(keep_closed="no", history=None)))  # type: ignore[return-value]
