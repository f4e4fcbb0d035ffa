"""Delete batches of an archive that are older than its window.

Every time in the window must be restorable: so the newest batch that was committed before the
window begins stays.  Of the batches that go:

1. Their manifests move to `expired/`: from now on nobody restores them.
2. The files that the oldest batch left in the generation doesn't have are deleted; no later batch
   has them either (`layout`).
3. The moved manifests are deleted.  If the program is killed before, the next run goes on.

A generation that has no batch left is deleted as a whole.
"""

from __future__ import annotations

from millpond.savepoint.archive.layout import Archive, ArchivedBatch, first_needed, folder_of
from millpond.savepoint.threads import do_each, threads_between
from millpond.settings import FileBounds

_BOUNDS = FileBounds()


class Window:
    """The batches of an archive that has one writer, and how long they stay."""

    def __init__(self, archive: Archive, keep_seconds: float | None) -> None:
        """
        keep_seconds:  None keeps all
        """
        self._archive = archive
        self._keep_seconds = keep_seconds
        self.batches: list[ArchivedBatch] = []

    def load(self, batches: list[ArchivedBatch]) -> None:
        """Begin with these batches, oldest first."""
        self.batches = batches

    def add(self, batch: ArchivedBatch) -> None:
        """One more batch, the newest."""
        self.batches.append(batch)

    def expire(self, now_ms: int) -> int:
        """Delete what is too old; returns how many batches went.

        Raises:  what the storage raises; then it can be run again.
        """
        if not self.batches:
            return 0
        current = self.batches[-1].generation
        gone = self._too_old(now_ms)
        self.batches = self.batches[len(gone) :]
        left: dict[int, ArchivedBatch] = {}
        for batch in self.batches:
            left.setdefault(batch.generation, batch)
        for batch in gone:
            if batch.generation in left:
                self._move(batch)  # 1
        for number in self._archive.numbers():
            if number in left:
                self._delete_files(left[number])  # 2, 3
            elif number < current:
                # First the manifests: whoever looks for batches doesn't find any.
                self._archive.storage.delete_all(f"{folder_of(number)}/batches")
                self._archive.storage.delete_all(folder_of(number))
        return len(gone)

    def _too_old(self, now_ms: int) -> list[ArchivedBatch]:
        if self._keep_seconds is None:
            return []
        begin_ms = now_ms - self._keep_seconds * 1000
        count = 0
        while count + 1 < len(self.batches) and self.batches[count + 1].committed_ms <= begin_ms:
            count += 1
        return self.batches[:count]

    def _move(self, batch: ArchivedBatch) -> None:
        storage = self._archive.storage
        storage.write(batch.expired_path, storage.read(batch.path, _BOUNDS.manifest_bytes))
        storage.delete(batch.path)

    def _delete_files(self, oldest: ArchivedBatch) -> None:
        """Delete the files of a generation's expired batches that its oldest batch doesn't have."""
        expired = self._archive.expired(oldest.generation)
        if not expired:
            return
        storage, files = self._archive.storage, f"{folder_of(oldest.generation)}/files"
        needed = {file.path for file in self._archive.manifest(oldest).files}
        in_use = set(map(first_needed, needed))
        there = {f.path for batch in expired for f in self._archive.manifest(batch, batch.expired_path).files}
        for number in sorted({*map(first_needed, there), *(batch.batch for batch in expired)} - in_use):
            storage.delete_all(f"{files}/{number}")  # with what a killed try left
        gone = sorted(path for path in there - needed if first_needed(path) in in_use)
        do_each(storage.delete, [f"{files}/{path}" for path in gone], threads=threads_between(storage))
        for batch in expired:
            storage.delete(batch.expired_path)
