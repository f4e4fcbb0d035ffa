"""Compares the sources of a query with those whose offsets a checkpoint has.

Spark numbers sources in the order of the query, and gives the offsets of source 0 to source 0.  It
compares only how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.checkpoint.log import CommittedBatch, read_offsets
from millpond.checkpoint.position import Batch
from millpond.checkpoint.source_files import logged_files
from millpond.spark.derive.plan import Java, class_name, elements
from millpond.spark.upgrade.finding import Finding
from millpond.storage import Storage, uri_of
from millpond.storage.fence import is_below
from millpond.storage.names import path_of_hadoop

_BY_NAME = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_ASSERTION = "java.lang.AssertionError"
_OTHER_FOLDER = "java.lang.IllegalArgumentException"
# Where a path's pattern begins.
_PATTERN = "*?[{"


@dataclass(frozen=True, slots=True)
class Source:
    """A streaming source of a query.

    kind:  its format
    path:  URI of the folder that it reads, up to a pattern; None if it reads no folder
    is_pattern: whether there is a pattern
    name:  by which Spark finds its offsets; None for its number
    """

    kind: str
    path: str | None
    is_pattern: bool
    name: str | None


def sources_of(analyzed: Java) -> list[Source]:
    """The sources of an analyzed plan, as Spark numbers them.

    Source:  MicroBatchExecution.logicalPlan, Spark 4.3: equal relations are one source.
    """
    distinct: list[Java] = []
    for leaf in elements(analyzed.collectLeaves()):
        if leaf.isStreaming() and not any(leaf.equals(known) for known in distinct):
            distinct.append(leaf)
    return [_source(leaf) for leaf in distinct]


def _source(leaf: Java) -> Source:
    name = None
    if class_name(leaf) in ("StreamingRelation", "StreamingRelationV2"):
        named = leaf.sourceIdentifyingName()
        name = str(named.name()) if class_name(named) == "UserProvided" else None
    if class_name(leaf) != "StreamingRelation":
        return Source(str(leaf.sourceName()) if class_name(leaf) == "StreamingRelationV2" else class_name(leaf), None, False, name)
    given = leaf.dataSource().options().get("path")
    path = str(given.get()) if given.isDefined() else None
    is_pattern = path is not None and any(letter in path for letter in _PATTERN)
    return Source(str(leaf.dataSource().className()), None if path is None else _folder(path), is_pattern, name)


def _folder(path: str) -> str:
    end = min((path.find(letter) for letter in _PATTERN if letter in path), default=len(path))
    whole = path if end == len(path) else path[:end].rpartition("/")[0] or "/"
    return uri_of(path_of_hadoop(whole) if ":/" in whole else whole)


def compare_sources(checkpoint: Storage, batch: CommittedBatch, conf: dict[str, str], sources: list[Source]) -> Iterator[Finding]:
    """What changes.

    conf:  the settings that Spark pinned
    """
    there = list(batch.offsets)
    if conf.get(_BY_NAME) == "true":
        yield from _by_name(there, sources)
        return
    if len(there) != len(sources):
        yield Finding(
            kind="refused",
            operator=None,
            what=f"There are {len(there)} sources in the checkpoint's offsets, and {len(sources)} in the query.",
            spark_error=_ASSERTION,
            hint="Restore the sources, or start it as a new job; the offsets would have to be rewritten.",
        )
        return
    every = [_folders_read(checkpoint, name, batch) for name in there]
    for place, ((read, last), source) in enumerate(zip(every, sources, strict=True)):
        if not read or (source.path is not None and _all_below(read, source.path)):
            continue
        if source.path is not None and not source.is_pattern and not _all_below(last, source.path):
            what = f"Source {place} has read {last[0]} in the last batch, and would read {source.path}."
            hint = "Spark looks for the last batch's files below the new folder.  Restore the folder, or start it as a new job."
            yield Finding(kind="refused", operator=None, what=what, spark_error=_OTHER_FOLDER, hint=hint)
            continue
        others = [n for n, s in enumerate(sources) if n != place and s.path is not None and _all_below(read, s.path)]
        if others:
            what = f"Source {place} has read {read[0]}, which source {others[0]} would read: sources have changed places."
            hint = "Restore their order: each would read the other's files once more."
            yield Finding(kind="silently_wrong", operator=None, what=what, hint=hint)
        elif source.path is None:
            what = f"Source {place} has read the folder {read[0]}, and would be of the kind {source.kind}."
            hint = "Start it as a new job: Spark can't read the offsets of another kind of source."
            yield Finding(kind="unknown", operator=None, what=what, hint=hint)
        else:
            what = f"Source {place} has read {read[0]}, and would read {source.path}: all of it, and nothing more of the other."
            hint = "Files that were moved from there are read once more."
            yield Finding(kind="noted", operator=None, what=what, hint=hint)


def _by_name(there: list[str], sources: list[Source]) -> Iterator[Finding]:
    wanted = [source.name or str(place) for place, source in enumerate(sources)]
    for name in wanted:
        if name not in there:
            yield Finding(kind="noted", operator=None, what=f"The source {name} is new: Spark reads all of it.")
    for name in there:
        if name not in wanted:
            yield Finding(kind="noted", operator=None, what=f"The source {name} is gone: Spark reads nothing more of it.")


def _folders_read(checkpoint: Storage, source: str, batch: CommittedBatch) -> tuple[list[str], list[str]]:
    """The folders whose files a file source has read, in all and in the last batch; empty for other sources."""
    upto = _log_offset(batch.offsets.get(source))
    if upto is None:
        return [], []
    before = read_offsets(checkpoint, Batch(batch.batch - 1)).get(source) if batch.batch else None
    read = {(uri_of(path_of_hadoop(path)).rpartition("/")[0], entry) for path, entry in logged_files(checkpoint, source, upto=upto)}
    begin = _log_offset(before)
    last = {folder for folder, entry in read if begin is None or entry > begin}
    return sorted({folder for folder, _ in read}), sorted(last)


def _log_offset(offset: object) -> int | None:
    """The entry of a file source's log up to which it has read."""
    if not isinstance(offset, dict) or set(offset) != {"logOffset"} or type(offset["logOffset"]) is not int:
        return None
    return offset["logOffset"]


def _all_below(folders: list[str], path: str) -> bool:
    return all(is_below(folder, path) for folder in folders)
