"""The input of a stream once more, as a batch DataFrame whose rows say where they come from.

1. In place of each streaming source the plan gets a batch relation over exactly the files or
   records that are asked for, with one column more: which source, file or partition, and offset.
2. Every projection above passes that column on.  So filters, columns and user's functions stay as
   they are, and each row that comes out names the record that it was made of.

Rejected: a DataFrame for each part, with the part's name as a literal.  Its plan grows with the
number of files, and input_file_name() is wrong above a Python function.

Source:  FileStreamSource.getBatch, MicroBatchExecution.runBatch, Spark 4.3.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from millpond.errors import CheckpointError, RequestError
from millpond.spark.audit.steps import Part
from millpond.spark.derive.plan import Java, class_name, elements, every_node, require_classic, stateful_nodes
from millpond.spark.past.source import first_offset
from millpond.spark.shards import quoted
from millpond.storage.names import hadoop_uri, is_local_uri, local_uri, path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART = "__millpond_part"
SOURCE, NAME, OFFSET = "source", "name", "offset"
_KAFKA = "kafka"
# How a stream is read, and where a batch begins and ends: not what its records are.
_NOT_OF_RECORDS = ("path", "startingoffsets", "endingoffsets", "subscribe", "subscribepattern", "assign", "failondataloss")
_STARTS = ("startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp")
_UNKNOWN_TOPIC = ("UnknownTopicOrPartition", "This server does not host this topic-partition")
_GONE = ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")


class Input:
    """What a stream reads.

    source:  the streaming DataFrame of a job, without state of its own
    Raises:  UNSUPPORTED for other sources than files and Kafka, and for a stream with state;
             SPARK_CONNECT.
    """

    def __init__(self, source: DataFrame) -> None:
        require_classic(source, "_jdf")
        self._source, self._spark = source, source.sparkSession
        self._jvm = self._spark._jvm
        self._plan = source._jdf.queryExecution().analyzed()
        if next(stateful_nodes(self._plan, append=True), None) is not None:
            raise _unsupported("it has state of its own, such as duplicates that it drops", "Let the aggregate do it: dedupe=….")
        self._leaves: list[Java] = []
        for leaf in elements(self._plan.collectLeaves()):
            if leaf.isStreaming() and not any(leaf.equals(known) for known in self._leaves):
                self._leaves.append(leaf)
        for leaf in self._leaves:
            if class_name(leaf) != "StreamingRelation" and not _is_kafka(leaf):
                raise _unsupported(f"it reads {leaf.sourceName()}", "Aggregates of files and of Kafka can be audited.")

    def read(self, parts: Iterable[Part]) -> DataFrame:
        """The rows that the stream makes of some parts, with the column PART.

        Raises:  INPUT_GONE if files or records aren't there any more; UNSUPPORTED if an operator doesn't pass
                 columns on.
        """
        of_source: list[list[Part]] = [[] for _ in self._leaves]
        for part in parts:
            if part.source >= len(of_source):
                raise _unsupported(
                    f"the checkpoint has a source {part.source}, and the stream reads {len(of_source)}",
                    "Name the job's own source.",
                )
            of_source[part.source].append(part)
        tagged = [
            (leaf, *self._relation(leaf, number, each))
            for number, (leaf, each) in enumerate(zip(self._leaves, of_source, strict=True))
        ]
        plan, tag = self._rebuilt(self._plan, tagged)
        if tag is None or not any(a.exprId().equals(tag.exprId()) for a in elements(plan.output())):
            lost = next((class_name(n) for n in every_node(self._plan) if class_name(n) not in _PASSING), "an operator")
            raise _unsupported(f"its rows can't be followed through {lost}", "Make its columns by functions of columns.")
        return self._as_frame(plan)

    def raw(self, source: int, parts: Iterable[Part]) -> DataFrame:
        """The records of some parts as the source itself gives them, with the column PART.  Raises as `read`."""
        return self._tagged(self._leaves[source], source, list(parts))

    def may_be_compacted(self, part: Part) -> bool:
        """Whether the topic of a part loses records within its offsets; also if the broker doesn't say so."""
        from py4j.protocol import Py4JError

        topic = part.name.rpartition(":")[0]
        given = dict(self._leaves[part.source].extraOptions().asCaseSensitiveMap())
        options = self._jvm.java.util.HashMap()
        for key, value in given.items():
            if str(key).lower().startswith("kafka."):
                options.put(str(key)[len("kafka.") :], value)
        try:
            kafka = self._jvm.org.apache.kafka
            resource = kafka.common.config.ConfigResource(
                getattr(kafka.common.config, "ConfigResource$Type").valueOf("TOPIC"), topic
            )
            admin = kafka.clients.admin.AdminClient.create(options)
            try:
                found = admin.describeConfigs(self._jvm.java.util.List.of(resource)).all().get().get(resource)
                return "compact" in str(found.get("cleanup.policy").value())
            finally:
                admin.close()
        except (Py4JError, TypeError):  # it may not be allowed to ask
            return True

    def _relation(self, leaf: Java, number: int, parts: list[Part]) -> tuple[Java, Java]:
        """A batch relation with the columns of a leaf and one more, and that column."""
        child = self._tagged(leaf, number, parts)._jdf.queryExecution().analyzed()
        *columns, tag = elements(child.output())
        named = [self._alias(new, old) for new, old in zip(columns, elements(leaf.output()), strict=True)]
        return self._project([*named, tag], child), tag

    def _tagged(self, leaf: Java, number: int, parts: list[Part]) -> DataFrame:
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as sf

        names = [str(a.name()) for a in elements(leaf.output())]
        try:
            rows, name, offset = self._records(leaf, parts) if _is_kafka(leaf) else self._files(leaf, parts)
        except AnalysisException as error:
            if error.getCondition() not in _GONE:
                raise
            said = str(error).partition("\n")[0]
            raise input_gone(f"A file that the job has read isn't there any more: {said:.300}") from error
        tag = sf.struct(sf.lit(number).alias(SOURCE), name.alias(NAME), offset.alias(OFFSET)).alias(PART)
        return rows.select(*map(quoted, names), tag)

    def _files(self, leaf: Java, parts: list[Part]) -> tuple[DataFrame, Any, Any]:
        from pyspark.sql import functions as sf
        from pyspark.sql.types import StructType

        source = leaf.dataSource()
        given = {str(k): str(v) for k, v in self._options(source.options()).items()}
        options = {key: value for key, value in given.items() if key.lower() not in _NOT_OF_RECORDS}
        path = next((value for key, value in given.items() if key.lower() == "path"), None)
        if path is not None and not any(letter in path for letter in "*?[{"):
            options.setdefault("basePath", path)  # of folders that are columns
        fields = [f for f in StructType.fromJson(json.loads(leaf.schema().json())).fields if f.name != "_metadata"]
        reader = self._spark.read.format(str(source.className())).options(**options).option("__globPaths__", "false")
        paths = sorted({_hadoop_path(part.name) for part in parts})
        if not paths:
            rows = self._spark.createDataFrame([], StructType.fromJson(json.loads(leaf.schema().json())))
            return rows, sf.lit(""), sf.lit(None).cast("bigint")
        rows = reader.schema(StructType(fields)).load(paths)
        # The log of a file source has file:///x where a file's own metadata has file:/x.
        return rows, sf.regexp_replace("_metadata.file_path", "^file:/+", "file:///"), sf.lit(None).cast("bigint")

    def _records(self, leaf: Java, parts: list[Part]) -> tuple[DataFrame, Any, Any]:
        from pyspark.sql import functions as sf
        from pyspark.sql.types import StructType

        given = {str(k): str(v) for k, v in dict(leaf.extraOptions().asCaseSensitiveMap()).items()}
        options = {key: value for key, value in given.items() if key.lower() not in (*_NOT_OF_RECORDS, *_STARTS)}
        if not parts:
            empty = self._spark.createDataFrame([], StructType.fromJson(json.loads(leaf.schema().json())))
            return empty, sf.lit(""), sf.lit(None).cast("bigint")
        self._check_there(leaf, parts)
        starts, ends = _by_topic(parts, min, "first"), _by_topic(parts, max, "end")
        reader = self._spark.read.format(_KAFKA).options(**options).option("failOnDataLoss", "true")
        reader = reader.option("assign", json.dumps({topic: sorted(map(int, each)) for topic, each in starts.items()}))
        rows = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends)).load()
        return rows, sf.concat_ws(":", "topic", "partition"), sf.col("offset")

    def _check_there(self, leaf: Java, parts: list[Part]) -> None:
        """Raise INPUT_GONE if a topic no longer has all offsets of some parts; INVALID_REQUEST if it can't be reached."""
        (earliest, latest) = (self._offsets(leaf, which) for which in ("earliest", "latest"))
        for part in parts:
            topic, _, partition = part.name.rpartition(":")
            first, end = (ends.get(topic, {}).get(partition) for ends in (earliest, latest))
            if first is None or end is None:
                raise input_gone(f"The job has read {part.words()}, and there is no partition {part.name} any more")
            if part.first is not None and part.first < first:
                raise input_gone(f"The job has read {part.words()}, and the oldest offset that {part.name} still has is {first}")
            if part.end is not None and part.end > end:
                raise input_gone(
                    f"The job has read {part.words()}, and {part.name} ends before offset {end}: "
                    "the topic was made anew, or has lost records"
                )

    def _offsets(self, leaf: Java, which: str) -> dict[str, dict[str, int]]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        # Kafka's source looks for the session of its thread.
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        with tempfile.TemporaryDirectory(prefix="millpond-audit-") as folder:
            try:
                found = json.loads(first_offset(self._jvm, leaf, hadoop_uri(local_uri(folder)), which))
            except (Py4JError, PySparkException) as broken:
                lines = [line.strip() for line in str(getattr(broken, "java_exception", broken)).splitlines() if line.strip()]
                if any(name in line for line in lines[:1] for name in _UNKNOWN_TOPIC):
                    return {}
                said = lines[0] if lines else type(broken).__name__
                raise RequestError(
                    "INVALID_REQUEST",
                    f"Kafka doesn't say which offsets it has: {said:.500}",
                    hint="Mend the source's options, or make sure that the broker can be reached.",
                ) from broken
        return {topic: {str(partition): int(at) for partition, at in each.items()} for topic, each in found.items()}

    def _options(self, scala: Java) -> dict[str, str]:
        return dict(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala))

    def _rebuilt(self, node: Java, tagged: list[tuple[Java, Java, Java]]) -> tuple[Java, Java | None]:  # 2
        """A plan with the relations in it, and the column that it passes on."""
        for leaf, relation, tag in tagged:
            if node.equals(leaf):
                return relation, tag
        children = elements(node.children())
        made = [self._rebuilt(child, tagged) for child in children]
        tags = [tag for _, tag in made if tag is not None]
        if not tags:
            return node, None
        new = node.withNewChildren(self._seq([child for child, _ in made]))
        if class_name(node) == "Project":
            new = self._project([*elements(node.projectList()), tags[0]], made[0][0])
        elif class_name(node) == "Union" and len(tags) != len(children):
            return new, None
        return new, tags[0]

    def _alias(self, new: Java, old: Java) -> Java:
        jvm = self._jvm
        none = jvm.scala.Option.empty()
        nothing = self._seq([])
        return jvm.org.apache.spark.sql.catalyst.expressions.Alias(new, old.name(), old.exprId(), nothing, none, nothing)

    def _project(self, columns: list[Java], child: Java) -> Java:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self._seq(columns), child)

    def _seq(self, things: list[Java]) -> Java:
        java = self._jvm.java.util.ArrayList()
        for thing in things:
            java.add(thing)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(java)

    def _as_frame(self, plan: Java) -> DataFrame:
        from pyspark.sql import DataFrame

        made = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._spark._jsparkSession, plan)
        return DataFrame(made, self._spark)


