"""Files: one for each batch that changed the table, NDJSON or Parquet.

    <sender>-<run>-<batch>.ndjson          the changes of one batch
    <sender>-<run>-<batch>-whole.ndjson    all rows as of one batch: it replaces all files before it
    .<sender>.position.json                the position, and the file that belongs to it
    .<name of a file>.part                 the file before it is committed

A commit has three steps; the second is the one that counts, and opening does the third again:

1. Flush the part to the disk.
2. Replace the position, which names the file.
3. Rename the part to that name.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from millpond.errors import RequestError
from millpond.schema.prepared import ready
from millpond.sending.target import Part, SentPosition, Shape, Target, decode_position, mismatch
from millpond.storage import open_storage
from millpond.storage.base import Storage
from millpond.tables.history.changes import RowChange


class _Committed(msgspec.Struct, frozen=True):
    """file:  the name that the part gets; empty if the commit had no changes"""

    position: str
    file: str


class FileTarget(Target):
    """A folder of this machine."""

    one_batch = True

    def __init__(self, folder: Path, shape: Shape, *, form: str) -> None:
        super().__init__(folder.absolute().as_uri(), shape)
        if form not in ("ndjson", "parquet"):
            raise RequestError(
                "INVALID_REQUEST", f"There is no format {form!r:.40}.", hint="Write format=ndjson or format=parquet."
            )
        if form == "parquet":
            from millpond.sending.parquet import ParquetPart, change_schema

            schema = change_schema(shape)
            self._open_part: Callable[[IO[bytes]], Any] = lambda file: ParquetPart(file, schema)
        else:
            self._open_part = lambda file: _Lines(file, shape)
        self._folder, self._form = folder, form
        self._parts = re.compile(rf"\.{re.escape(shape.name)}-[0-9]{{4,}}-[0-9]{{12,}}(-whole)?\.(ndjson|parquet)\.part")
        self._lock = -1
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._named = ""
        self._begun = Part(batch=0, run=0)

    @property
    def _storage(self) -> Storage:
        return open_storage(self._folder.absolute())

    def open(self, *, resync: bool) -> SentPosition | None:  # noqa: ARG002 - other files do no harm
        """Lock the folder for this sender's name, and finish the last commit."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / f".{self.shape.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken() from None
            try:
                committed = msgspec.json.decode((self._folder / self._position_name).read_bytes(), type=ready(_Committed))
            except FileNotFoundError:
                self._drop_parts()
                return None
            except msgspec.DecodeError as damage:
                raise mismatch(self.uri, f"its position can't be read: {damage}") from None
            self._place(committed.file)
            self._drop_parts()
            return decode_position(committed.position, self.shape, self.uri)
        except OSError as error:
            raise self._unavailable(error) from error

    @property
    def _position_name(self) -> str:
        return f".{self.shape.name}.position.json"

    def begin(self, part: Part) -> None:
        """Open the part."""
        self._named = f"{self.shape.name}-{part.run:04d}-{part.batch:012d}{'-whole' if part.whole else ''}.{self._form}"
        self._begun = part
        try:
            self._file = self._part_of(self._named).open("wb")
        except OSError as error:
            raise self._unavailable(error) from error
        self._writer = None

    def add(self, changes: list[RowChange]) -> None:
        """Write changes to the part."""
        assert self._file is not None
        try:
            if self._writer is None:
                self._writer = self._open_part(self._file)
            self._writer.write(changes, self._begun)
        except OSError as error:
            raise self._unavailable(error) from error

    def commit(self, position: SentPosition) -> None:
        """As the module says."""
        assert self._file is not None
        has_changes = self._writer is not None
        try:
            if self._begun.whole and not has_changes:  # an empty table replaces what was before, too
                self._writer, has_changes = self._open_part(self._file), True
            if self._writer is not None:
                self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())  # 1
            self._file.close()
            self._file = self._writer = None
            name = self._named if has_changes else ""
            if not name:
                self._part_of(self._named).unlink()
            self._storage.write(self._position_name, msgspec.json.encode(_Committed(position.encode().decode(), name)))  # 2
            self._place(name)  # 3
        except OSError as error:
            raise self._unavailable(error) from error

    def _part_of(self, name: str) -> Path:
        return self._folder / f".{name}.part"

    def _place(self, name: str) -> None:
        if not name:
            return
        with suppress(FileNotFoundError):  # it has its name already
            self._part_of(name).rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _drop_parts(self) -> None:
        """Delete what was never committed."""
        for file in self._folder.iterdir():
            if self._parts.fullmatch(file.name):
                file.unlink()

    def close(self) -> None:
        """Give the lock back."""
        with suppress(OSError):
            if self._writer is not None:  # Parquet's would write its footer later, into a closed file
                self._writer.close()
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = self._writer = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _Lines:
    """NDJSON."""

    def __init__(self, file: IO[bytes], shape: Shape) -> None:
        self._file, self._shape = file, shape

    def write(self, changes: list[RowChange], part: Part) -> None:
        self._file.writelines(self._shape.change_json(change, part) + b"\n" for change in changes)

    def close(self) -> None:
        """The file is the caller's."""
