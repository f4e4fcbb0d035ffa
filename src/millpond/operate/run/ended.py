"""Why a program ended, and whether to start it again helps."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import msgspec

MOST_LETTERS = 20_000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended a program, as its process wrote it down.

    names:    of the error and its causes, the outermost first: Spark's or Millpond's condition, else
              the class's full name
    message:  what the innermost one says, in a line
    trace:    Python's traceback
    hint:     that of Millpond's own error
    job:      the job that failed; None if that isn't known
    """

    names: tuple[str, ...]
    message: str
    trace: str
    hint: str = ""
    job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What an error needs.

    hint:      what to do, in a sentence
    is_final:  whether the same program fails again in the same way
    """

    hint: str
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run of a program ended.

    exit_code:  of the process; negative, or 128 and more: the signal that ended it
    failure:    the error that it reported; None if it reported none
    """

    exit_code: int
    failure: Failure | None = None

    @property
    def is_good(self) -> bool:
        """Whether the program came to its end."""
        return self.exit_code == 0

    @property
    def name(self) -> str:
        """What ended it, in a word: the innermost cause."""
        if self.failure is not None:
            return self.failure.names[-1]
        if self._signal:
            return _signal(self._signal)
        return "OK" if self.is_good else f"exit code {self.exit_code}"

    @property
    def advice(self) -> Advice:
        """What to do about it."""
        if self.failure is not None:
            first, *_ = names = self.failure.names
            if self.failure.message.startswith(_UNREAD_BATCH):
                return _SINK
            return _OF_PROGRAM.get(first) or next((_ADVICE[name] for name in reversed(names) if name in _ADVICE), self._own)
        return _KILLED if self._signal == signal.SIGKILL else _UNKNOWN

    @property
    def _own(self) -> Advice:
        return Advice(hint=self.failure.hint) if self.failure is not None and self.failure.hint else _UNKNOWN

    @property
    def _signal(self) -> int:
        """The signal that ended it; 0 without one."""
        return -self.exit_code if self.exit_code < 0 else max(0, self.exit_code - 128)

    def describe(self) -> str:
        """In a line."""
        if self.failure is not None:
            return f"[{self.name}] {self.failure.message}"
        return f"it was ended by {self.name}" if self._signal else f"it ended with {self.name}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_UNKNOWN = Advice(hint="Read the end of its log.")
_KILLED = Advice(hint="If nobody killed it, the machine was out of memory: see the kernel's log; give it more, or smaller batches.")
_OTHER_STATE = Advice(
    hint="The code's state isn't the checkpoint's: `millpond check-upgrade` shows what differs, `millpond evolve` changes it.",
    is_final=True,
)
_DAMAGED = Advice(
    hint="`millpond repair` shows what is wrong with the checkpoint, and makes a copy that Spark starts from.", is_final=True
)
_PLAN = Advice(hint="Spark refuses the query as it is written: mend the program.", is_final=True)
_CODE = Advice(hint="Mend the program: it fails before it does anything.", is_final=True)
_MEMORY = Advice(hint="Give the process more memory (spark.driver.memory), smaller batches, or keep the state in RocksDB.")
_NETWORK = Advice(hint="A server can't be reached now: see whether it runs, and its address.")
_USER_CODE = Advice(hint="The program's own function raised it: mend the function, or let it step over such rows.")
_FULL = Advice(hint="A folder can't be written: see whether its disk is full, and the rights of the folder.")
_GONE = Advice(hint="A file is gone; if it is one of the checkpoint, `millpond repair` says what is missing.")
# Of a batch in checkpoint format 2 whose state nobody has asked for (Spark 4.3).
_UNREAD_BATCH = "assertion failed: CheckpointInfo length: 0"
_SINK = Advice(
    hint="The sink didn't read the batch, so Spark wrote no state: foreachBatch must read all of its frame.",
    is_final=True,
)
_ADVICE: dict[str, Advice] = {
    # the checkpoint is of other state
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": _OTHER_STATE,
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": _OTHER_STATE,
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": _OTHER_STATE,
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE": _OTHER_STATE,
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART": _OTHER_STATE,
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE": _OTHER_STATE,
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": _OTHER_STATE,
    "DEFINITION_CHANGED": _OTHER_STATE,
    # the checkpoint is damaged
    "CANNOT_LOAD_STATE_STORE": _DAMAGED,
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED": _DAMAGED,
    "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED": _DAMAGED,
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": _DAMAGED,
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": _DAMAGED,
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY": _DAMAGED,
    "CORRUPT_FILE": _DAMAGED,
    # somebody else writes it
    "CONCURRENT_STREAM_LOG_UPDATE": Advice(hint="Another job writes this checkpoint: end one of the two."),
    "CHECKPOINT_IN_USE": Advice(hint="Another job has this checkpoint: end it, or run this one with --standby."),
    # the query, the program
    "org.apache.spark.sql.AnalysisException": _PLAN,
    "pyspark.errors.exceptions.captured.AnalysisException": _PLAN,
    "pyspark.errors.exceptions.captured.ParseException": _PLAN,
    "NOT_DERIVABLE": _PLAN,
    "INVALID_REQUEST": _CODE,
    "UNSUPPORTED": _CODE,
    "TABLE_EXISTS": _CODE,
    "INVALID_NAME": _CODE,
    "SPARK_CONNECT": _CODE,
    "PYSPARK_MISSING": Advice(hint="Install PySpark beside Millpond: pip install 'millpond[spark]'.", is_final=True),
    "FOREACH_BATCH_USER_FUNCTION_ERROR": _USER_CODE,
    "TRANSFORM_WITH_STATE_USER_FUNCTION_ERROR": _USER_CODE,
    "FLATMAPGROUPSWITHSTATE_USER_FUNCTION_ERROR": _USER_CODE,
    "FAILED_EXECUTE_UDF": _USER_CODE,
    "org.apache.spark.api.python.PythonException": _USER_CODE,
    "py4j.Py4JException": _USER_CODE,
    # what may pass
    "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE": _FULL,
    "CANNOT_WRITE_STATE_STORE": _FULL,
    "NOT_WRITABLE": _FULL,
    "STORAGE_UNAVAILABLE": _NETWORK,
    "java.net.ConnectException": _NETWORK,
    "java.net.UnknownHostException": _NETWORK,
    "java.net.SocketTimeoutException": _NETWORK,
    "org.apache.kafka.common.errors.TimeoutException": _NETWORK,
    "KAFKA_DATA_LOSS": Advice(
        hint="Kafka has deleted records that the job hasn't read: restore a savepoint whose offsets are there, or accept the loss "
        "with failOnDataLoss=false."
    ),
    "java.lang.OutOfMemoryError": _MEMORY,
    "UNABLE_TO_ACQUIRE_MEMORY": _MEMORY,
    "AGGREGATE_OUT_OF_MEMORY": _MEMORY,
    "SPILL_OUT_OF_MEMORY": _MEMORY,
    "java.nio.file.NoSuchFileException": _GONE,
    "java.io.FileNotFoundException": _GONE,
}
# Of the program itself; in a function that Spark calls, the same may be a matter of one row.
_OF_PROGRAM = dict.fromkeys(("SyntaxError", "IndentationError", "ModuleNotFoundError", "ImportError", "NameError"), _CODE)
