"""The versions of a declared aggregate, and the name that means one of them.

    <pond>/versions/<name>.json    {"format": 1, "name": …, "current": 2, "cut_overs": [{"id": …, "from_version": 1,
                                    "to_version": 2, "at": …, "by": …}, …], "retired": [], "stamp": …}
    <pond>/jobs/<name>.v2/         the job of version 2, with its table of the same name

1. The first start of a version creates the file: that version is current.
2. A cut-over replaces the file, provided that its bytes are still those that it read.  So of several
   at once one goes on, and a reader sees the old version or the new one.
3. A job that was there before its aggregate had versions counts as version 0, under its own name.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from millpond.catalogue import job_of
from millpond.errors import CheckpointError, DefinitionError, MillpondError, RequestError
from millpond.schema.definition.table import check_table_name
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage
from millpond.storage.machine import host_name

FOLDER = "versions"
_FORMAT = 1
_JOB = re.compile(r"(.+)\.v(0|[1-9][0-9]{0,8})")
_NOTE_BYTES = FileBounds().note_bytes
# Older ones are forgotten.
_MOST_CUT_OVERS = 50
_DECLARATION = "declaration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOver:
    """A change of the version that a name means.

    id:            a random one
    from_version, to_version:  what the name meant before and after
    at:            when, an ISO text
    by:            which machine
    """

    id: str
    from_version: int
    to_version: int
    at: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFile:
    """Which version a name means.

    name:       the name
    current:    the version that it means
    cut_overs:  the last ones, oldest first
    retired:    versions that were removed, or are being removed now
    text:       the bytes of the file
    """

    name: str
    current: int
    cut_overs: tuple[CutOver, ...] = ()
    retired: tuple[int, ...] = ()
    text: bytes = field(default=b"", compare=False)

    def to_bytes(self) -> bytes:
        """The file."""
        data = {
            "format": _FORMAT,
            "name": self.name,
            "current": self.current,
            "cut_overs": [asdict(each) for each in self.cut_overs],
            "retired": list(self.retired),
            "stamp": uuid.uuid4().hex,  # of two writers of the same, each knows its own
        }
        return json.dumps(data, indent=1).encode()


def job_name(name: str, version: int) -> str:
    """The name of a version's job, and of its table."""
    return f"{name}.v{version}" if version else name


def table_name(name: str, version: int) -> str:
    """The name under which readers find a version's table, whatever the name means."""
    return f"{name}.v{version}"


def parse_job(job: str) -> tuple[str, int] | None:
    """Name and version of a job or table with a version in its name; None without one."""
    found = _JOB.fullmatch(job)
    return None if found is None else (found[1], int(found[2]))


def check_version(name: str, version: object) -> int:
    """Return the number of a version, if it is valid.  Raises INVALID_REQUEST."""
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < 10**9:
        raise RequestError(
            "INVALID_REQUEST", f"The version of {name} is {version!r:.40}.", hint="Give a whole number from 1.", table=name
        )
    return version


def list_names(pond: Storage) -> list[str]:
    """The names in a pond that mean a version."""
    return [found.removesuffix(".json") for found in pond.names(FOLDER) if found.endswith(".json")]


def path_of(name: str) -> str:
    """The path in the pond of the file that says what a name means."""
    return f"{FOLDER}/{name}.json"


def read_name(pond: Storage, name: str) -> NameFile:
    """What a name means.  Raises FILE_GONE, CORRUPT_FILE."""
    text = pond.read(path_of(name), _NOTE_BYTES)
    try:
        data = parse_json(text)
        if data["format"] != _FORMAT or data["name"] != name:
            raise ValueError("it isn't the file of this name and format")
        current, cut_overs = data["current"], tuple(CutOver(**each) for each in data["cut_overs"])
        retired = tuple(data["retired"])
        for number in (current, *retired):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError("it names no version")
    except DAMAGE as broken:
        path = f"{pond.uri}/{path_of(name)}"
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{path} can't be read: {broken!r:.200}.",
            hint='Mend the number after "current", or restore the file from a copy.',
            path=path,
        ) from broken
    return NameFile(name=name, current=current, cut_overs=cut_overs, retired=retired, text=text)


def try_name(pond: Storage, name: str) -> NameFile | None:
    """The same; None if the name means no version."""
    try:
        return read_name(pond, name)
    except MillpondError as error:
        if error.condition != "FILE_GONE":
            raise
        return None


def meant_table(pond: Storage, name: str) -> str:
    """The table that a name means: of a version, its job's; else the one of that name.  Raises CORRUPT_FILE."""
    parsed = parse_job(name)
    if parsed is not None and parsed[1] == 0 and try_name(pond, parsed[0]) is not None:
        return parsed[0]
    found = try_name(pond, name)
    return name if found is None else job_name(name, found.current)


def words_of_meant(asked: str, meant: str) -> list[str]:
    """A line for people about which version a name means; none if it is the table's or job's own name."""
    parsed = parse_job(meant)
    if asked == meant:
        return []
    return [f"version     {asked} means version {parsed[1] if parsed else 0}: {meant}"]


