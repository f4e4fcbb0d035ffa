"""Every setting with its default and the reason for it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from millpond.errors import RequestError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"([0-9]{1,9})([smhd])")


def home() -> Path:
    """The folder of replicas: MILLPOND_HOME, else `millpond` in the user's cache folder.

    Deleting it is always safe.
    """
    named = os.environ.get("MILLPOND_HOME")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "millpond"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What a file of a checkpoint may cost a reader.

    unpacked_floor_bytes:  every file may unpack to this, however small it is: equal rows pack
                           without bound.
    unpacked_ratio:        above the floor, so many bytes for each byte of the file.  State packs 2
                           to 20 times.  LZ4 and LZF can't exceed 255; only zstd and zip can, but
                           then the file isn't state.
    clock_tolerance_ms:    the clocks of Spark's driver and of the storage may differ by so much
                           before a file counts as too old, or as copied.
    """

    unpacked_floor_bytes: int = 256 << 20
    unpacked_ratio: int = 1000
    clock_tolerance_ms: int = 10_000

    def max_unpacked_bytes(self, packed_bytes: int) -> int:
        """The most that a file of this size may unpack to."""
        return max(self.unpacked_floor_bytes, packed_bytes * self.unpacked_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """The most bytes that a file of a pond, a checkpoint or a replica may have, by its kind.

    A larger file is refused before it is read: somebody else may have put it there, and a sparse
    file costs nothing to make.

    note_bytes:        files of some hundred bytes: pond.json, job.json, heartbeat.json, a
                       checkpoint's `metadata`; of a replica `current`, `boot`, status.json,
                       closed.json
    definition_bytes:  a table's definition has some hundred bytes for each column and expression.
    hot_keys_bytes:    a list of hot groups has some hundred bytes for each of them, and they are
                       few.
    log_bytes:         offsets/N and commits/N have some 50 bytes for each partition of a source,
                       and of a state store.
    schema_bytes:      schema files and metadata of operators have some hundred bytes a column.
    state_bytes:       state files are read in pieces; Spark holds what lies in one of them in a
                       task's memory.
    snapshot_bytes:    a RocksDB snapshot's zip has a list of its SSTs and settings, some MiB at
                       most; the SSTs lie beside it.
    source_log_bytes:  a file source's compacted log has some 200 bytes for each file that was ever
                       read; it is read line by line.
    line_bytes:        one line of such a log: a path.
    model_bytes:       a model's file; ONNX itself allows 2 GiB.
    manifest_bytes:    a savepoint's manifest has some 150 bytes for each file.
    segment_bytes:     a replica's segments of expired rows end at 4 MiB; the last frame may
                       be large.
    samples_bytes:     an hour of a job's samples, of some hundred bytes for each and each operator
    """

    note_bytes: int = 64 << 10
    definition_bytes: int = 16 << 20
    hot_keys_bytes: int = 4 << 20
    log_bytes: int = 64 << 20
    schema_bytes: int = 16 << 20
    state_bytes: int = 64 << 30
    snapshot_bytes: int = 64 << 20
    source_log_bytes: int = 16 << 30
    line_bytes: int = 1 << 20
    model_bytes: int = 2 << 30
    manifest_bytes: int = 1 << 30
    segment_bytes: int = 1 << 30
    samples_bytes: int = 16 << 20

    def checksum_bytes(self, file_bytes: int) -> int:
        """The most bytes of the checksums beside a file: four for each 512, or a short JSON."""
        return self.note_bytes + file_bytes // 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreSettings:
    """Requests to an object store.

    request_seconds:   a request that receives nothing for so long has failed;
                       MILLPOND_REQUEST_SECONDS.  S3's slowest answers take a few seconds.  A whole
                       file may take longer.
    connect_seconds:   the same for a connection, which takes milliseconds or fails.
    whole_seconds:     no request may take longer than this, even if bytes still arrive.
    tries:             how often to make one request in all, if its failure may pass
    first_pause_seconds, last_pause_seconds: before the second try, doubled for each further one:
                                             0.1 + 0.2 + 0.4 + 0.8 s, each shortened at random by up
                                             to a half, so that many readers don't return at the
                                             same moment
    """

    request_seconds: float = 20.0
    connect_seconds: float = 5.0
    whole_seconds: float = 600.0
    tries: int = 5
    first_pause_seconds: float = 0.1
    last_pause_seconds: float = 2.0

    @classmethod
    def of_environment(cls) -> ObjectStoreSettings:
        """The defaults, with the values that the environment names."""
        named = os.environ.get("MILLPOND_REQUEST_SECONDS", "")
        try:
            seconds = float(named)
        except ValueError:
            return cls()
        return cls(request_seconds=seconds, connect_seconds=min(cls().connect_seconds, seconds)) if seconds > 0 else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The lease by which one job or command at a time writes a checkpoint.

    length_seconds:   a lease that isn't renewed for so long has run out; MILLPOND_LEASE_SECONDS.
                      After a crash of the machine, nobody else may go on before.  Shorter than a
                      supervisor takes to start the job elsewhere, longer than a collection of
                      garbage or a slow disk.
    renew_part:       it is renewed after this part of its length, so that a few failed tries do no
                      harm
    guard_part:       a fenced job ends its JVM after this part of its length without a renewal: the
                      rest is for clocks that differ, and for the end of the JVM
    dying_seconds:    how long to wait for the JVM of a program that has been killed on this machine
    """

    length_seconds: float = 20.0
    renew_part: float = 0.2
    guard_part: float = 0.75
    dying_seconds: float = 15.0

    @classmethod
    def of_environment(cls) -> LeaseSettings:
        """The defaults, with the length that the environment names."""
        try:
            seconds = float(os.environ.get("MILLPOND_LEASE_SECONDS", ""))
        except ValueError:
            return cls()
        return cls(length_seconds=seconds) if 1 <= seconds < float("inf") else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a replica keeps a table's expired rows and history.

    In words: `Retention.parse(keep_closed="24h", history="100")`.

    closed_seconds:   how long to keep expired rows, by the times of the job's batches; 0 keeps
                      none, None keeps them as long as the replica exists.  A day by default, since
                      people want windows when they are finished.
    closed_bytes:     the most bytes of expired rows to keep; the oldest go first
    history_batches:  how many batches' changes to keep; 0 keeps none, None sets no such limit.  0
                      by default, since each changed row costs a read and a second write.
    history_seconds:  how long to keep changes, from the start of their batch; None sets no such
                      limit
    """

    closed_seconds: float | None = 86_400.0
    closed_bytes: int = 1 << 30
    history_batches: int | None = 0
    history_seconds: float | None = None

    @property
    def keeps_closed(self) -> bool:
        """Whether expired rows are kept."""
        return self.closed_seconds is None or self.closed_seconds > 0

    @property
    def keeps_history(self) -> bool:
        """Whether changes are kept."""
        return self.history_batches != 0 and self.history_seconds != 0

    @classmethod
    def parse(cls, *, keep_closed: str | None = None, history: str | None = None) -> Retention:
        """A retention from words; a word that isn't given has its default.

        keep_closed:  how long to keep expired rows: 24h (or s, m, d), forever, no
        history:      which changes to keep: those of 100 batches ("100"), for a time (24h),
                      forever, no
        Raises:       INVALID_REQUEST.
        """
        return RetentionWords(keep_closed=keep_closed, history=history).over(cls())

    def words(self) -> str:
        """The retention in a sentence, for people."""
        closed = f"for {_length(self.closed_seconds)}, at most {self.closed_bytes:,} bytes" if self.keeps_closed else "no"
        limits = [f"of {self.history_batches} batches"] if self.history_batches is not None else []
        limits += [f"for {_length(self.history_seconds)}"] if self.history_seconds is not None or not limits else []
        return f"expired rows {closed}; changes {', '.join(limits) if self.keeps_history else 'no'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionWords:
    """The named parts of a table's retention, in the words of `Retention.parse`."""

    keep_closed: str | None = None
    history: str | None = None

    def over(self, before: Retention) -> Retention:
        """The retention with the named parts in place of its own.  Raises INVALID_REQUEST."""
        retention = before
        if self.keep_closed is not None:
            retention = replace(retention, closed_seconds=parse_length("keep_closed", self.keep_closed))
        if self.history is not None and re.fullmatch("[0-9]{1,9}", self.history):
            retention = replace(retention, history_batches=int(self.history), history_seconds=None)
        elif self.history is not None:
            retention = replace(retention, history_batches=None, history_seconds=parse_length("history", self.history))
        return retention


def parse_length(name: str, text: str) -> float | None:
    """The seconds of 30m, 24h or 7d; None for "forever", 0 for "no".  Raises INVALID_REQUEST."""
    if text in ("forever", "no"):
        return None if text == "forever" else 0.0
    found = _TIME.fullmatch(text)
    if found is None:
        raise RequestError(
            "INVALID_REQUEST", f"{name} is {text!r:.80}, which isn't a time.", hint="Write it like 30m, 24h, 7d, forever or no."
        )
    return float(int(found[1]) * _SECONDS[found[2]])


def _length(seconds: float | None) -> str:
    if seconds is None:
        return "ever"
    unit = next((u for u in "dhm" if seconds % _SECONDS[u] == 0 and seconds >= _SECONDS[u]), "s")
    return f"{seconds / _SECONDS[unit]:g}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """How a follower keeps a replica.

    map_size_bytes:        LMDB's address space, not its disk use.  It can't grow under open
                           transactions, so it is 1 TiB from the start (the file is sparse).
    max_readers:           LMDB's default of 126 is enough for only a few door processes with
                           threads; a slot costs 64 bytes.
    poll_seconds:          how often the follower asks for the next commit on a local disk if the
                           system didn't report the last one (a network file system).  5 ms adds 2.5
                           ms on average from commit to visible, and costs about 5 % of a core for
                           each job while batches arrive.
    idle_poll_seconds:     the same if the system did report it, and after `idle_after_seconds`
                           without a commit: after so long a wait 250 ms don't matter, and a server
                           of many quiet jobs costs next to nothing.
    remote_poll_seconds:   the shortest pause between two polls of an object store, each two
                           requests of a few tens of milliseconds.
    remote_idle_poll_seconds: the longest.  Between them a poll waits for `remote_patience` of the
                              time since the last commit: 0.1 adds 5 % on average to the time
                              between two commits, with any trigger.
    remote_reads:          how many change files of one batch to get from an object store at the
                           same time: at 20 to 50 ms each, they would take seconds one after the
                           other.
    build_reads:           how many partitions a build reads at the same time, in as many threads
    remote_build_reads:    the same from an object store; each needs memory for a packed file
    remote_lag_seconds:    a state file of a committed batch may be missing on an object store for
                           so long before it counts as gone.
    remote_heartbeat_seconds: how often a thread reads the jobs' heartbeats on an object store, one
                              request per job; they count as missed after ten seconds.
    remote_catalogue_seconds: the same for the list of jobs and their definitions, which rarely
                              change.
    remote_silence_seconds: after so long without a successful poll of an object store, that time
                            counts as `behind_seconds`.
    read_deadline_seconds: an open read keeps pages from reuse, so it must end by then.
    retention:             the retention of tables that have none of their own
    page_views:            how many batches stay readable for the next pages of scans while newer
                           ones are applied; beyond it, pages whose next one nobody asked for go
                           first.
    page_view_seconds:     how long each of them is kept, since it keeps pages from reuse as an open
                           read does.
    aside_bytes:           of the changes of batches that are put aside during a long build, since
                           Spark may delete them before they are applied
    rebuild_batch_rows:    rows per write transaction during a build.  It bounds the dirty pages in
                           memory, which in a large replica can be one of 4 KiB for each row: 40 MiB
                           (benchmarks/results/memory.json).
    """

    map_size_bytes: int = 1 << 40
    max_readers: int = 2048
    poll_seconds: float = 0.005
    idle_poll_seconds: float = 0.25
    idle_after_seconds: float = 10.0
    remote_poll_seconds: float = 0.25
    remote_idle_poll_seconds: float = 3.0
    remote_patience: float = 0.1
    remote_reads: int = 16
    build_reads: int = 2
    remote_build_reads: int = 8
    remote_lag_seconds: float = 5.0
    remote_heartbeat_seconds: float = 5.0
    remote_catalogue_seconds: float = 30.0
    remote_silence_seconds: float = 10.0
    read_deadline_seconds: float = 60.0
    page_views: int = 8
    page_view_seconds: float = 60.0
    aside_bytes: int = 4 << 30
    rebuild_batch_rows: int = 10_000
    retention: Retention = Retention()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a client asks a server.

    timeout_seconds:  a request that receives nothing for so long has failed; a bound's wait is
                      added to it
    tries:            how often to ask one question in all, if its failure may pass: a broken
                      connection, a server that is down or builds its replica, a client that asks
                      too often
    first_pause_seconds, last_pause_seconds: before the second try, doubled for each further one,
                                             each shortened at random by up to a half
    page_rows:        rows of one request of a scan; the server's own limit is 100,000
    """

    timeout_seconds: float = 30.0
    tries: int = 6
    first_pause_seconds: float = 0.1
    last_pause_seconds: float = 2.0
    page_rows: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """How several servers are asked that each follow a shard.

    client:           how one server is asked.  Its tries are rounds: in each, every server that has
                      the rows is asked once at most
    hedge_seconds:    a lookup that isn't answered after so long is asked of a second server as
                      well: far above what a lookup takes, so that few are asked twice.  Finding the
                      batch of a scan goes the same way
    rest_seconds:     a server that failed comes last for so long
    look_seconds:     a server that takes longer to say which tables it has counts as one that
                      doesn't answer, until the next look.  A server says that from memory
    common_batch_seconds:  the most time to find a batch that all shards have
    """

    client: ClientSettings = ClientSettings()
    hedge_seconds: float = 0.05
    rest_seconds: float = 1.0
    look_seconds: float = 5.0
    common_batch_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    """What a server does for the safety of its jobs; by default nothing.

    savepoint_every:  make a savepoint of each job at this interval: 15m, 1h, 1d
    keep_last, keep_for, keep_daily: which of these stay, as for `millpond savepoint schedule`
    archive:          a folder or bucket, in which each job gets an archive by its name
    archive_keep_for: how long archived batches stay: 12h, 7d; None for ever
    """

    savepoint_every: str | None = None
    keep_last: int = 0
    keep_for: str | None = None
    keep_daily: int = 0
    archive: str | None = None
    archive_keep_for: str | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.savepoint_every is not None or self.archive is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """How samples of a job are measured and kept.

    sample_seconds:  between two samples
    days:            how long samples are kept
    remote_notes_seconds: on an object store, between two looks at the files that name runs, drills and
                     scheduled savepoints
    sizes_seconds, remote_sizes_seconds: the least time between two looks at the sizes of state
                     files, on a disk and on an object store, where each partition is a request
    share:           the part of a thread's time that looks at sizes of all jobs together may take:
                     after one that took a second, the job's next one comes 100 seconds later for
                     each job
    """

    sample_seconds: float = 60.0
    days: float = 14.0
    remote_notes_seconds: float = 300.0
    sizes_seconds: float = 60.0
    remote_sizes_seconds: float = 900.0
    share: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How `millpond run` starts a program again.

    first_pause_seconds: after a run that committed a batch.  A broker that restarts is back in
                         seconds; Spark itself takes some to start.
    most_pause_seconds:  the pauses double up to this.  A server may be gone for hours, and nobody
                         wants to wait much longer than it.
    jitter:              a pause is shorter by up to this part, so that many jobs don't start at once
    most_idle_runs:      so many runs in a row without a commit end it: somebody must look; with 0
                         there is one run
    look_seconds:        between two looks at the program
    end_seconds:         how long a program may take to end before it is killed; a batch may take a
                         minute
    group_seconds:       how long what it has started may take after it: a JVM takes some
    commits_seconds:     between two looks at the jobs' commits
    standby_seconds:     a standby that has waited for so long before it failed counts as one that
                         committed
    """

    first_pause_seconds: float = 1.0
    most_pause_seconds: float = 60.0
    jitter: float = 0.5
    most_idle_runs: int = 10
    look_seconds: float = 0.2
    end_seconds: float = 90.0
    group_seconds: float = 15.0
    commits_seconds: float = 30.0
    standby_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """How long the doctor looks.

    rows_seconds:    at the rows of all stores of a job.  With the time of the other looks, an answer
                     comes within ten seconds
    growth_seconds:  at what rows were in earlier batches
    program_seconds: at a program: Spark starts within seconds, on a busy machine within a minute
    """

    rows_seconds: float = 4.0
    growth_seconds: float = 2.0
    program_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How the HTTP door answers.

    port:         8642, unassigned and easy to type.
    redis_port, postgres_port, flight_port: where these protocols are answered, at the same host; None: nowhere.
    allow_hosts:  names that a request's Host may have besides those of the loopback, see
                  `serve.access`.
    tokens:       the file with the readers and their tokens; None lets everybody read.
    insecure:     listen at other addresses than the loopback without tokens.
    sql:          answer POST /sql, if `millpond[sql]` is installed.
    samples:      measure each job at intervals, for `/metrics` and `read_samples`.
    console:      show browsers the console at the root; it asks the other routes, with the reader's token.
    otlp:         the address of a collector of OpenTelemetry to push metrics to; None: to none.
    alerts:       the file of thresholds and silences for `/alerts`; None: the rules' own.
    tls_cert, tls_key: PEM files; both or none.
    workers:      door processes; if there are several, one more process follows.
    limit_rows:   rows of a JSON scan without a limit: a screenful, not a download.
    max_rows:     the largest limit one request may name; more than this belongs in pages or Arrow.
    max_keys:     keys in one rows:get.
    max_url_bytes, max_header_bytes: of a request; the headers with the URL.  Browsers and proxies
                                     allow 8 to 16 KiB for a URL.
    max_body_bytes:       largest body of a request: max_keys keys of 400 bytes.
    header_seconds, body_seconds: in which the headers, and then the body, of a request must arrive.
    max_answer_bytes:     largest answer: JSON is made in memory; for more, use Arrow on the machine
                          itself.
    max_seconds:          how long one read may take; an open read keeps old pages from reuse.
    sql_processes:        how many SQL statements a door answers at one time, each in a process of its
                          own.  They start when they are needed, with some 100 MiB each.
    sql_memory_bytes:     what DuckDB may use in one of them; the system lets a process have twice
                          that, besides what it had at its start.
    requests_per_second:  for each client, at all doors together; 0 is no limit.  Twice as many may
                          come at once.
    gzip_bytes:           smaller answers aren't packed: that would cost more than the packets it
                          saves.
    ready_behind_seconds: /readyz answers 503 if a committed batch has waited for longer: several
                          triggers of a usual job.
    drain_seconds:        how long requests may still run after SIGTERM; below the 30 s after which
                          orchestrators kill.
    log_level, log_format: how log lines are written, see `logs`.
    log_requests:         whether to log each request as well: its route, never its key.
    keep_alive_seconds:   how long an idle connection stays open; above the 60 s of usual proxies,
                          which must close first.
    send_seconds:         after so long, a client that reads next to nothing of its answer is
                          disconnected.
    max_unread_bytes:     the most bytes of answers that the clients of a process have not read yet;
                          beyond it, the client with the most is disconnected.
    max_connections, max_connections_per_client: open at one time at each process, and below the
                                                 system's limit.  For one more, the connection that
                                                 has been idle for longest is closed; if none is
                                                 idle, the new one is refused.
    max_streams, max_streams_per_client: event streams of a process.
    max_waits, max_waits_per_client: requests of a process that wait for a bound or for changes.
    max_large_answers:    how many answers of more than `limit_rows` rows a process makes at one
                          time.  Each is whole in memory, and more at a time are no faster, since
                          rows are made under Python's lock.  Further ones wait for their turn.
    max_downloads, max_downloads_per_client: answers of so many rows in pieces: their snapshot stays
                                             open while a client reads.
    failed_logins_per_minute: requests of one address with a wrong token or none; a right token
                              always works.  0 is no limit.
    max_operations:       how many savepoints are made or verified at one time, at all doors
                          together: each reads as fast as the disk allows.
    kept_operations:      how many ended ones a process remembers.
    """

    host: str = "127.0.0.1"
    port: int = 8642
    redis_port: int | None = None
    postgres_port: int | None = None
    flight_port: int | None = None
    allow_hosts: tuple[str, ...] = ()
    tokens: Path | None = None
    insecure: bool = False
    sql: bool = True
    samples: bool = True
    console: bool = True
    otlp: str | None = None
    alerts: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    workers: int = 1
    limit_rows: int = 100
    max_rows: int = 100_000
    max_keys: int = 10_000
    max_url_bytes: int = 16_384
    max_header_bytes: int = 32_768
    max_body_bytes: int = 4_000_000
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    max_answer_bytes: int = 256 << 20
    max_seconds: float = 30.0
    sql_processes: int = 4
    sql_memory_bytes: int = 256 << 20
    requests_per_second: float = 0.0
    gzip_bytes: int = 4096
    ready_behind_seconds: float = 10.0
    drain_seconds: float = 10.0
    log_level: str = "info"
    log_format: str = "text"
    log_requests: bool = False
    keep_alive_seconds: float = 75.0
    send_seconds: float = 30.0
    max_unread_bytes: int = 512 << 20
    max_connections: int = 2000
    max_connections_per_client: int = 500
    max_streams: int = 500
    max_streams_per_client: int = 100
    max_waits: int = 1000
    max_waits_per_client: int = 300
    max_large_answers: int = 4
    max_downloads: int = 16
    max_downloads_per_client: int = 8
    failed_logins_per_minute: int = 60
    max_operations: int = 2
    kept_operations: int = 100
