"""The names of a pond that mean one version at a time, as its readers see them.

1. Each read looks up its name once, and is wholly of the version that it means then.
2. On a local disk each look-up compares the file's stamp, so that a cut-over is seen by the next
   read in every process.  For an object store, a thread of the pond reads the files.
3. While this process still builds its replica of the new version, it goes on with the one before.
4. A page's token and a cut stay with the version that they began with.  A token of changes doesn't:
   changes of two versions aren't one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.storage import Storage
from millpond.storage.base import FileStamp
from millpond.tables.table import Table
from millpond.versions import NameFile, job_name, list_names, parse_job, path_of, read_name, table_name

# The new version's replica isn't there yet.
_NOT_YET = frozenset({"REPLICA_BUILDING", "NO_COMMITTED_BATCH"})


class NameFiles:
    """The files that say what names mean, as they were last read."""

    def __init__(self, pond: Storage) -> None:
        self._pond = pond
        self._files: dict[str, tuple[FileStamp | None, NameFile | MillpondError]] = {}

    def names(self) -> list[str]:
        """All names that were there at the last refresh."""
        return list(self._files)

    def refresh(self) -> None:
        """Read files that are new or have changed.  Raises what the storage raises."""
        names = list_names(self._pond)
        for name in names:
            self._look(name)
        for name in self._files.keys() - set(names):
            self._files.pop(name, None)

    def current(self, name: str) -> int:
        """The version that a name means.  Raises CORRUPT_FILE."""
        found = self._files[name][1] if self._pond.is_remote else self._look(name)
        if isinstance(found, MillpondError):
            raise found
        return found.current

    def _look(self, name: str) -> NameFile | MillpondError:
        """What the file says now.  Another thread may look meanwhile, so that this isn't what `_files` has then."""
        known, stamp = self._files.get(name), self._pond.stamp(path_of(name))
        if known is not None and (stamp is None or stamp == known[0]):
            return known[1]  # if it was deleted, the next refresh drops the name
        try:
            found: NameFile | MillpondError = read_name(self._pond, name)
        except MillpondError as error:
            if error.condition not in ("FILE_GONE", "CORRUPT_FILE"):
                raise
            if error.condition == "FILE_GONE" and known is not None:
                return known[1]
            found = error
        self._files[name] = (stamp, found)
        return found


class VersionsOf:
    """The versions of one name: for each a table under that name.

    table:  follows the name
    """

    def __init__(
        self, name: str, files: NameFiles, refresh: Callable[[], None], why: Callable[[str], MillpondError | None]
    ) -> None:
        """The versions of a name.

        refresh:  reads the pond's catalogue again
        why:      why a job's folder can't be read; None if it can, or isn't there
        """
        self.name = name
        self._files = files
        self._refresh = refresh
        self._why = why
        # Version -> the version's own table, and the same under the name.
        self._tables: dict[int, tuple[Table, Table]] = {}
        self._served: int | None = None
        self.table: Table = FollowingTable(self.now)

    def use(self, own: Iterable[tuple[int, Table]]) -> None:
        """These are the tables of the versions from now on."""
        before = self._tables
        found: dict[int, tuple[Table, Table]] = {}
        for number, table in own:
            known = before.get(number)
            found[number] = known if known is not None and known[0] is table else (table, self._under_name(table))
        self._tables = found

    def now(self) -> Table:
        """The table of the version that the name means, for one read.

        Raises:  UNKNOWN_VERSION if its job isn't there; CORRUPT_FILE.
        """
        current = self._files.current(self.name)
        found = self._tables.get(current)
        if found is None:
            self._refresh()  # it was started just now
            found = self._tables.get(current)
        if found is None:
            why = self._why(job_name(self.name, current))
            if why is not None:
                raise why
            raise RequestError(
                "UNKNOWN_VERSION",
                f"{self.name} means version {current}, but there is no table of the job {job_name(self.name, current)}.",
                hint="Start that version, or cut over to another one: millpond versions list.",
                table=self.name,
                version=current,
            )
        if self._served not in (None, current):
            before = self._tables.get(self._served or 0)
            if before is not None and not _can_read(found[1]):  # 3
                return before[1]
        self._served = current
        return found[1]

    def now_is(self, table: str) -> bool:
        """Whether the name means the version whose own table has this name."""
        try:
            parsed = parse_job(self.now().job)
        except MillpondError:
            return False
        return table == table_name(self.name, parsed[1] if parsed is not None and parsed[0] == self.name else 0)

    def others(self) -> set[str]:
        """The jobs of versions that no read of the name is answered by now."""
        try:
            now = self.now().job
        except MillpondError:
            return set()
        return {table.job for table, _ in self._tables.values() if table.job != now}

    def of_job(self, job: str) -> Table | None:
        """See `OtherVersions`."""
        return next((table for _, table in self._tables.values() if table.job == job), None)

    def owner_of(self, token: str) -> Table | None:
        """See `OtherVersions`."""
        return next((table for _, table in self._tables.values() if table.owns(token)), None)

    def check_current(self, job: str) -> None:
        """See `OtherVersions`."""
        now = self.now().job
        if now != job:
            raise self._changed(job, now)

    def check_token(self, token: str, job: str) -> None:
        """See `OtherVersions`."""
        owner = self.owner_of(token)
        if owner is not None and owner.job != job:
            raise self._changed(owner.job, job)

    def _changed(self, before: str, now: str) -> ReplicaError:
        parsed = parse_job(before)
        own = table_name(self.name, parsed[1] if parsed is not None and parsed[0] == self.name else 0)
        return ReplicaError(
            "VERSION_CHANGED",
            f"These are changes of {before}, and {self.name} means {now} now: changes of two versions aren't one sequence.",
            hint=f"Take a token with changes() of {self.name}, read the table, and go on from that token after the batch of the "
            f"read; or go on with the old version as {own}.",
            table=self.name,
            job=now,
        )

    def _under_name(self, table: Table) -> Table:
        name, define = self.name, table.define
        redefine = None if define is None else lambda schema: replace(define(schema), table=name)
        under = Table(replace(table.definition, table=name), table.job_reads, redefine)
        under.versions = self
        return under


class FollowingTable(Table):
    """A table that is the one that its name means, anew at each use."""

    def __init__(self, now: Callable[[], Table]) -> None:
        self._now = now

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") and name != "__arrow_c_stream__":
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_now")(), name)


def versions_of(name: str, tables: Iterable[Table]) -> list[tuple[int, Table]]:
    """The tables of the versions of a name, among a pond's own tables: those with the name of their job."""
    found = []
    for table in tables:
        parsed = (name, 0) if table.job == name else parse_job(table.job)
        if table.name == table.job and parsed is not None and parsed[0] == name and (parsed[1] or table.job == name):
            found.append((parsed[1], table))
    return found


def _can_read(table: Table) -> bool:
    try:
        with table.job_reads.replica.snapshot():
            return True
    except MillpondError as error:
        return error.condition not in _NOT_YET
