"""How many requests Spark makes of an object store.

They were counted by an S3 server (`benchmarks/s3_requests.py`): of Spark 4.3 with Hadoop's S3A and
Spark's default CheckpointFileManager, which writes a file under another name and renames it.

| of                                | PUT, COPY | LIST | GET, HEAD | DELETE |
|-----------------------------------|-----------|------|-----------|--------|
| a state file, written             | 2         | 8    | 11        | 1      |
| an SST, written                   | 1         | 2    | 1         | 0      |
| an entry of a log, written        | 2         | 9    | 12        | 1      |
| each of these, deleted later      | 0         | 1    | 1         | 1      |
| a partition, at each maintenance  | 0         | 2    | 0         | 0      |
| the same in RocksDB               | 0         | 1    | 0         | 0      |

Each batch has an entry in two logs, offsets and commits.  Every file is deleted once.  A file of
checkpoint format 2 has a checksum beside it, another state file.  Sources and sinks have requests
of their own, which aren't counted, nor are those of a start.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.operate.cost.files import StateFiles

# Spark's default of spark.sql.streaming.stateStore.maintenanceInterval.
MAINTENANCE_SECONDS = 60.0
_LOGS = 2


class Requests(NamedTuple):
    """Requests by the class of their price.

    puts:  PUT, COPY, POST and LIST
    gets:  GET and HEAD
    """

    puts: float
    gets: float

    def times(self, count: float) -> Requests:
        """So many of them."""
        return Requests(self.puts * count, self.gets * count)

    def plus(self, other: Requests) -> Requests:
        """Both together."""
        return Requests(self.puts + other.puts, self.gets + other.gets)


DELETED = Requests(puts=1, gets=1)
STATE_FILE = Requests(puts=10, gets=11).plus(DELETED)
SST = Requests(puts=3, gets=1).plus(DELETED)
LOG_ENTRY = Requests(puts=11, gets=12).plus(DELETED)
MAINTENANCE = {"hdfs": Requests(puts=2, gets=0), "rocksdb": Requests(puts=1, gets=0)}


def requests_of_batch(files: StateFiles) -> Requests:
    """What a batch asks, with what cleaning up after it asks."""
    written = (files.change_files + files.snapshots) * (2 if files.is_format_2 else 1)
    return LOG_ENTRY.times(_LOGS).plus(STATE_FILE.times(written)).plus(SST.times(files.ssts))


def requests_of_clock(files: StateFiles, every_seconds: float = MAINTENANCE_SECONDS) -> Requests:
    """What Spark's maintenance asks a second, whether or not there are batches."""
    return MAINTENANCE[files.provider].times(files.partitions / every_seconds)
