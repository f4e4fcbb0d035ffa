"""Several ponds and checkpoints behind one server.

`pond/table` always names a table.  Its own name is enough if only one pond has it.  So a name
always means the same table or is refused, even after another pond gets a table of that name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from millpond.catalogue import open_jobs, shown_name
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.operate.durations import Durations
from millpond.operate.sample import Sample
from millpond.operate.watcher import Watcher, read_newest
from millpond.serve.backups import Backups
from millpond.storage import open_storage
from millpond.tables.cold.report import inspect_job
from millpond.tables.cut import PondCut
from millpond.tables.default_tables import unknown_table
from millpond.tables.job.bounds import Bounds
from millpond.tables.pond import Pond
from millpond.tables.table import Table
from millpond.tables.versions.listing import Version, list_versions
from millpond.versions import list_names

# For so long the owners of a name aren't looked up again.
_OWNERS_SECONDS = 1.0
_NAMED = re.compile(r"([A-Za-z0-9_.\-]+)=(.+)", re.DOTALL)


class Ponds:
    """The tables of several ponds by name.

    reads:  says how long reads of tables took, by their names in URLs
    """

    def __init__(self, ponds: dict[str, Pond]) -> None:
        """The ponds by the names that precede their tables."""
        self._ponds = ponds
        self._owners: dict[str, list[str]] = {}
        self._looked_at = 0.0
        self.backups: Backups | None = None
        self.watcher: Watcher | None = None
        self.reads: Callable[[], Mapping[str, Durations]] = dict
        self._only: Pond | None = next(iter(ponds.values())) if len(ponds) == 1 else None

    def __getitem__(self, name: str) -> Table:
        """The table of that name; of one that means a version, the present one, for one answer.

        Raises:  UNKNOWN_TABLE, AMBIGUOUS_TABLE; REPLICA_BUILDING if it may exist in a moment.
        """
        try:
            if self._only is not None and "/" not in name:
                return self._only.now(name)
            pond, table = self._find(name)
            return self._ponds[pond].now(table)
        except RequestError as error:
            if error.condition == "UNKNOWN_TABLE":
                self._refuse_while_building()
            raise

    def cut(self, name: str, bounds: Bounds | None) -> PondCut:
        """One batch of a table's job, for several reads of it.  Raises as `Pond.cut`."""
        pond = self._only
        if pond is None or "/" in name:
            owner, name = self._find(name)
            pond = self._ponds[owner]
        return pond.cut(name, bounds=bounds)

    def tables(self) -> list[str]:
        """The names of all tables, sorted; with their pond's name if another pond has a table of that name."""
        self._look()
        return sorted(table if len(owners) == 1 else f"{pond}/{table}" for table, owners in self._owners.items() for pond in owners)

    def known_names(self) -> set[str]:
        """Every name of every table; this asks each pond again."""
        self._look()
        return {*self._owners, *(f"{pond}/{table}" for table, owners in self._owners.items() for pond in owners)}

    def names_of(self, name: str) -> tuple[str, ...]:
        """The names of the same table: the one in the list, and the one with the pond's name."""
        try:
            pond, table = self._find(name)
        except RequestError:
            return (name,)
        full = f"{pond}/{table}"
        return (table, full) if self._owners.get(table) == [pond] else (full,)

    def places(self) -> dict[str, tuple[str | Path, tuple[str, ...]]]:
        """By the pond's name, its place, and the places outside of it that it may name."""
        return {name: (pond.place, pond.allowed) for name, pond in self._ponds.items()}

    def aggregates(self) -> list[tuple[str, str]]:
        """Of each name that means a version: its pond, and the name in there.  Raises what the storages raise."""
        places = {pond: open_storage(place) for pond, (place, _) in self.places().items()}
        return [(pond, name) for pond, root in places.items() for name in list_names(root)]

    def versions(self, pond: str, name: str) -> list[Version]:
        """The versions of a name of a pond.  Raises UNKNOWN_VERSION, CORRUPT_FILE, …"""
        place, allow = self.places()[pond]
        return list_versions(place, name, allow=allow)

    def find_aggregate(self, name: str) -> tuple[str, str]:
        """The pond of a name that means a version, and the name in there.

        Raises:  UNKNOWN_VERSION; AMBIGUOUS_TABLE.
        """
        every = self.aggregates()
        found = [(pond, own) for pond, own in every if name in (own, f"{pond}/{own}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(name, len(found))
        names = ", ".join(self.prefix(pond) + own for pond, own in every)
        raise RequestError(
            "UNKNOWN_VERSION",
            f"{name} has no versions here.",
            hint=f"Names with versions are: {names}." if names else "Declare them: Aggregate(…, version=1).",
            table=name,
        )

    def meant_by(self, name: str) -> str | None:
        """The name that means the table of this name now, if that is another one."""
        pond, table = self._find(name)
        found = self._ponds[pond].meant_by(table)
        return None if found is None else self.prefix(pond) + found

    def tables_by_job(self) -> dict[str, list[str]]:
        """The tables of each job that can be read, both named as this server does."""
        found: dict[str, list[str]] = {}
        for name in self.tables():
            with suppress(MillpondError):  # a table that can't be read belongs to a job that says so
                found.setdefault(self._job_of(name), []).append(name)
        return found

    def _job_of(self, name: str) -> str:
        """The job of a table, named as this server does.  Raises as `__getitem__`."""
        pond, table = self._find(name)
        return self.prefix(pond) + self._ponds[pond].now(table).job

    def job_place(self, job: str) -> tuple[str | Path, tuple[str, ...], str]:
        """The pond's place of a job, the places that it may name, and the job's own name.

        Raises:  INVALID_REQUEST if the name doesn't say in which of several ponds.
        """
        return self._place_of(job, "JOB")

    def job_name(self, job: str) -> str:
        """The one name by which this server calls a job, which may be named with its pond.  Raises INVALID_REQUEST."""
        pond, own = self._split(job, "JOB")
        return self.prefix(pond) + own

    def tables_of(self, job: str) -> list[str]:
        """All tables of a job, named as this server does; empty if there is no such job.

        Raises:  INVALID_REQUEST; as `Pond.tables_of` if not all of them are known.
        """
        pond, own = self._split(job, "JOB")
        return [self.prefix(pond) + table for table in self._ponds[pond].tables_of(own)]

    def prefix(self, pond: str) -> str:
        """What precedes the names of a pond's jobs and savepoints: nothing if there is one pond."""
        return "" if self._only is not None else f"{pond}/"

    def place_of(self, savepoint: str) -> tuple[str | Path, tuple[str, ...], str]:
        """The same of a savepoint.  Raises INVALID_REQUEST."""
        return self._place_of(savepoint, "SAVEPOINT")

    def _place_of(self, name: str, what: str) -> tuple[str | Path, tuple[str, ...], str]:
        pond, own = self._split(name, what)
        return self._ponds[pond].place, self._ponds[pond].allowed, own

    def _split(self, name: str, what: str) -> tuple[str, str]:
        """The pond of a job or savepoint, and the name in there.  Raises INVALID_REQUEST."""
        pond, slash, own = name.partition("/")
        if self._only is not None and not (slash and pond in self._ponds):
            return next(iter(self._ponds)), name
        if not slash or pond not in self._ponds:
            raise RequestError(
                "INVALID_REQUEST",
                f"{name[:80]!r} doesn't name one of the server's ponds.",
                hint=f"Write POND/{what}, in a URL POND%2F{what}, with one of {', '.join(sorted(self._ponds))}.",
            )
        return pond, own

    def ready(self, max_behind_seconds: float) -> tuple[bool, str]:
        """Whether every job can be read and isn't further behind than this; if not, why."""
        for pond in self._ponds.values():
            ready, reason = pond.ready(max_behind_seconds)
            if not ready:
                return False, reason
        return True, "ready"

    def statistics(self) -> dict[str, dict[str, Any]]:
        """`Pond.statistics` of each job; with several ponds, the pond's name precedes the job's.

        In the process that makes them, also what `Backups.facts` has.
        """
        found = {
            shown_name(name, job, len(self._ponds)): facts
            for name, pond in self._ponds.items()
            for job, facts in pond.statistics().items()
        }
        for job, facts in self.backups.facts().items() if self.backups is not None else ():
            found.setdefault(job, {}).update(facts)
        return found

    def measured(self) -> dict[str, dict[str, Any]]:
        """`statistics` with `reads`."""
        return self.with_reads(self.statistics(), self.reads())

    def with_reads(self, found: dict[str, dict[str, Any]], reads: Mapping[str, Durations]) -> dict[str, dict[str, Any]]:
        """`statistics`, and as `reads` how long reads of each job's tables took, of all that were asked."""
        for name, took in reads.items():
            with suppress(MillpondError):  # a table that is gone
                job = self._job_of(name)
                if job in found:
                    found[job].setdefault("reads", Durations()).join(took)
        return found

    def samples(self) -> dict[str, Sample]:
        """The newest sample of each job, named as in `statistics`.

        A process that measures no jobs reads what another one has kept.
        """
        if self.watcher is not None:
            return self.watcher.samples()
        return read_newest({name: str(pond.place) for name, pond in self._ponds.items()}, next(iter(self._ponds.values())).allowed)

    def _find(self, name: str) -> tuple[str, str]:
        pond, slash, table = name.partition("/")
        is_full = bool(slash) and pond in self._ponds
        if (table if is_full else name) not in self._owners or time.monotonic() - self._looked_at > _OWNERS_SECONDS:
            self._look()
        if is_full:
            return pond, table
        owners = self._owners.get(name, [])
        if len(owners) > 1:
            raise _ambiguous(name, len(owners))
        if not owners:
            raise unknown_table(name, "the ponds of this server", self.tables())
        return owners[0], name

    def _look(self) -> None:
        owners: dict[str, list[str]] = {}
        for name, pond in self._ponds.items():
            for table in pond.tables():
                owners.setdefault(table, []).append(name)
        self._owners, self._looked_at = owners, time.monotonic()

    def _refuse_while_building(self) -> None:
        """Raise REPLICA_BUILDING while a first build runs: it may show tables that nobody defined."""
        for name, facts in self.statistics().items():
            error = facts.get("error")
            if facts.get("batch") is None and error and error["condition"] == "REPLICA_BUILDING":
                done = {fact: facts.get(fact) for fact in ("partitions_done", "partitions", "records")}
                raise ReplicaError(error["condition"], f"{name}: {error['message']}", hint=error["hint"], job=name, **done)


@contextmanager
def open_ponds(
    names: Iterable[str],
    open_pond: Callable[[str], Pond],
    backups: Backups | None = None,
    watcher: Watcher | None = None,
) -> Iterator[Ponds]:
    """All ponds, each opened with `open_pond` by its name, and closed at the end.

    backups:  which this process makes
    watcher:  whose samples this process keeps
    """
    with ExitStack() as opened:
        ponds = Ponds({name: opened.enter_context(open_pond(name)) for name in names})
        if backups is not None:
            ponds.backups = opened.enter_context(backups)
        if watcher is not None:
            watcher.statistics = ponds.measured
            ponds.watcher = opened.enter_context(watcher)
        yield ponds


def name_places(words: Iterable[str]) -> dict[str, str]:
    """The names of ponds from `place` and `name=place`; without a name, the folder's name counts.

    Raises:  INVALID_REQUEST if two ponds have the same name.
    """
    places: dict[str, str] = {}
    for word in words:
        named = None if Path(word).exists() else _NAMED.fullmatch(word)
        name, place = (named[1], named[2]) if named else (PurePosixPath(word.rstrip("/")).name or "pond", word)
        if name in (".", ".."):
            name = Path(place).resolve().name
        if name in places:
            raise RequestError(
                "INVALID_REQUEST",
                f"Two ponds would be called {name!r}: {places[name]} and {place}.",
                hint=f"Give one another name: OTHER={place}",
                name=name,
            )
        places[name] = place
    return places


def check_room(places: Iterable[str], max_bytes: int, allow: Iterable[str] = ()) -> int:
    """An estimate of the disk that replicas of these places need, which reads all state once.

    While a replica is built again, it needs three times that.

    allow:   as for `millpond.open`
    Raises:  REPLICA_TOO_LARGE if that is more than `max_bytes`, or unknown.
    """
    needed = 0
    for place in places:
        for folder in open_jobs(place, allow=allow):
            estimate = _estimate(folder)
            if estimate is None:
                raise _too_large(f"The size of the job {folder.job} is unknown: some of its state can't be read.", max_bytes)
            needed += estimate
    if 3 * needed > max_bytes:
        raise _too_large(
            f"Replicas would take about {needed} bytes, and three times that while they are built again.", max_bytes, needed
        )
    return needed


def _ambiguous(name: str, count: int) -> RequestError:
    return RequestError(
        "AMBIGUOUS_TABLE",
        f"{count} ponds of this server have a table {name!r}.",
        hint="Name the pond too, as in the list of tables: POND/TABLE, in a URL POND%2FTABLE.",
        table=name,
    )


def _estimate(folder: Any) -> int | None:
    try:
        report = inspect_job(folder, batches=1)
    except MillpondError:
        return None
    return 0 if not report.batches and not report.unread else report.replica_bytes


def _too_large(message: str, max_bytes: int, needed: int | None = None) -> ReplicaError:
    return ReplicaError(
        "REPLICA_TOO_LARGE",
        f"{message} --max-bytes allows {max_bytes}.",
        hint="Allow more with --max-bytes, name another disk with --replica-dir, or see `millpond inspect`.",
        needed_bytes=needed,
        max_bytes=max_bytes,
    )