def check_can_begin(pond: str | Path, name: str, version: int | None) -> None:
    """Refuse to start what a name with versions has no place for.

    version:  of the aggregate to be started; None if it has none
    Raises:   TABLE_EXISTS, CORRUPT_FILE.
    """
    found = try_name(open_storage(pond), check_table_name(name))
    if found is None:
        return
    storage = job_of(pond, job_name(name, version or 0)).storage
    if version is None and storage.stamp("job.json") is None:
        raise DefinitionError(
            "TABLE_EXISTS",
            f"{name} means version {found.current} of an aggregate.",
            hint=f"Declare a version: Aggregate({name!r}, version=…), or choose another name.",
            table=name,
        )
    if version in found.retired and storage.names():
        raise DefinitionError(
            "TABLE_EXISTS",
            f"Version {version} of {name} was not wholly removed.",
            hint=f"Remove the rest first: millpond versions retire … {name} {version} --yes.",
            table=name,
        )


def begin_name(pond: str | Path, name: str, version: int) -> None:
    """Let a name mean a version that was started, if it means none yet.

    If there is a job of that name without a version, the name goes on meaning that one.
    """
    root = open_storage(pond)
    found = try_name(root, name)
    if found is None:
        current = 0 if job_of(pond, name).storage.stamp("job.json") is not None else version
        root.create(path_of(name), NameFile(name=name, current=current, cut_overs=(_cut_over(current, current),)).to_bytes())
    elif version in found.retired:
        left = tuple(each for each in found.retired if each != version)
        _replace(root, found, replace(found, retired=left))


def switch(pond: Storage, found: NameFile, to: int) -> NameFile:
    """Let a name mean another version, unless somebody else has changed it since it was read.

    Raises:  CUTOVER_TAKEN; NOT_WRITABLE.
    """
    cut_overs = (*found.cut_overs, _cut_over(found.current, to))[-_MOST_CUT_OVERS:]
    return _replace(pond, found, replace(found, current=to, cut_overs=cut_overs))


def retire(pond: Storage, found: NameFile, version: int) -> None:
    """Record that a version is removed, so that no cut-over leads to it.  Raises as `switch`."""
    _replace(pond, found, replace(found, retired=tuple(sorted({*found.retired, version}))))


def _replace(pond: Storage, found: NameFile, new: NameFile) -> NameFile:
    if not pond.replace(path_of(found.name), found.text, new.to_bytes()):
        raise RequestError(
            "CUTOVER_TAKEN",
            f"Somebody else has changed what {found.name} means.",
            hint="Look at the versions, and try again: millpond versions list.",
            table=found.name,
        )
    return new


def check_declaration(storage: Storage, declared: dict[str, Any], job: str) -> None:
    """Refuse to continue the job of a version with another declaration.

    storage:   the job's folder
    declared:  what the aggregate says, as JSON; `values` maps columns to texts
    Raises:    DEFINITION_CHANGED, CORRUPT_FILE.
    """
    if storage.stamp(_DECLARATION) is None:
        return
    try:
        before = parse_json(storage.read(_DECLARATION, FileBounds().definition_bytes))
        changed = _changed(before, declared)
    except DAMAGE as broken:
        path = f"{storage.uri}/{_DECLARATION}"
        raise CheckpointError(
            "CORRUPT_FILE", f"{path}: {broken!r:.200}.", hint="Restore the file from a copy.", path=path
        ) from broken
    if changed:
        raise DefinitionError(
            "DEFINITION_CHANGED",
            f"{job} was declared otherwise: {'; '.join(changed)}.",
            hint="Give the new declaration a version of its own, the next number.",
            job=job,
        )


def write_declaration(storage: Storage, declared: dict[str, Any]) -> None:
    """Record what the version of a job says."""
    data = json.dumps(declared, indent=1).encode()
    if storage.stamp(_DECLARATION) is None or storage.read(_DECLARATION, FileBounds().definition_bytes) != data:
        storage.write(_DECLARATION, data)


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Which parts of a declaration differ, in words.

    The texts of values are Spark's own: those of two releases aren't compared.
    """
    found = [
        f"{part} was {before.get(part)!r:.100}, and is {now[part]!r:.100}"
        for part in now
        if part not in ("values", "spark") and before.get(part) != now[part]
    ]
    old, new = dict(before["values"]), dict(now["values"])
    if list(old) != list(new):
        found.append(f"its values were {', '.join(old)}, and are {', '.join(new)}")
    elif before.get("spark") == now["spark"]:
        found += [f"{name} was {old[name]:.100}, and is {new[name]:.100}" for name in new if old[name] != new[name]]
    return found


def _cut_over(from_version: int, to_version: int) -> CutOver:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return CutOver(id=uuid.uuid4().hex, from_version=from_version, to_version=to_version, at=at, by=host_name())
