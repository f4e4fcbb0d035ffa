"""Let a name mean another version, in one step for all its readers, and back again.

1. Read which version the name means.
2. Check that the new version can be read, and isn't behind the current one: it must have read all
   records and files that the current one has.
3. If a limit is given, compare both at the same source offsets.
4. Replace the name's file, provided that nobody has changed it since step 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import JobFolder
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.storage import Storage, open_storage
from millpond.tables.diff.read import Progress
from millpond.tables.diff.sides import Source
from millpond.tables.versions.difference import VersionDiff, diff_versions
from millpond.tables.versions.input import Missing, missing
from millpond.tables.versions.listing import behind_source, find_name, find_version, newest_input
from millpond.versions import NameFile, job_name, switch, table_name

_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOverPlan:
    """A cut-over that isn't done yet.

    pond:      where the name is
    found:     what it means now
    to:        the version that it is to mean
    behind:    what the current version has read and the new one hasn't; None if one of them can't
               tell, and force was given
    behind_source:  of the new version, as of `Version`
    diff:      of both; None if no limit was given, or they can't be compared and force was given
    overruled: what `force` overrules, in words
    """

    pond: Storage
    found: NameFile
    to: int
    behind: Missing | None
    behind_source: int | None
    diff: VersionDiff | None
    overruled: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether the name means that version already."""
        return self.found.current == self.to

    def describe(self) -> str:
        """What will be done, in a few lines."""
        name, before = self.found.name, self.found.current
        if self.is_done:
            return f"nothing     {name} means version {self.to} already"
        lines = [f"cut over    {name} from version {before} to version {self.to}"]
        if self.behind is not None:
            lines.append(f"behind      {self.behind.words()}")
        if self.behind_source is None:
            lines.append(f"not read    unknown: version {self.to} isn't running, or doesn't read Kafka")
        else:
            lines.append(f"not read    {self.behind_source:,} records of the source")
        if self.diff is not None:
            counts = self.diff.table.counts
            lines.append(
                f"differ      {self.diff.share:.3%} of the rows: {counts.added:,} more, {counts.removed:,} less, "
                f"{counts.changed:,} changed, {counts.same:,} the same"
            )
        lines += [f"overruled   {why}" for why in self.overruled]
        own = table_name(name, before)
        lines.append(f"stays       version {before} with its job, as {own}; tokens of changes of {name} must be taken anew")
        return "\n".join(lines)

    def run(self) -> NameFile:
        """Do it; returns what the name means then.

        Raises:  CUTOVER_TAKEN if somebody else has changed it since; NOT_WRITABLE.
        """
        return self.found if self.is_done else switch(self.pond, self.found, self.to)


def plan_cut_over(
    place: str | Path,
    name: str,
    *,
    to: int,
    max_behind: int = 0,
    max_changed: float | None = None,
    wait_seconds: float = 0.0,
    force: bool = False,
    allow: Iterable[str | Path] = (),
    progress: Progress | None = None,
) -> CutOverPlan:
    """Plan to let a name mean another version.

    max_behind:    how many records and files of those that the current version has read the new one
                   may lack
    max_changed:   which part of the rows may differ at the same source offsets, from 0 to 1; None
                   doesn't compare them
    wait_seconds:  how long to wait until the new version isn't behind
    force:         go on although the new version is behind, or nobody can tell
    allow, progress:  as for `diff_versions`
    Raises:        UNKNOWN_VERSION, VERSION_BEHIND, VERSIONS_DIFFER; NO_COMMITTED_BATCH, or what
                   reading its state raises, if the new version can't be read; NOT_ALIGNED if they
                   can't be compared.
    """
    if max_changed is not None and not 0 <= max_changed <= 1:
        raise RequestError("INVALID_REQUEST", f"max_changed is {max_changed!r}.", hint="Give a part from 0 to 1: 0.01 is 1 %.")
    pond = open_storage(place)
    found = find_name(pond, name)
    if found.current == to:
        return CutOverPlan(pond=pond, found=found, to=to, behind=None, behind_source=None, diff=None, overruled=())
    new = find_version(place, name, to, allow)
    if to in found.retired:
        raise RequestError(
            "UNKNOWN_VERSION", f"Version {to} of {name} is being retired.", hint="Start a new version.", table=name, version=to
        )
    _check_readable(new)
    overruled: list[str] = []
    behind = _behind(place, found, new, max_behind, wait_seconds, allow, overruled if force else None)
    diff = None
    if max_changed is not None:
        try:
            diff = diff_versions(place, name, found.current, to, allow=allow, progress=progress)
        except MillpondError as error:
            if not force:
                raise
            overruled.append(f"they can't be compared: {error.message}")
        else:
            if diff.share > max_changed:
                raise RequestError(
                    "VERSIONS_DIFFER",
                    f"{diff.share:.3%} of the rows differ from version {found.current} to version {to} of {name}; "
                    f"{max_changed:.3%} are allowed.",
                    hint=f"Look at them: millpond versions diff {place} {name} {found.current} {to}.",
                    table=name,
                    share=diff.share,
                )
    return CutOverPlan(
        pond=pond,
        found=found,
        to=to,
        behind=behind,
        behind_source=behind_source(new),
        diff=diff,
        overruled=tuple(overruled),
    )


def _check_readable(new: JobFolder) -> None:
    """Raise the error by which the newest batch of a version can't be read, or its table's."""
    side = Source(new).open(time.time_ns() // 1_000_000)
    side.check_known([new.job])
    if new.job not in side.tables:
        raise RequestError(
            "UNKNOWN_VERSION", f"The job {new.job} has no table {new.job}.", hint="Start that version again.", table=new.job
        )
    side.store(new.job)


def _behind(
    place: str | Path,
    found: NameFile,
    new: JobFolder,
    most: int,
    wait_seconds: float,
    allow: Iterable[str | Path],
    overruled: list[str] | None,
) -> Missing | None:
    """What the new version lacks.

    overruled:  takes the reasons that would be errors; None if they are
    Raises:     VERSION_BEHIND, NOT_ALIGNED; the error by which the current version can't be read.
    """
    deadline = time.monotonic() + wait_seconds
    try:
        current = find_version(place, found.name, found.current, allow)
        behind = missing(newest_input(current), newest_input(new))
        while not behind.unknown and behind.count > most and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _PAUSE_SECONDS))
            behind = missing(newest_input(current), newest_input(new))
        if behind.unknown:
            raise ReplicaError(
                "NOT_ALIGNED",
                f"Nobody can tell whether {new.job} is behind {current.job}: {behind.unknown}.",
                hint="Cut over with --force if you know that it isn't.",
                table=found.name,
            )
        if behind.count > most:
            raise RequestError(
                "VERSION_BEHIND",
                f"{new.job} is behind {current.job}: it hasn't read {behind.words()}.",
                hint="Let it catch up (--wait SECONDS), or allow it: --max-behind COUNT.",
                table=found.name,
                records=behind.records,
                files=behind.files,
            )
    except MillpondError as error:
        if overruled is None:
            raise
        overruled.append(error.message)
        return None
    return behind


def describe_done(done: NameFile) -> str:
    """What a name means after a cut-over."""
    return f"{done.name} means version {done.current}: the job {job_name(done.name, done.current)}"
