"""Input and output of the killed jobs: the files that they read, and what Spark's file sink has committed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from inputs.event_file import write_event_file

Row = dict[str, Any]
Rows = list[Row]


class Input(Protocol):
    """An input of a job.

    rows:  the rows of each piece, such as a file, by its name
    """

    rows: dict[str, Rows]

    def read(self, checkpoint: Path, ends: list[Any]) -> Iterable[str]:
        """The names of the pieces that a job has read up to the end of a batch; `ends` has one end for each source."""


class Files:
    """A folder of files, a JSON object a line, that a job reads in the order in which they were written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.rows: dict[str, Rows] = {}

    def add(self, rows: Rows) -> None:
        """Write the next file."""
        self.rows[write_event_file(self.folder, len(self.rows), rows).name] = rows

    def read(self, checkpoint: Path, ends: list[Any]) -> Iterator[str]:
        """Read the log of each source.  Every tenth entry is compacted: it has all entries before it."""
        for source, end in enumerate(ends):
            for log in (checkpoint / "sources" / str(source)).glob("[0-9]*") if end else ():
                for line in log.read_text().splitlines()[1:]:
                    entry = json.loads(line)
                    path = Path(unquote(entry["path"]))
                    if path.parent.name == self.folder.name and entry["batchId"] <= end["logOffset"]:
                        yield path.name


def newest(folder: Path) -> int:
    """The newest batch of `commits` or `offsets`, -1 where there is none."""
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def sink_rows(output: Path) -> list[tuple[int, Row]]:
    """(batch, row) of all rows that Spark's file sink has committed, by the sink's own log.

    Every tenth log is compacted: it has its own files and those of all logs before.
    """
    import pyarrow.parquet as pq

    rows, seen = [], set()
    logs = {int(log.name.removesuffix(".compact")): log for log in (output / "_spark_metadata").glob("[0-9]*")}
    for batch, log in sorted(logs.items()):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            assert entry["action"] == "add"
            name = entry["path"].rsplit("/", 1)[-1]
            if name not in seen:
                seen.add(name)
                rows += [(batch, row) for row in pq.read_table(output / name).to_pylist()]
    return rows
