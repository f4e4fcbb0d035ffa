"""Lets a program write nothing: neither Spark's writers, nor statements, nor Millpond's own storage.

A statement is parsed by Spark.  It runs if it reads, or changes this session alone: settings,
temporary views and functions, variables, what is cached.  Any other command is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.spark.derive.plan import Java, class_name, every_node

Put = Callable[[Any, str, Any], None]

# Statements of the session alone, by the class that Spark's parser makes of them.
_OF_SESSION = frozenset(
    {
        "SetCommand",
        "ResetCommand",
        "SetVariable",
        "CreateVariable",
        "DropVariable",
        "SetCatalogCommand",
        "SetCatalogAndNamespace",
        "SetNamespaceCommand",
        "SetNamespace",
        "CreateTempViewUsing",
        "CacheTable",
        "CacheTableAsSelect",
        "UncacheTable",
        "ClearCacheCommand",
        "RefreshTable",
        "RefreshResource",
        "RefreshFunction",
        "AddJarsCommand",
        "AddFilesCommand",
        "AddArchivesCommand",
        "ExplainCommand",
        "ListJarsCommand",
        "ListFilesCommand",
        "ListArchivesCommand",
        "HelpCommand",
    }
)
_READS = ("Show", "Describe")
_OF_SESSION_IF_TEMPORARY = frozenset({"CreateFunctionCommand", "DropFunctionCommand", "CreateSQLFunctionCommand"})
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
# What may write, and isn't a command before Spark has analyzed it.
_WRITES = frozenset({"InsertIntoDir", "InsertIntoStatement", "Call"})
_SETTERS = frozenset(
    {
        *("mode", "format", "option", "options", "partitionBy", "bucketBy", "sortBy", "clusterBy"),
        *("using", "tableProperty", "partitionedBy"),
    }
)
_OF_CATALOG = ("create", "drop", "truncate", "analyze", "recover", "alter")
_KEPT_IN_SESSION = frozenset({"dropTempView", "dropGlobalTempView"})


def put_writes(put: Put, note: Callable[[str], None]) -> None:
    """Replace all of it.

    put:   replaces an attribute, until the review's end
    note:  gets what wasn't done, the subject of a sentence
    """
    from pyspark import RDD
    from pyspark.sql import DataFrameWriter, DataFrameWriterV2, SparkSession
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.merge import MergeIntoWriter

    from millpond.storage.local import LocalStorage
    from millpond.storage.object_store import ObjectStorage

    def instead(subject: str, answer: Any = None) -> Callable[..., Any]:
        def call(_self: Any, *_given: Any, **_named: Any) -> Any:
            note(subject)
            return answer

        return call

    for writer in (DataFrameWriter, DataFrameWriterV2):
        for name in vars(writer):
            if not name.startswith("_") and name not in _SETTERS:
                put(writer, name, instead("A write of a batch"))
    put(MergeIntoWriter, "merge", instead("A write of a batch"))
    for name in vars(RDD):
        if name.startswith("saveAs"):
            put(RDD, name, instead(f"{name} of an RDD"))
    for name in vars(Catalog):
        if name.startswith(_OF_CATALOG) and name not in _KEPT_IN_SESSION:
            put(Catalog, name, instead(f"{name} of the catalog"))
    for storage in (LocalStorage, ObjectStorage):
        for name, answer in (("create", True), ("replace", True), ("take", True)):
            put(storage, name, instead("A write of Millpond", answer))
        for name in ("write", "write_pieces", "delete", "delete_all"):
            put(storage, name, instead("A write of Millpond"))
    sql = SparkSession.sql

    def run_sql(session: Any, sqlQuery: str, args: Any = None, **named: Any) -> Any:
        from pyspark.sql.sql_formatter import SQLStringFormatter

        formatter = SQLStringFormatter(session)
        try:
            text = formatter.format(sqlQuery, **named) if named else sqlQuery
            is_write = changes_something(session, text)
        finally:
            formatter.clear()
        if is_write:
            note(f"The statement {' '.join(text.split())[:60]!r}")
            return session.createDataFrame([], "done boolean")
        return sql(session, sqlQuery, args, **named)

    put(SparkSession, "sql", run_sql)


def changes_something(session: Any, text: str) -> bool:
    """Whether a statement changes more than the session; False if Spark can't parse it, and so won't run it."""
    from pyspark.errors import ParseException

    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except ParseException:
        return False
    return any(_changes(session._jvm, node) for node in every_node(plan))


def _changes(jvm: Java, node: Java) -> bool:
    name = class_name(node)
    if name in _WRITES:
        return True
    loader = jvm.Thread.currentThread().getContextClassLoader()
    kinds = [jvm.java.lang.Class.forName(_LOGICAL + kind, True, loader) for kind in ("Command", "ParsedStatement")]
    if not any(kind.isInstance(node) for kind in kinds):
        return False
    if name in _OF_SESSION or name.startswith(_READS):
        return False
    if name == "CreateViewCommand":
        return str(node.viewType().toString()) == "PersistedView"
    if name in _OF_SESSION_IF_TEMPORARY:
        return not node.isTemp()
    return True
