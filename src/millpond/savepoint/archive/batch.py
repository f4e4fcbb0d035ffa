"""Copy one batch to an archive.

1. Find the files that a restart needs.  With the files of the batch before at hand, these are the
   batch's own changes.
2. Copy those that the batch before doesn't have, into the batch's own folder.  Files that may change
   under their name, a few small ones, are compared.
3. Look again: commits/N must still be the file that was read, or the job was replaced.
4. Let all of it survive a crash.
5. Only then write the manifest, if nobody else has.

If anything fails, or the program is killed, the batch isn't in the archive; the next try writes the
same files again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import CommittedBatch, check_still_committed, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.restart_files import RestartFile, restart_files
from millpond.savepoint.archive.layout import Archive, ArchivedBatch, folder_of, without_batch
from millpond.savepoint.describe import describe_batch
from millpond.savepoint.manifest import SavepointFile
from millpond.savepoint.threads import do_each, threads_between
from millpond.storage import FileStamp, Storage
from millpond.storage.copying import copy_file, hash_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The newest batch of an archive, and what the next one can take from it.

    archived:      the batch
    started_ms:    when Spark planned it
    job_id, fingerprint, commit_stamp:  by which `identity.judge` finds out whether the job is the
                   same
    files:         those of a restart
    copies:        path in the checkpoint -> the file in the archive
    """

    archived: ArchivedBatch
    started_ms: int
    job_id: str
    fingerprint: str
    commit_stamp: FileStamp
    files: tuple[RestartFile, ...]
    copies: dict[str, SavepointFile]

    @property
    def batch(self) -> int:
        """The batch's number."""
        return self.archived.batch

    def stamped(self, stamp: FileStamp) -> Reached:
        """The same, with the stamp that commits/N has in the checkpoint itself."""
        return replace(self, commit_stamp=stamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """From where batches are copied, and to where.

    source:   the job's checkpoint
    """

    job: JobFolder
    source: Storage
    archive: Archive

    def run(
        self, number: int, generation: int, before: Reached | None, before_record: Callable[[ArchivedBatch], None]
    ) -> tuple[Reached, int, int] | None:
        """Copy a batch; returns it with the number of files and bytes that were copied.

        before:         the batch before it, of the same generation
        before_record:  called between the last copy and the manifest
        Returns:        None if somebody else has written the manifest
        Raises:         FILE_GONE if Spark has deleted a file; as `restart_files` and `copy_file`.
        """
        batch = read_batch(self.source, Batch(number))
        refuse_real_time(self.source, batch)
        files = restart_files(self.source, batch, before.files if before is not None else ())  # 1
        work = partial(self._copy, number, generation, before.copies if before is not None else {})
        copies = do_each(work, files, threads=threads_between(self.source, self.archive.storage))  # 2
        archived = ArchivedBatch(generation, number, _committed_ms(batch))
        tables, _ = self.job.read_entries()  # a definition that can't be read doesn't end the archive
        manifest = describe_batch(self.job, self.source, batch, zip(files, copies, strict=True), tables, name=archived.name)
        check_still_committed(self.source, batch)  # 3
        self.archive.storage.sync()  # 4
        before_record(archived)
        text = manifest.to_bytes()
        if not self.archive.storage.create(archived.path, text):  # 5
            return None
        reached = Reached(
            archived=archived,
            started_ms=batch.started_ms,
            job_id=manifest.job_id,
            fingerprint=batch.fingerprint,
            commit_stamp=batch.commit_stamp,
            files=tuple(files),
            copies={without_batch(copy.path): copy for copy in copies},
        )
        new = [copy for copy in copies if copy.path.startswith(f"{number}/")]
        return reached, len(new) + 1, sum(copy.size_bytes for copy in new) + len(text)

    def _copy(self, number: int, generation: int, there: dict[str, SavepointFile], file: RestartFile) -> SavepointFile:
        found = there.get(file.path)
        if found is not None and (
            file.is_settled or hash_file(self.source, file.path, most_bytes=file.most_bytes) == found.content
        ):
            return found
        path = f"{number}/{file.path}"
        target = f"{folder_of(generation)}/files/{path}"
        copied = copy_file(self.source, file.path, self.archive.storage, target, most_bytes=file.most_bytes, share=file.is_final)
        return SavepointFile(path=path, size_bytes=copied.size_bytes, sha256=copied.sha256)


def read_reached(archive: Archive, archived: ArchivedBatch) -> Reached:
    """What an archive has of a batch.  Raises as `Archive.savepoint` and `restart_files`."""
    copies = {without_batch(file.path): file for file in archive.manifest(archived).files}
    savepoint = archive.savepoint(archived)
    batch = read_batch(savepoint.checkpoint, Batch(archived.batch))
    return Reached(
        archived=archived,
        started_ms=batch.started_ms,
        job_id=savepoint.manifest.job_id,
        fingerprint=batch.fingerprint,
        commit_stamp=batch.commit_stamp,
        files=tuple(restart_files(savepoint.checkpoint, batch)),
        copies=copies,
    )


def _committed_ms(batch: CommittedBatch) -> int:
    return batch.started_ms if batch.committed_ns is None else batch.committed_ns // 1_000_000
