"""Where a stream goes on after its past: the offset of its source, and the source's own files in the checkpoint.

Spark's own source finds both, as at the first start of a job.

1. A source of Spark's newer interface (Kafka, rate, Python's) gives its initial offset.  For Kafka
   this follows `startingOffsets`, and has a number for each partition.
2. A source of files writes its log of all files that are there; the log keeps those that the past
   has.  A second source over that log says which files it would read next.
3. Any other source has no position before its first batch, and is refused.

Source:  MicroBatchExecution.logicalPlan, FileStreamSource, KafkaMicroBatchStream, Spark 4.3.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from millpond.errors import CheckpointError, RequestError
from millpond.spark.derive.plan import Java, class_name, streaming_leaves
from millpond.storage.names import hadoop_uri, is_local_uri, local_uri, path_of, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KAFKA = "kafka"
# Kafka's options for where a stream begins; the first that is there counts.
_KAFKA_STARTS = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
_SHOWN = 3
_PREFIX = "millpond-source-"
_FIRST = "0"
"""the log's first entry"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where the stream goes on.

    offset:    Spark's JSON of the source's offset; None if the source has read nothing yet
    files:     the source's own files in the checkpoint, by name
    goes_on:   the same for people
    skipped:   files that neither the past has nor the stream will read, since Spark finds them too old
    """

    offset: str | None
    files: dict[str, bytes] = field(repr=False)
    goes_on: str
    skipped: tuple[str, ...] = ()


def find_beginning(source: DataFrame, past: DataFrame, *, offsets: str | None, covered: Sequence[str] | None) -> Beginning:
    """Where a stream goes on after its past.

    source:   the stream as the job reads it
    past:     the rows before it
    offsets:  for Kafka, in place of its startingOffsets
    covered:  for files, paths and patterns of those that the past has; None for those of which it
              was read
    Raises:   INVALID_REQUEST, also if the source can't be reached; UNSUPPORTED.
    """
    spark = source.sparkSession
    relation = single_source(source)
    # Kafka's source looks for the session of its thread.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    if class_name(relation) == "StreamingRelationV2":
        if covered is not None:
            raise invalid("the source doesn't read files, so no file of it is covered", "Leave that out.")
        return _initial_offset(spark._jvm, relation, offsets)
    if offsets is not None:
        raise _not_kafka()
    return _covered_files(spark._jvm, relation, past, covered)


def single_source(stream: DataFrame) -> Java:
    """The only source of a stream.

    Raises:  INVALID_REQUEST if it is no stream; UNSUPPORTED if it reads several sources.
    """
    if not stream.isStreaming:
        raise invalid("the source isn't a stream", "Read it with spark.readStream.")
    leaves = streaming_leaves(stream._jdf.queryExecution().analyzed())
    if len(leaves) != 1:
        raise CheckpointError(
            "UNSUPPORTED",
            f"The state can't be written: the job reads {len(leaves)} streams, and a past is that of one.",
            hint="Start this job without a past.",
        )
    return leaves[0]


def _initial_offset(jvm: Java, relation: Java, offsets: str | None) -> Beginning:  # 1
    name = str(relation.sourceName())
    if offsets is not None and name != _KAFKA:
        raise _not_kafka()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        offset = _spark_says(name, lambda place: first_offset(jvm, relation, place, offsets), folder)
        return Beginning(offset=offset, files=_read(folder), goes_on=f"at {offset} of {name}")


def first_offset(jvm: Java, relation: Java, place: str, offsets: str | None = None) -> str:
    """Where a stream of Spark's newer interface begins, as JSON.

    place:    a folder for the source's own files
    offsets:  for Kafka, in place of its startingOffsets
    Raises:   what py4j raises if the source can't be reached.
    """
    options = relation.extraOptions()
    if offsets is not None:
        changed = jvm.java.util.HashMap(options.asCaseSensitiveMap())
        for key in [key for key in changed if key.lower() in _KAFKA_STARTS]:
            changed.remove(key)
        changed.put("startingOffsets", offsets)
        options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(changed)
    stream = relation.table().newScanBuilder(options).build().toMicroBatchStream(place)
    try:
        return str(stream.initialOffset().json())
    finally:
        stream.stop()


def _covered_files(jvm: Java, relation: Java, past: DataFrame, covered: Sequence[str] | None) -> Beginning:  # 2
    name = str(relation.sourceName())
    everything = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def list_files(place: str) -> None:
        source = relation.dataSource().createSource(place)
        try:
            if class_name(source) != "FileStreamSource":
                raise CheckpointError(
                    "UNSUPPORTED",
                    f"The state can't be written: a source of the kind {class_name(source)} has no offset before its first batch.",
                    hint="Use Kafka, files, or another source of Spark's DataSource V2.",
                )
            source.latestOffset(None, everything)
        finally:
            source.stop()

    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        _spark_says(name, list_files, folder)
        log = _read(folder).get(_FIRST, b"v1").split(b"\n")
    entries = {json.loads(line)["path"]: line for line in log[1:]}
    known = _of_patterns(covered, list(entries)) if covered is not None else _of_past(past, list(entries))
    of_past = [line for path, line in entries.items() if path in known]
    mine = {_FIRST: b"\n".join([log[0], *of_past])} if of_past else {}
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        for number, text in mine.items():
            _own(folder).mkdir(parents=True)
            (_own(folder) / number).write_bytes(text)
        _spark_says(name, list_files, folder)
        following = _read(folder).get("1" if of_past else _FIRST, b"v1").split(b"\n")[1:]
    left = [path for path in entries if path not in known]
    read = {json.loads(line)["path"] for line in following}
    return Beginning(
        offset=json.dumps({"logOffset": 0}, separators=(",", ":")) if of_past else None,
        files=mine,
        goes_on=f"with {_files(left)}; the past has {len(of_past):,} of the {len(entries):,} files that are there",
        skipped=tuple(path for path in left if path not in read),
    )


def _of_past(past: DataFrame, paths: list[str]) -> set[str]:
    """The source's files of which the past was read."""
    read = {_plain(uri) for uri in past.inputFiles()}
    return {path for path in paths if _plain(path) in read}


