"""The data source `millpond`: a table as rows of one batch, or as the stream of its changes.

Workers import this module by its name: on a cluster `millpond[spark]` is installed on every
machine, and every machine sees the checkpoint under the same URI.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from millpond.errors import ReplicaError, RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.spark.source.batch import TableReader
from millpond.spark.source.columns import change_schema, choose_columns, table_schema
from millpond.spark.source.options import SourceOptions, parse_source_options
from millpond.spark.source.stream import ChangeStream
from millpond.tables.cold.table import find_defined, find_definition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "millpond"


def register(spark: SparkSession) -> None:
    """Make the format `millpond` known to a session; `millpond.session` does so by itself."""
    classic = getattr(spark, "_jsparkSession", None)  # a session of Spark Connect has none
    if classic is None or not classic.sessionState().dataSourceManager().dataSourceExists(NAME):  # a second time Spark warns
        spark.dataSource.register(TableSource)


def read_changes(spark: SparkSession, pond: str | Path, table: str, **options: str | int) -> DataFrame:
    """The changes of a table as a stream.

    The columns are those of the table's key, `_kind`, `_batch`, and the table's values before and
    after as the structs `_old` and `_new`.

    options:  as those of the source: columns, startingBatch, maxBatchesPerTrigger, tasks, allow
    Raises:   UNKNOWN_TABLE, INVALID_REQUEST, WRONG_TYPE, NO_CHECKPOINT, as Spark's AnalysisException.
    """
    register(spark)
    reader = spark.readStream.format(NAME).option("pond", str(pond)).option("table", table).option("changes", "true")
    return reader.options(**options).load()


class TableSource(DataSource):  # type: ignore[misc]
    """A table as a source of rows, or of changes."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse_source_options(self.options)
        definition = _definition(options)
        if options.changes:
            return change_schema(definition, options.columns)
        return table_schema(choose_columns(definition, options.columns))

    def reader(self, schema: StructType) -> TableReader:
        options = parse_source_options(self.options)
        if options.changes:
            raise _other("spark.read reads the rows of a table, not its changes", "Use spark.readStream, or leave out `changes`.")
        return TableReader(options, schema)

    def streamReader(self, schema: StructType) -> ChangeStream:
        options = parse_source_options(self.options)
        if not options.changes:
            raise _other("spark.readStream reads the changes of a table", 'Add .option("changes", "true") to the stream.')
        if options.batch is not None or options.expired or options.where:
            raise _other("a stream of changes has neither `batch` nor `expired` nor `where`", "Leave them out.")
        if schema != self.schema():
            raise _other("a stream of changes has its own columns", "Leave out the schema; choose columns by the option `columns`.")
        return ChangeStream(options, schema)


def _definition(options: SourceOptions) -> TableDefinition:
    """The table's definition, also before its job's first batch."""
    try:
        return find_definition(options.pond, options.table, allow=options.allow)
    except ReplicaError as error:
        defined = find_defined(options.pond, options.table, allow=options.allow)
        if error.condition != "NO_COMMITTED_BATCH" or defined is None:
            raise
        return defined[1]


def _other(why: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"{why[0].upper()}{why[1:]}.", hint=hint)
