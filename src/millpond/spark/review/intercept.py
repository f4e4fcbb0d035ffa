"""Runs a program with everything that would start, write or wait replaced.

1. Whatever master the program names, Spark runs on this machine, on one core.
2. `start` and `toTable` of a stream's writer, and all of Millpond that starts jobs, keep the query
   and return one that has ended.  Nothing is written (`writes`).
3. What only a running query has (`status`) ends the program, as does waiting for queries in a loop:
   the queries before it are known.

All of it is undone afterwards.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from millpond.catalogue import JobFolder
from millpond.errors import importing_pyspark
from millpond.spark.derive.batch_plan import scala_map
from millpond.spark.review.batch_function import read_batch_function
from millpond.spark.review.facts import Query, Review
from millpond.spark.review.plan import read_operators, watermarks_of
from millpond.spark.review.sources import Sources
from millpond.spark.review.writes import put_writes
from millpond.spark.supervised import reviewed_by
from millpond.spark.upgrade.rehearsal import spark_error
from millpond.storage.names import hadoop_uri

_MASTER = "local[1]"
_STREAM = "spark.sql.streaming."
_PROVIDER, _CHANGE_LOG = _STREAM + "stateStore.providerClass", _STREAM + "stateStore.rocksdb.changelogCheckpointing.enabled"
_ROCKSDB = "RocksDBStateStoreProvider"
_SETTINGS = (
    _STREAM + "checkpointLocation",
    _STREAM + "minBatchesToRetain",
    _PROVIDER,
    "spark.sql.shuffle.partitions",
)
_FILE_SYSTEM = "spark.hadoop.fs.defaultFS"
_TRIGGER_MS = re.compile(r"ProcessingTimeTrigger\((\d+)\)")


_WAITS = "awaitAnyTermination"
# What starts a query.
_STARTS = frozenset({"start", "toTable", "run"})


class _Ended(BaseException):
    """The program asks for what only a running query has, at a line of its own."""

    def __init__(self, line: int | None, name: str) -> None:
        super().__init__()
        self.line, self.name = line, name


class EndedQuery:
    """What `start` returns: a query, or a job of Millpond, that has ended without an error."""

    has_ended = True
    isActive = False  # noqa: N815 - PySpark's names
    lastProgress = None  # noqa: N815
    recentProgress: tuple[()] = ()  # noqa: N815

    def __init__(self, name: str, keeper: _Keeper, session: Any) -> None:
        self.name, self._keeper = name, keeper
        self.query, self.session = self, session
        self.id = self.runId = str(uuid.uuid4())

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """It has ended."""
        del timeout
        self._keeper.waited.add(None)
        return True

    def exception(self) -> None:
        """It has ended well."""

    def wait_for_end(self, timeout_seconds: float | None = None) -> bool:
        """As `awaitTermination`, of a job."""
        return self.awaitTermination(timeout_seconds)

    def stop(self) -> None:
        """It has stopped."""

    def processAllAvailable(self) -> None:
        """Nothing is left."""

    def __enter__(self) -> EndedQuery:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by Python itself
            raise AttributeError(name)
        raise _Ended(_line(self._keeper.path), name)


def review_program(path: Path, conf: dict[str, str], words: list[str] | None = None) -> Review:
    """Run a program, and keep the queries that it would have started.

    conf:   settings of the deploy, which stand over those of the program
    words:  the program's arguments
    """
    with importing_pyspark():
        import pyspark  # noqa: F401 - a program needs it
    review, path = Review(), path.resolve()
    with tempfile.TemporaryDirectory(prefix="millpond-") as scratch, _replaced(path, conf, review, scratch) as keeper:
        before = sys.argv, list(sys.path), set(sys.modules)
        sys.argv, sys.path[0:0] = [str(path), *(words or [])], [str(path.parent)]
        try:
            runpy.run_path(str(path), run_name="__main__")
        except _Ended as ended:
            review.ended = _sentence(ended, path, {query.line for query in review.queries})
        except SystemExit as asked:
            # A program that has waited for its queries may say that one has ended.
            if asked.code not in (None, 0) and not keeper.waited:
                review.error = f"{path.name} ended with {asked.code!r:.300}"
        except BaseException as error:  # noqa: BLE001 - it is the program's own
            review.error = _described(error, path)
        finally:
            sys.argv, sys.path[:] = before[0], before[1]
            for name in set(sys.modules) - before[2]:
                file = getattr(sys.modules[name], "__file__", None)
                if file is not None and Path(file).is_relative_to(path.parent):
                    del sys.modules[name]
    return review


def _sentence(ended: _Ended, path: Path, known: set[int | None]) -> str | None:
    """What a program asked for that ended it; None if it only waits, and no text after that starts another query.

    known:  the lines of its queries
    """
    if ended.name == _WAITS:
        asks = "waits for queries again and again"
        nodes = ast.walk(ast.parse(path.read_bytes()))
        starts = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr in _STARTS and node.lineno > (ended.line or 0)
        ]
        if all(any(line in known for line in lines) for lines in starts):
            return None
    else:
        asks = f"asks for `{ended.name}`, which only a running query has"
    return f"{path.name}{'' if ended.line is None else f', line {ended.line}'}: it {asks}: later queries weren't looked at."


def _described(error: BaseException, path: Path) -> str:
    """The error's first line, and the program's line that raised it."""
    line = next(
        (frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == str(path)), None
    )
    text = spark_error(error).message if isinstance(error, Exception) else str(error)
    return f"{path.name}{'' if line is None else f', line {line}'}: {type(error).__name__}: {text:.300}"


@contextmanager
def _replaced(path: Path, conf: dict[str, str], review: Review, scratch: str) -> Iterator[_Keeper]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQueryManager

    keeper = _Keeper(path, conf, review)
    sources = Sources(scratch, review.notes)
    began, got = SparkContext.__init__, SparkSession.Builder.getOrCreate
    loads = DataStreamReader.load

    def begin(context: Any, *given: Any, **named: Any) -> None:  # 1
        keeper.see_context(given, named)
        began(context, *given, **named)

    def get(builder: Any) -> Any:
        return keeper.session(builder, got)

    active = SparkSession._activeSession
    with ExitStack() as stack:
        stack.callback(setattr, SparkSession, "_activeSession", active)

        def put(owner: Any, name: str, value: Any) -> None:
            own = vars(owner)
            stack.callback(*((setattr, owner, name, own[name]) if name in own else (delattr, owner, name)))
            setattr(owner, name, value)

        put(SparkContext, "__init__", begin)
        put(SparkSession.Builder, "getOrCreate", get)
        put(SparkSession, "stop", lambda _session: None)
        put(SparkContext, "stop", lambda _context: None)
        put_writes(put, lambda subject: keeper.note(f"{subject}{_at(_line(path))} wasn't run."))  # 2
        put(StreamingQueryManager, "awaitAnyTermination", lambda _manager, *_given, **_named: keeper.wait())
        _put_reader(put, DataStreamReader, sources, loads)
        put(DataStreamWriter, "start", lambda writer, *given, **named: keeper.start(writer, *given, **named))
        put(DataStreamWriter, "toTable", lambda writer, *given, **named: keeper.to_table(writer, *given, **named))
        batches = DataStreamWriter.foreachBatch

        def for_each_batch(writer: Any, func: Callable[..., Any]) -> Any:
            made = batches(writer, func)
            made._millpond_function = func
            return made

        put(DataStreamWriter, "foreachBatch", for_each_batch)
        stack.enter_context(reviewed_by(keeper))
        yield keeper


def _put_reader(put: Callable[[Any, str, Any], None], reader_class: Any, sources: Sources, loads: Callable[..., Any]) -> None:
    """Remember what a reader was asked for, so that its source can be replaced."""

    def remember(name: str, key: Callable[[Any], str]) -> Callable[..., Any]:
        original = getattr(reader_class, name)

        def call(reader: Any, *given: Any, **named: Any) -> Any:
            kept = reader.__dict__.setdefault("_millpond", {"options": {}})
            values = [*given, *named.values()]
            if name == "option" and len(values) == 2:
                kept["options"][str(values[0]).lower()] = values[1]
            elif name == "options":
                kept["options"].update({k.lower(): v for k, v in named.items()})
            elif values:
                kept[key(None)] = values[0]
            return original(reader, *given, **named)

        return call

    for name in ("format", "schema", "option", "options"):
        put(reader_class, name, remember(name, lambda _none, name=name: name))  # type: ignore[misc]

    def load(reader: Any, path: Any = None, format: Any = None, schema: Any = None, **options: Any) -> Any:
        if format is not None:
            reader.format(format)
        if schema is not None:
            reader.schema(schema)
        if options:
            reader.options(**options)
        return sources.load(reader, lambda: loads(reader, path))

    put(reader_class, "load", load)
    for name in ("json", "csv", "parquet", "orc", "text", "xml"):
        original = getattr(reader_class, name, None)
        if original is None:
            continue

        def shorthand(reader: Any, *given: Any, name: str = name, original: Callable[..., Any] = original, **named: Any) -> Any:
            kept = reader.__dict__.setdefault("_millpond", {"options": {}})
            kept["format"] = name
            if named.get("schema") is not None:
                kept["schema"] = named["schema"]
            return sources.load(reader, lambda: original(reader, *given, **named))

        put(reader_class, name, shorthand)


class _Keeper:
    """Keeps the queries of a program."""

    def __init__(self, path: Path, conf: dict[str, str], review: Review) -> None:
        self.path, self._conf, self._review = path, conf, review
        self._settings: dict[str, str] = {}
        self.waited: set[int | None] = set()  # the lines that wait for any query, and None for one query
        if "spark.master" in conf:
            review.master = conf["spark.master"]

    def see_context(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Let a context run on this machine, wherever it would."""
        from pyspark import SparkConf

        asked = named.get("conf") or next((each for each in given if isinstance(each, SparkConf)), None)
        master = named.get("master") or (given[0] if given and isinstance(given[0], str) else None)
        if asked is not None:
            self._see(dict(asked.getAll()))
            asked.set("spark.master", _MASTER)
        if master is not None:
            self._see({"spark.master": master})
            if named.get("master"):
                named["master"] = _MASTER

    def session(self, builder: Any, get: Callable[[Any], Any]) -> Any:
        """A session of its own, with the settings that the program and the deploy name."""
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        options = {**{k: str(v) for k, v in builder._options.items()}, **self._conf}
        self._see(options)
        before = dict(builder._options)
        active = SparkSession._instantiatedSession
        if active is not None and active._sc._jsc is not None:
            made = active.newSession()
            for name, value in options.items():
                if name.startswith("spark.sql."):
                    with suppress(PySparkException):  # a setting of the whole JVM
                        made.conf.set(name, value)
            SparkSession._activeSession = made
            return made
        builder._options = {**options, "spark.master": _MASTER, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
        try:
            return get(builder)
        finally:
            builder._options = before

    def _see(self, options: dict[str, str]) -> None:
        if self._review.master is None and "spark.master" in options:
            self._review.master = options["spark.master"]
        if _FILE_SYSTEM in options:
            self._settings[_FILE_SYSTEM] = options[_FILE_SYSTEM]

    def start(self, writer: Any, path: Any = None, format: Any = None, outputMode: Any = None, partitionBy: Any = None,
              queryName: Any = None, **options: Any) -> EndedQuery:  # fmt: skip
        """In place of `DataStreamWriter.start`."""
        del path, partitionBy
        writer.options(**options)
        for value, setter in ((format, writer.format), (outputMode, writer.outputMode), (queryName, writer.queryName)):
            if value is not None:
                setter(value)
        return self._keep(writer)

    def to_table(self, writer: Any, tableName: str, format: Any = None, outputMode: Any = None, partitionBy: Any = None,
                 queryName: Any = None, **options: Any) -> EndedQuery:  # fmt: skip
        """In place of `DataStreamWriter.toTable`."""
        del tableName
        return self.start(writer, None, format, outputMode, partitionBy, queryName, **options)

    def wait(self) -> bool:
        """In place of waiting for any query: one has ended; whoever waits there once more does so for ever."""
        line = _line(self.path) or 0
        if line in self.waited:
            raise _Ended(line, _WAITS)
        self.waited.add(line)
        return True

    def note(self, sentence: str) -> None:
        """Add a note, once."""
        if sentence not in self._review.notes:
            self._review.notes.append(sentence)

    def start_job(self, df: Any, folder: JobFolder, *, trigger: str | None, output_mode: str, sink: Any) -> Any:
        """In place of starting a job of Millpond."""
        from millpond.spark.start import with_sink, with_trigger

        writer = with_trigger(with_sink(df.writeStream.queryName(folder.job).outputMode(output_mode), sink), trigger)
        return self._keep(writer.option("checkpointLocation", hadoop_uri(folder.checkpoint)))

    def start_aggregate(self, job: str) -> Any:
        """In place of starting the job of a declared aggregate."""
        from pyspark.sql import SparkSession

        self.note(f"The declared aggregate {job}{_at(_line(self.path))} wasn't looked at: its retention bounds it.")
        self._review.declared += 1
        return EndedQuery(job, self, SparkSession._instantiatedSession)

    def _keep(self, writer: Any) -> EndedQuery:
        jwriter, df = writer._jwrite, writer._df
        fields = _fields(jwriter)
        spark, line = df.sparkSession, _line(self.path)
        analyzed = df._jdf.queryExecution().analyzed()
        options = fields["extraOptions"]
        mode = str(fields["outputMode"].toString()).lower()
        name = _text(options.get("queryName")) or f"query {len(self._review.queries) + 1}"
        batches = getattr(writer, "_millpond_function", None)
        interval = _TRIGGER_MS.fullmatch(str(fields["trigger"].toString()))
        settings = {key: str(value) for key in _SETTINGS if (value := _setting(spark, key)) is not None}
        if settings.get(_PROVIDER, "").endswith(_ROCKSDB):
            settings[_CHANGE_LOG] = str(_has_change_log(spark)).lower()
        self._review.queries.append(
            Query(
                name=name,
                line=line,
                output_mode=mode,
                trigger_ms=int(interval[1]) if interval is not None else None,
                sink=str(fields["source"]),
                function=None if batches is None else read_batch_function(batches, str(self.path)),
                checkpoint=_text(options.get("checkpointLocation")) or settings.get(_SETTINGS[0]),
                conf=settings | self._settings,
                operators=tuple(read_operators(spark._jsparkSession, spark._jvm, analyzed, mode)),
                watermarks=watermarks_of(analyzed),
            )
        )
        return EndedQuery(name, self, spark)


def _fields(thing: Any) -> dict[str, Any]:
    """The private fields of a writer in the JVM: Spark shows them nowhere else."""
    found = {}
    for each in thing.getClass().getDeclaredFields():
        each.setAccessible(True)
        found[str(each.getName())] = each.get(thing)
    return found


def _setting(spark: Any, name: str) -> Any:
    """A setting or its default; None if it has neither."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name)
    except PySparkException:
        return None


def _has_change_log(spark: Any) -> bool:
    """Whether RocksDB would write a change log, by Spark's own reading of the session's settings."""
    state = spark._jvm.org.apache.spark.sql.execution.streaming.state
    conf = state.StateStoreConf(spark._jsparkSession.sessionState().conf(), scala_map(spark._jvm, []))
    return bool(state.RocksDBConf.apply(conf).enableChangelogCheckpointing())


def _text(option: Any) -> str | None:
    return str(option.get()) if option.isDefined() else None


def _line(path: Path) -> int | None:
    """The program's own line that is running."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == str(path):
            return int(frame.f_lineno)
        frame = frame.f_back
    return None


def _at(line: int | None) -> str:
    return "" if line is None else f" at line {line}"
