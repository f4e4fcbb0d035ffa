"""Every error that Millpond raises on purpose: one tree, with stable conditions and hints.

    MillpondError
    ├── RequestError       what the caller asked for can't be answered as asked
    ├── CheckpointError    a file of the checkpoint is missing, damaged or in an unknown format
    ├── StorageError       an object store or a server can't be reached now, or refuses us
    ├── ReplicaError       the replica can't serve now
    ├── SavepointError     a savepoint can't be made, read or used
    ├── DefinitionError    what a table means is unknown, contradictory or changed
    └── SetupError         the machine lacks something: Java, PySpark, a free port, a writable folder

Match on `condition`, never on the sentence.  `CONDITIONS` below maps each condition to its class,
HTTP status and exit code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

# What the job's side imports that a reader doesn't need.
_PYSPARK = frozenset({"pyspark", "py4j", "pandas", "numpy", "pyarrow"})


class MillpondError(Exception):
    """Every error that Millpond raises on purpose.

    condition:  a name in UPPER_SNAKE_CASE that stays the same from version to version
    message:    what was found
    hint:       what to do next, in one imperative sentence
    context:    facts by name, such as the table, the file or the byte position
    """

    def __init__(self, condition: str, message: str, *, hint: str, **context: object) -> None:
        super().__init__(message)
        self.condition = condition
        self.message = message
        self.hint = hint
        self.context = context

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message} Hint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by their args; ours carry keyword arguments.
        return (_rebuild, (type(self), self.condition, self.message, self.hint, self.context))


def _rebuild(kind: type[MillpondError], condition: str, message: str, hint: str, context: dict[str, object]) -> MillpondError:
    return kind(condition, message, hint=hint, **context)


class RequestError(MillpondError):
    """The question can't be answered as it was asked."""


class CheckpointError(MillpondError):
    """A file of the checkpoint is missing, damaged or in an unknown format."""


class StorageError(MillpondError):
    """An object store or a server can't be reached now, or refuses us.

    It isn't a CheckpointError, since it says nothing about the checkpoint: no file is gone, and no
    job was replaced.
    """


class ReplicaError(MillpondError):
    """The replica can't serve now."""


class SavepointError(MillpondError):
    """A savepoint can't be made, read or used."""


class DefinitionError(MillpondError):
    """The meaning of a table is unknown, contradictory or changed."""


class SetupError(MillpondError):
    """The machine lacks something: Java, PySpark, a free port, a writable folder."""


class Condition(NamedTuple):
    """How a condition shows at each door."""

    kind: type[MillpondError]
    http_status: int
    exit_code: int