# Of these the output has the columns of the children, or columns can be added.
_PASSING = frozenset(
    {"Project", "Filter", "SubqueryAlias", "Union", "Generate", "Join", "StreamingRelation", "StreamingRelationV2"}
)


def file_name(part: Part) -> str:
    """The name of a part as rows have it."""
    if part.end is not None or not part.name.startswith("file:"):
        return part.name
    return "file:///" + part.name.removeprefix("file:").lstrip("/")


def input_gone(found: str) -> CheckpointError:
    """The error of a source that has lost what the job has read."""
    return CheckpointError(
        "INPUT_GONE", f"It can't be audited. {found}.", hint="Name later batches, whose input is still there: --since BATCH."
    )


def _by_topic(parts: list[Part], choose: Any, which: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        topic, _, partition = part.name.rpartition(":")
        offset = getattr(part, which)
        there = found.setdefault(topic, {})
        there[partition] = choose(there.get(partition, offset), offset)
    return found


def _is_kafka(leaf: Java) -> bool:
    return class_name(leaf) == "StreamingRelationV2" and str(leaf.sourceName()) == _KAFKA


def _hadoop_path(uri: str) -> str:
    return f"file://{path_of(uri)}" if is_local_uri(uri) else unquote(uri)


def _unsupported(why: str, hint: str) -> CheckpointError:
    return CheckpointError("UNSUPPORTED", f"The input of the stream can't be read once more: {why}.", hint=hint)