def _of_patterns(patterns: Sequence[str], paths: list[str]) -> set[str]:
    """The source's files that match; `*` matches slashes too.  Raises INVALID_REQUEST for a pattern without a file."""
    found: set[str] = set()
    for pattern in patterns:
        wanted = hadoop_uri(pattern) if scheme_of(pattern) and not is_local_uri(pattern) else _local(pattern)
        mine = {path for path in paths if _plain(path) == wanted or fnmatchcase(_plain(path), wanted)}
        if not mine:
            raise invalid(f"the source has no file {pattern!r:.200}", "Name files that the source reads, or leave that out.")
        found |= mine
    return found


def _local(path: str) -> str:
    return path_of(path) if is_local_uri(path) else os.path.abspath(path)


def _plain(uri: str) -> str:
    """A file's place without escapes: as a path, or as a URI of an object store."""
    return path_of(uri) if is_local_uri(uri) else unquote(uri)


def _files(paths: list[str]) -> str:
    if not paths:
        return "new files"
    names = ", ".join(_plain(path).rpartition("/")[2] for path in paths[:_SHOWN]) + (", …" if paths[_SHOWN:] else "")
    return f"{len(paths):,} files ({names}) and new ones"


def _own(folder: str) -> Path:
    """The folder of a source's own files in a checkpoint."""
    return Path(folder, "sources", "0")


def _read(folder: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in _own(folder).glob("[!.]*")}


def _spark_says(name: str, question: Callable[[str], Any], folder: str) -> Any:
    """What Spark's source answers, which keeps its own files below a folder.  Raises INVALID_REQUEST with its reason."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return question(hadoop_uri(local_uri(_own(folder))))
    except (Py4JError, PySparkException) as broken:
        lines = [line.strip() for line in str(getattr(broken, "java_exception", broken)).splitlines() if line.strip()]
        raise invalid(
            f"its source {name} doesn't say where it begins: {lines[0] if lines else type(broken).__name__:.500}",
            "Mend the source's options, or make sure that it can be reached.",
        ) from broken


def _not_kafka() -> RequestError:
    return invalid("only Kafka takes offsets to go on from", "Leave the offsets out; the source itself says where it begins.")


def invalid(found: str, hint: str) -> RequestError:
    """The error of a state that can't be written as it was wanted."""
    return RequestError("INVALID_REQUEST", f"The state can't be written: {found}.", hint=hint)