# Exit codes: 2 wrong call, 3 not there, 4 can't serve now, 5 damaged or unknown data, 6 machine not
# set up.
CONDITIONS: dict[str, Condition] = {
    # requests
    "UNKNOWN_TABLE": Condition(RequestError, 404, 3),
    "UNKNOWN_ROUTE": Condition(RequestError, 404, 3),
    "UNKNOWN_COLUMN": Condition(RequestError, 400, 2),
    "NOT_RETRACTABLE": Condition(RequestError, 400, 2),
    "NOT_A_KEY_COLUMN": Condition(RequestError, 400, 2),
    "KEY_MISSING": Condition(RequestError, 400, 2),
    "WRONG_TYPE": Condition(RequestError, 400, 2),
    "INVALID_LIMIT": Condition(RequestError, 400, 2),
    "INVALID_REQUEST": Condition(RequestError, 400, 2),
    "INVALID_STATEMENT": Condition(RequestError, 400, 2),
    "INVALID_NAME": Condition(RequestError, 400, 2),
    "INVALID_CONFIG": Condition(RequestError, 400, 2),
    "METHOD_NOT_ALLOWED": Condition(RequestError, 405, 2),
    "REQUEST_TOO_LARGE": Condition(RequestError, 413, 2),
    "INVALID_HTTP": Condition(RequestError, 400, 2),
    "URL_TOO_LONG": Condition(RequestError, 414, 2),
    "HEADERS_TOO_LARGE": Condition(RequestError, 431, 2),
    "REQUEST_TOO_SLOW": Condition(RequestError, 408, 4),
    "INVALID_BOUND": Condition(RequestError, 400, 2),
    "UNKNOWN_OFFSET": Condition(RequestError, 400, 2),
    "INVALID_RANGE": Condition(RequestError, 400, 2),
    "INVALID_INDEX": Condition(RequestError, 400, 2),
    "NO_INDEX": Condition(RequestError, 409, 4),
    "NO_WINDOW": Condition(RequestError, 400, 2),
    "INVALID_TOKEN": Condition(RequestError, 400, 2),
    "TOKEN_EXPIRED": Condition(RequestError, 410, 4),
    "TARGET_MISMATCH": Condition(RequestError, 409, 2),
    "OTHER_JOB": Condition(RequestError, 400, 2),
    "ONLY_A_SHARD": Condition(RequestError, 421, 2),
    "OTHER_SHARD": Condition(RequestError, 421, 4),
    "KEYS_DIFFER": Condition(RequestError, 409, 2),
    "ANSWER_TOO_LARGE": Condition(RequestError, 422, 2),
    "SQL_OUT_OF_MEMORY": Condition(RequestError, 422, 2),
    "NOT_ACCEPTABLE": Condition(RequestError, 406, 2),
    "AMBIGUOUS_TABLE": Condition(RequestError, 409, 2),
    "UNKNOWN_VERSION": Condition(RequestError, 404, 3),
    "VERSION_IN_USE": Condition(RequestError, 409, 2),
    "VERSION_BEHIND": Condition(RequestError, 409, 4),
    "VERSIONS_DIFFER": Condition(RequestError, 409, 4),
    "CUTOVER_TAKEN": Condition(RequestError, 409, 4),
    "TOKEN_NEEDED": Condition(RequestError, 401, 6),
    "NOT_ALLOWED": Condition(RequestError, 403, 6),
    "HOST_NOT_ALLOWED": Condition(RequestError, 421, 6),
    "TOO_MANY_REQUESTS": Condition(RequestError, 429, 4),
    "TOO_MANY_CONNECTIONS": Condition(RequestError, 503, 4),
    "TOO_MANY_STREAMS": Condition(RequestError, 429, 4),
    "TOO_MANY_WAITS": Condition(RequestError, 429, 4),
    "TOO_MANY_DOWNLOADS": Condition(RequestError, 429, 4),
    "TOO_MANY_ANSWERS": Condition(RequestError, 503, 4),
    "TOO_MANY_OPERATIONS": Condition(RequestError, 429, 4),
    "UNKNOWN_OPERATION": Condition(RequestError, 404, 3),
    "VALUE_OUT_OF_RANGE": Condition(RequestError, 422, 5),
    "JAVA_UNKNOWN": Condition(RequestError, 422, 5),
    "SKETCHES_LIBRARY_MISSING": Condition(RequestError, 500, 6),
    # checkpoints
    "NO_CHECKPOINT": Condition(CheckpointError, 404, 3),
    "NO_COMMITTED_BATCH": Condition(ReplicaError, 503, 4),
    "INCOMPLETE_FILE": Condition(CheckpointError, 500, 5),
    "CORRUPT_FILE": Condition(CheckpointError, 500, 5),
    "UNKNOWN_FORMAT": Condition(CheckpointError, 501, 5),
    "UNSUPPORTED": Condition(CheckpointError, 501, 5),
    "REWOUND_IN_PLACE": Condition(CheckpointError, 409, 5),
    "FILE_GONE": Condition(CheckpointError, 503, 4),
    "INPUT_GONE": Condition(CheckpointError, 410, 4),
    "COPIES_DIFFER": Condition(CheckpointError, 500, 5),
    "SKETCHES_DIFFER": Condition(CheckpointError, 500, 5),
    "PLACE_NOT_ALLOWED": Condition(CheckpointError, 502, 6),
    # storage
    "STORAGE_UNAVAILABLE": Condition(StorageError, 503, 4),
    "ACCESS_DENIED": Condition(StorageError, 502, 6),
    "SERVER_UNAVAILABLE": Condition(StorageError, 503, 4),
    "NOT_A_SERVER": Condition(StorageError, 502, 6),
    "TARGET_UNAVAILABLE": Condition(StorageError, 503, 4),
    "TARGET_REFUSED": Condition(StorageError, 502, 5),
    # replicas
    "TARGET_TAKEN": Condition(ReplicaError, 409, 4),
    "REPLICA_BUILDING": Condition(ReplicaError, 503, 4),
    "REPLICA_BEHIND": Condition(ReplicaError, 503, 4),
    "NOT_UP_TO_BOUND": Condition(ReplicaError, 503, 4),
    "READ_TOO_LONG": Condition(ReplicaError, 503, 4),
    "SQL_ENDED": Condition(ReplicaError, 503, 4),
    "CUT_EXPIRED": Condition(ReplicaError, 503, 4),
    "REPLICA_CLOSED": Condition(ReplicaError, 503, 4),
    "MODEL_LOST": Condition(CheckpointError, 503, 4),
    "JOB_REPLACED": Condition(ReplicaError, 503, 4),
    "HISTORY_GONE": Condition(ReplicaError, 410, 4),
    "VERSION_CHANGED": Condition(ReplicaError, 410, 4),
    "NO_COMMON_BATCH": Condition(ReplicaError, 503, 4),
    "SHARDS_INCOMPLETE": Condition(ReplicaError, 503, 4),
    "NOT_ALIGNED": Condition(ReplicaError, 409, 4),
    "REPLICA_NOT_SHARED": Condition(ReplicaError, 503, 4),
    "REPLICA_NOT_WRITABLE": Condition(ReplicaError, 500, 6),
    "NETWORK_FILE_SYSTEM": Condition(ReplicaError, 500, 6),
    "DISK_FULL": Condition(ReplicaError, 507, 6),
    "REPLICA_TOO_LARGE": Condition(ReplicaError, 507, 6),
    "FOLLOWER_FAILED": Condition(ReplicaError, 503, 4),
    # savepoints
    "UNKNOWN_SAVEPOINT": Condition(SavepointError, 404, 3),
    "SAVEPOINT_EXISTS": Condition(SavepointError, 409, 2),
    "SAVEPOINT_INCOMPLETE": Condition(SavepointError, 409, 5),
    "SAVEPOINT_DAMAGED": Condition(SavepointError, 500, 5),
    "SAVEPOINT_TOO_NEW": Condition(SavepointError, 501, 5),
    "BATCH_GONE": Condition(SavepointError, 410, 4),
    "TARGET_NOT_EMPTY": Condition(SavepointError, 409, 2),
    "ARCHIVE_TAKEN": Condition(SavepointError, 409, 4),
    "OPERATION_CANCELLED": Condition(SavepointError, 503, 4),
    "CHECKPOINT_IN_USE": Condition(SavepointError, 409, 4),
    "SINK_MISMATCH": Condition(SavepointError, 409, 5),
    "REPAIR_NEEDED": Condition(SavepointError, 409, 5),
    "NOT_REPAIRABLE": Condition(SavepointError, 409, 5),
    # definitions
    "DEFINITION_CHANGED": Condition(DefinitionError, 409, 5),
    "DEFINITION_MISMATCH": Condition(DefinitionError, 409, 5),
    "NOT_DERIVABLE": Condition(DefinitionError, 409, 5),
    "SPARK_CONNECT": Condition(DefinitionError, 501, 6),
    "TABLE_EXISTS": Condition(DefinitionError, 409, 5),
    # set-up
    "JAVA_MISSING": Condition(SetupError, 500, 6),
    "PYSPARK_MISSING": Condition(SetupError, 500, 6),
    "LIBRARY_MISSING": Condition(SetupError, 500, 6),
    "PORT_TAKEN": Condition(SetupError, 500, 6),
    "OPEN_TO_ALL": Condition(SetupError, 500, 6),
    "INVALID_TOKENS": Condition(SetupError, 500, 6),
    "INVALID_CERTIFICATE": Condition(SetupError, 500, 6),
    "NOT_WRITABLE": Condition(SetupError, 500, 6),
    "FILE_MISSING": Condition(SetupError, 500, 3),
    "LOG_REPLACED": Condition(SetupError, 500, 5),
    "JOB_FAILED": Condition(SetupError, 500, 5),
    # a mistake of ours
    "INTERNAL_ERROR": Condition(MillpondError, 500, 70),
}


