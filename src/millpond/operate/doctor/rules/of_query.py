"""Rules of how a query is started: its checkpoint, sink, trigger and settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from millpond.operate.doctor.rules.rule import CodeFacts, Found
from millpond.operate.units import seconds_text

# Sinks for trying things out, which keep nothing.
_TRIALS = frozenset({"memory", "console", "noop"})
_FUNCTIONS = frozenset({"foreach", "foreachBatch", "foreachbatch"})
_STATE = "spark.sql.streaming.stateStore."
_PROVIDER, _CHANGES = _STATE + "providerClass", _STATE + "rocksdb.changelogCheckpointing.enabled"
_RETAIN, _FILE_SYSTEM = "spark.sql.streaming.minBatchesToRetain", "spark.hadoop.fs.defaultFS"
# Spark makes a snapshot for every ten changes.
_FEWEST_BATCHES = 10
_TIMED = 5
_MOUNTS = Path("/proc/mounts")
_NETWORK = ("nfs", "cifs", "smb", "fuse", "gluster", "ceph", "lustre", "glusterfs", "9p", "beegfs", "gpfs")


def checkpoint_missing(facts: CodeFacts) -> Iterator[Found]:
    """No checkpointLocation: each start begins anew."""
    query = facts.query
    if query.checkpoint is not None or query.sink in _TRIALS:
        return
    temporary = query.sink in _FUNCTIONS
    yield Found(
        place=f"sink {query.sink}",
        evidence="Neither the query nor the session has a checkpointLocation"
        + (": Spark keeps offsets and state in a temporary folder." if temporary else ", without which Spark refuses this sink."),
        cost="all offsets and state at each restart" if temporary else "the query doesn't start",
        change='Add .option("checkpointLocation", …), a folder of its own in storage that all machines reach.',
    )


def checkpoint_local(facts: CodeFacts) -> Iterator[Found]:
    """A checkpoint on a disk of one machine, for a cluster."""
    master, checkpoint = facts.review.master, facts.query.checkpoint
    if master is None or master.startswith("local") or checkpoint is None:
        return
    default = facts.query.conf.get(_FILE_SYSTEM)
    parts = urlsplit(checkpoint)
    named = parts.scheme == "file" or (not parts.scheme and default is not None and urlsplit(default).scheme == "file")
    if not named or _is_network(parts.path):
        return
    yield Found(
        place="the checkpoint",
        evidence=f"The master is {master}, and the checkpoint {checkpoint} is a folder on each machine's own disk.",
        cost="all offsets and state, if the driver starts on another machine; executors write state that the driver can't find",
        change="Put it into storage that all machines reach: HDFS, a bucket, or a network file system.",
    )


def _is_network(path: str) -> bool:
    """Whether a path is on a file system of the network, on this machine."""
    try:
        mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return False
    above = [(len(place), kind) for place, kind in mounts if path == place or path.startswith(place.rstrip("/") + "/")]
    return max(above, default=(0, ""))[1].startswith(_NETWORK)


def sink_repeats(facts: CodeFacts) -> Iterator[Found]:
    """A foreachBatch that appends, and doesn't look at the batch's id."""
    function = facts.query.function
    if function is None or function.uses_batch_id or function.appends is None:
        return
    yield Found(
        place=f"foreachBatch({function.name})",
        evidence=f"{function.name} appends by {function.appends} and doesn't use the batch's id: Spark calls it again with the "
        "same batch after a failure.",
        cost="the rows of a batch once more at each restart in the middle of it",
        change="Write by the batch's id: overwrite a partition of it, merge by a key, or let the target remember the last id.",
        line=function.line,
    )


def trigger_short(facts: CodeFacts) -> Iterator[Found]:
    """Batches that take longer than the interval between them."""
    interval = facts.query.trigger_ms
    if not interval or facts.state is None or len(facts.state.batch_seconds) < _TIMED:
        return
    seconds = statistics.median(facts.state.batch_seconds)
    if seconds * 1000 <= interval:
        return
    yield Found(
        place="the trigger",
        evidence=f"The trigger is {seconds_text(interval / 1000)}, and half of the last {len(facts.state.batch_seconds)} batches "
        f"took {seconds_text(seconds)} or more.",
        cost=f"{seconds_text(seconds - interval / 1000)} a batch that the trigger doesn't keep",
        cost_ms=seconds * 1000 - interval,
        change="Choose a longer interval, which makes fewer and larger batches, or make batches quicker.",
    )


def snapshots_only(facts: CodeFacts) -> Iterator[Found]:
    """RocksDB without a change log."""
    conf = facts.query.conf
    if not facts.query.operators or not conf.get(_PROVIDER, "").endswith("RocksDBStateStoreProvider"):
        return
    if conf.get(_CHANGES, "").lower() != "false":
        return
    partitions = conf.get("spark.sql.shuffle.partitions", "?")
    yield Found(
        place="the state's provider",
        evidence=f"The provider is RocksDB, and {_CHANGES} is false.",
        cost=f"a snapshot of each of {partitions} partitions for each operator in every batch",
        change=f"Set {_CHANGES} to true.",
    )


def retention_short(facts: CodeFacts) -> Iterator[Found]:
    """A log of a few batches."""
    kept = facts.query.conf.get(_RETAIN, "")
    if not facts.query.operators or not kept.isdigit() or int(kept) >= _FEWEST_BATCHES:
        return
    interval = facts.query.trigger_ms
    window = None if not interval else int(kept) * interval
    yield Found(
        place="the checkpoint's log",
        evidence=f"{_RETAIN} is {kept}: Spark deletes older files"
        + ("." if window is None else f", which with this trigger is after {seconds_text(window / 1000)}."),
        cost="whoever is slower (a replica, an archive, a savepoint) begins anew",
        cost_ms=window,
        change=f"Leave {_RETAIN} at 100, its default.",
    )
