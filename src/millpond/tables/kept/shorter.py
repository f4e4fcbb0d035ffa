"""For how long readers see the buckets of a table, if that is shorter than its job keeps them.

    <job folder>/retention.json    {"format": 1, "stores": {"0/default": {"1 minute": 86400}}, "stamp": …}

1. A lower retention of a job that runs is written to this file at once: for how many seconds after
   their end readers see the buckets of a resolution.
2. The job's state still has the older ones.  To every read they are as expired: `Hidden` says which
   these are, by the watermark of the batch that is read.
3. `plan_retention(…).run()` makes it so in the stopped job's state, and then the file is empty.

On a local disk each read compares the file's stamp, so that the next read in every process sees a
change.  For an object store, a thread of the pond reads the file.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import CheckpointError, MillpondError
from millpond.scalar.time.zones import parse_zone
from millpond.schema.definition.resolutions import BUCKET, RESOLUTION, Resolutions
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import store_id
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.base import FileStamp
from millpond.tables.kept.calendar import Calendar

FILE = "retention.json"
_FORMAT = 1
_MOST_BYTES = FileBounds().note_bytes

Shorter = Mapping[str, int]
"""resolution -> for how many seconds after their end readers see its buckets"""
Stores = dict[str, dict[str, int]]
"""store -> the same of its table"""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The buckets of one batch that its state has and readers don't see.

    resolutions:  of the table, as readers see them
    first:        resolution -> the start of the first bucket that readers see, in microseconds
    places:       where the key has the resolution, and the bucket's start
    digest:       tells answers without these buckets from answers with them
    """

    resolutions: Resolutions
    first: Mapping[str, int]
    places: tuple[int, int]
    digest: str

    def hides(self, key: tuple[Any, ...]) -> bool:
        """Whether no reader sees the row of this key, in stored form."""
        first = self.first.get(key[self.places[0]])
        return first is not None and key[self.places[1]] < first


def hidden_of(definition: TableDefinition, shorter: Shorter, watermark_ms: int | None) -> Hidden | None:
    """The buckets that aren't seen in a batch with this watermark; None if all are."""
    there = definition.resolutions
    if there is None or not shorter:
        return None
    each = tuple(replace(r, keep_seconds=least(r.keep_seconds, shorter.get(str(r)))) for r in there.each)
    if each == there.each:
        return None
    zone, watermark = parse_zone(there.zone), None if watermark_ms is None else watermark_ms * 1000
    lower = [now for before, now in zip(there.each, each, strict=True) if before != now]
    starts = {str(r): Calendar(replace(r, complete_from=None), zone).kept_from(watermark) for r in lower}
    columns = {column.name: column.index for column in definition.key}
    text = json.dumps([[str(r), r.keep_seconds] for r in lower])
    return Hidden(
        resolutions=replace(there, each=each),
        first={name: start for name, start in starts.items() if start is not None},
        places=(columns[RESOLUTION], columns[BUCKET]),
        digest=hashlib.sha256(text.encode()).hexdigest()[:8],
    )


def least(before: int | None, now: int | None) -> int | None:
    """The shorter of two times; None is for ever."""
    return now if before is None else before if now is None else min(before, now)


def read_shorter(folder: Storage, definition: TableDefinition) -> dict[str, int]:
    """What a job's folder says of a table now.  Raises CORRUPT_FILE."""
    return dict(_parse(folder, _try_read(folder)).get(store_id(*definition.store_id), {}))


def write_shorter(folder: Storage, definition: TableDefinition, shorter: Shorter) -> None:
    """Let readers see the buckets of a table for these times, from their next read on.

    Raises:  CORRUPT_FILE, NOT_WRITABLE.
    """
    while True:
        text = _try_read(folder)
        data = with_shorter(folder, definition, shorter, text)
        if folder.create(FILE, data) if text is None else folder.replace(FILE, text, data):
            return


def with_shorter(folder: Storage, definition: TableDefinition, shorter: Shorter, text: bytes | None = None) -> bytes:
    """The file with these times of a table.  Raises CORRUPT_FILE."""
    stores = _parse(folder, _try_read(folder) if text is None else text)
    stores[store_id(*definition.store_id)] = dict(shorter)
    stamp = uuid.uuid4().hex  # of two writers of the same, each knows its own
    there = {store: each for store, each in stores.items() if each}
    return json.dumps({"format": _FORMAT, "stores": there, "stamp": stamp}, indent=1).encode()


class ShorterFile:
    """The file of one job, as its readers see it."""

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self._known: tuple[FileStamp | None, Stores | MillpondError] | None = None

    def of(self, definition: TableDefinition) -> Shorter:
        """For how long readers see the buckets of a table.  Raises CORRUPT_FILE."""
        known = self._known
        if known is None or not self._folder.is_remote:
            known = self._look(known)
        if isinstance(known[1], MillpondError):
            raise known[1]
        return known[1].get(store_id(*definition.store_id), {})

    def refresh(self) -> None:
        """Look again, if any reader has asked; a file that can't be read now stays as it was."""
        known = self._known
        if known is not None:
            try:
                self._look(known)
            except MillpondError:  # the catalogue's thread shows that the store doesn't answer
                return

    def _look(
        self, known: tuple[FileStamp | None, Stores | MillpondError] | None
    ) -> tuple[FileStamp | None, Stores | MillpondError]:
        stamp = self._folder.stamp(FILE)
        if known is not None and stamp == known[0]:
            return known
        try:
            found: Stores | MillpondError = _parse(self._folder, None if stamp is None else _try_read(self._folder))
        except MillpondError as error:
            if error.condition != "CORRUPT_FILE":
                raise
            found = error
        self._known = (stamp, found)
        return self._known


def _try_read(folder: Storage) -> bytes | None:
    try:
        return folder.read(FILE, _MOST_BYTES)
    except MillpondError as error:
        if error.condition != "FILE_GONE":
            raise
        return None


def _parse(folder: Storage, text: bytes | None) -> Stores:
    if text is None:
        return {}
    try:
        data = parse_json(text)
        stores = data["stores"]
        if data["format"] != _FORMAT or not all(isinstance(each, dict) for each in stores.values()):
            raise ValueError("it isn't of this format")
        for seconds in (seconds for each in stores.values() for seconds in each.values()):
            if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 0:
                raise ValueError(f"{seconds!r:.40} isn't a number of seconds")
    except DAMAGE as broken:
        path = f"{folder.uri}/{FILE}"
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{path} can't be read: {broken!r:.200}.",
            hint="Restore the file from a copy, or delete it: then readers see all buckets that the state has.",
            path=path,
        ) from broken
    return {str(store): dict(each) for store, each in stores.items()}