# These pass by themselves: the same question may be answered in a moment. JOB_REPLACED is one of
# them: a reader that comes to a path where an older job was followed meets it before the new job's
# first batch.
PASSING = frozenset(
    {"REPLICA_BUILDING", "NO_COMMITTED_BATCH", "JOB_REPLACED", "FILE_GONE", "STORAGE_UNAVAILABLE", "TARGET_UNAVAILABLE"}
)


def http_status(error: MillpondError) -> int:
    """The HTTP status of an error; 500 for a condition that `CONDITIONS` lacks."""
    entry = CONDITIONS.get(error.condition)
    return entry.http_status if entry else 500


def exit_code(error: MillpondError) -> int:
    """The exit code of a command that ends with this error; 1 for a condition that `CONDITIONS` lacks."""
    entry = CONDITIONS.get(error.condition)
    return entry.exit_code if entry else 1


def real_time_mode(what: str) -> CheckpointError:
    """A query runs in real-time mode."""
    return CheckpointError(
        "UNSUPPORTED",
        what,
        hint="Run the query with trigger(processingTime=…), or without a trigger: real-time mode isn't supported.",
    )


@contextmanager
def importing_pyspark() -> Iterator[None]:
    """Wrap an import of the job's side in this.

    Raises:  PYSPARK_MISSING if PySpark, or a library that it needs, isn't installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PYSPARK:
            raise
        raise SetupError(
            "PYSPARK_MISSING",
            f"The job's side needs PySpark; {missing.name} isn't installed.",
            hint="Run: pip install 'millpond[spark]'",
        ) from missing


def library_missing(library: str, extra: str) -> SetupError:
    """An optional library isn't installed."""
    return SetupError(
        "LIBRARY_MISSING",
        f"This needs {library}, which isn't installed.",
        hint=f"Run: pip install 'millpond[{extra}]'",
        library=library,
    )
