"""Whether all sources that read a file's folder have read the file.

One folder may be read by two sources of a query, each at its own pace: an event of the file is in
the answer only after both.  A source reads a folder if its log names a file beside, above or below
the wanted one; folders of Hive's partitions (`date=…`) count as one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from urllib.parse import unquote

from millpond.checkpoint.restart_files import log_offset
from millpond.checkpoint.source_files import find_file, newest_entry
from millpond.storage import Storage
from millpond.tables.job.offsets import Offsets

_PARTITION = re.compile("[^/=]+=[^/]*")


class ReadFiles:
    """One caller's file, looked for again and again while it waits.

    wanted:  the file in its one spelling, as `canonical` gives it
    """

    def __init__(self, storage: Storage, wanted: str, canonical: Callable[[str], str]) -> None:
        self._storage, self._wanted, self._canonical = storage, wanted, canonical
        self._folder = _folder_of(wanted)
        # Up to which entry each source's log lacks the file, and any file of its folder.
        self._searched: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._has: dict[str, int] = {}
        self._reads: set[str] = set()

    def split(self, offsets: Offsets) -> tuple[list[str], list[str]]:
        """The file sources that have read it up to these offsets, and those that read its folder and haven't.

        Raises:  as `find_file`.
        """
        have, lack = [], []
        for source, offset in offsets.items():
            upto = log_offset(offset)
            if upto is None:
                continue
            if self._has_it(source, upto):
                have.append(source)
            elif self._reads_its_folder(source):
                lack.append(source)
        return have, lack

    def _has_it(self, source: str, upto: int) -> bool:
        if source not in self._has:
            searched = self._searched.get(source, -1)
            entry = None
            if searched < upto:
                entry = find_file(self._storage, source, self._is_it, upto=upto, after=searched)
            if entry is None:
                self._searched[source] = max(upto, searched)
                return False
            self._has[source] = entry
        return self._has[source] <= upto

    def _reads_its_folder(self, source: str) -> bool:
        """By all of its log: also what batches after this one have read says which folders it reads."""
        newest = newest_entry(self._storage, source)
        if source not in self._reads and newest is not None:
            searched = self._others.get(source, -1)
            if searched < newest and find_file(self._storage, source, self._is_beside, upto=newest, after=searched) is not None:
                self._reads.add(source)
            self._others[source] = newest
        return source in self._reads

    def _is_it(self, logged: str) -> bool:
        return self._canonical(unquote(logged)) == self._wanted

    def _is_beside(self, logged: str) -> bool:
        folder = _folder_of(self._canonical(unquote(logged)))
        return folder == self._folder or folder.startswith(f"{self._folder}/") or self._folder.startswith(f"{folder}/")


def _folder_of(path: str) -> str:
    """A file's folder, without those of partitions at its end."""
    folder = posixpath.dirname(path)
    while _PARTITION.fullmatch(posixpath.basename(folder)):
        folder = posixpath.dirname(folder)
    return folder
