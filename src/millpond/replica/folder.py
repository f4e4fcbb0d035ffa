"""A job's replica on disk: its folder, the lock of its follower, and the generation that serves.

    <home>/replicas/<name>-<hash of the checkpoint's URI>/
        lock            of the process that follows
        current         name of the generation that serves; replaced by a rename
        status.json     what the follower does: progress of a build, its last error
        generation-<n>-<unique>/  one LMDB environment, and in `boot` the machine's run that made it
        closed.json, closed-*/    flushed expired rows: see `journal`

The folder's name depends on the checkpoint's URI alone.  So after the job at a path is replaced,
all readers of that path find the new generation.  A generation's record names its job.  The folder
of a shard has the same name with `-shard-` and a hash of the shard, and that of another backend than
LMDB one with a hash of the backend's name.

Batches aren't synced to disk.  So files of another run of the machine aren't trusted, and LMDB
doesn't open them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import uuid
from copy import copy
from pathlib import Path
from typing import Any

import msgspec

from millpond.errors import CheckpointError, MillpondError, ReplicaError, SetupError
from millpond.schema.prepared import ready
from millpond.schema.shard import Shard
from millpond.schema.strict_json import parse_json
from millpond.settings import FileBounds
from millpond.storage import LocalStorage
from millpond.storage.machine import boot_id

_BOOT = "boot"
_GENERATION = re.compile(r"generation-([0-9]{1,9})-[0-9a-f]{8}")
_BOUNDS = FileBounds()
FOLDER_MODE, FILE_MODE = 0o700, 0o600
# LMDB needs shared memory maps and locks that these don't have.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs", "afs", "lustre"})


class FollowerStatus(msgspec.Struct, kw_only=True):
    """The state of a replica's follower, for other processes and for statistics.

    state:            waiting (no committed batch yet), building, following, failed (its last step
                      raised)
    partitions_done:  of a build, of `partitions` in all
    records:          read so far by a build
    error:            condition, message and hint of the last error; None once a later step went
                      well
    looked_at:        seconds since 1970 of the last successful poll of the checkpoint, 0 if there
                      was none
    newest:           the newest committed batch that it saw, -1 if there was none
    oldest_commit_ns: when the first batch beyond the replica was committed, None if there was none
    kept:             the retention of each store, in words
    requests:         that the follower has made since `started_at`, by kind; empty on a local disk
    started_at:       seconds since 1970

    Readers of a replica whose checkpoint is on an object store make no requests: they use
    looked_at, newest and oldest_commit_ns.
    """

    state: str = "waiting"
    pid: int = 0
    partitions_done: int = 0
    partitions: int = 0
    records: int = 0
    error: dict[str, Any] | None = None
    looked_at: float = 0.0
    newest: int = -1
    oldest_commit_ns: int | None = None
    kept: dict[str, str] = {}
    requests: dict[str, int] = {}
    started_at: float = 0.0


class ReplicaPlace:
    """The folder of one job's replica."""

    def __init__(self, home: Path, checkpoint_uri: str, shard: Shard | None = None, backend: str = "lmdb") -> None:
        parts = [p for p in checkpoint_uri.split("/") if p and p != "checkpoint"]
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", parts[-1] if parts else "root")[:48]
        kind = "" if shard is None else f"-shard-{_digest(shard.text)}"
        kind += f"-{_digest(backend)}" if backend != "lmdb" else ""
        self.path = home / "replicas" / f"{name}-{_digest(checkpoint_uri)}{kind}"
        self._files = LocalStorage(self.path, mode=FILE_MODE)
        self._lock: int | None = None

    @classmethod
    def all_of(cls, home: Path, checkpoint_uri: str) -> list[ReplicaPlace]:
        """The folders that there are of a checkpoint's replicas: of the whole job, of shards, in all backends."""
        whole = cls(home, checkpoint_uri)
        found = [] if not whole.path.exists() else [whole]
        for path in sorted(whole.path.parent.glob(f"{whole.path.name}-*")):
            place = copy(whole)
            place.path, place._files = path, LocalStorage(path, mode=FILE_MODE)
            found.append(place)
        return found

    def prepare(self) -> None:
        """Make the folder.  Raises REPLICA_NOT_WRITABLE, NETWORK_FILE_SYSTEM."""
        try:
            # Other users of this machine may not have the right to read the checkpoint.
            self.path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self.path.mkdir(mode=FOLDER_MODE, exist_ok=True)
            if os.stat(self.path).st_mode & 0o777 != FOLDER_MODE:  # made by an earlier version
                os.chmod(self.path, FOLDER_MODE)
        except OSError as broken:
            raise self._not_writable(broken) from broken
        kind = file_system(self.path)
        if kind in _NETWORK:
            raise ReplicaError(
                "NETWORK_FILE_SYSTEM",
                f"{self.path} is on a network file system ({kind}), where a replica isn't safe.",
                hint="Choose a folder on a local disk with --replica-dir or MILLPOND_HOME.",
                path=str(self.path),
            )

    def try_lock(self) -> bool:
        """Become the follower; False if another process follows.  Raises REPLICA_NOT_WRITABLE."""
        if self._lock is not None:
            return True
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as broken:
            raise self._not_writable(broken) from broken
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            os.close(descriptor)
            if taken.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise self._not_writable(taken) from taken
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        """Let another process follow."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def current(self) -> Path | None:
        """The generation that serves; None if there is none of this run of the machine."""
        try:
            name = self._files.read("current", _BOUNDS.note_bytes).decode("utf-8", "replace")
            if not _GENERATION.fullmatch(name):
                return None
            boot = self._files.read(f"{name}/{_BOOT}", _BOUNDS.note_bytes)
        except CheckpointError as broken:
            if broken.condition == "FILE_GONE":
                return None
            raise self._not_writable(broken) from broken
        return self.path / name if boot.decode("utf-8", "replace") == boot_id() else None

    def new_generation(self) -> Path:
        """An empty folder for a new generation."""
        taken = [int(found[1]) for p in self.path.glob("generation-*") if (found := _GENERATION.fullmatch(p.name))]
        # Use each name once: an environment of this process may still map a removed folder.
        path = self.path / f"generation-{max(taken, default=0) + 1}-{uuid.uuid4().hex[:8]}"
        try:
            path.mkdir(mode=FOLDER_MODE)
            self._files.write(f"{path.name}/{_BOOT}", boot_id().encode())
        except (OSError, SetupError) as broken:
            raise self._not_writable(broken) from broken
        return path

    def publish(self, generation: Path) -> None:
        """Let this generation serve from now on."""
        self._files.write("current", generation.name.encode())

    def clean(self) -> None:
        """Remove generations that don't serve: superseded ones, and those of crashed builds.

        A reader that maps one keeps its data until the read ends.
        """
        current = self.current()
        for path in self.path.glob("generation-*"):
            if path != current:
                shutil.rmtree(path, ignore_errors=True)

    def write_status(self, status: FollowerStatus) -> None:
        """Write the status for other processes; without a sync, since it means nothing after a crash."""
        temporary = self.path / f".status.{os.getpid()}.tmp"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "wb") as file:
                file.write(msgspec.json.encode(status))
            temporary.rename(self.path / "status.json")
        except OSError:  # a full disk or a missing folder is reported by the follower itself
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def read_status(self) -> FollowerStatus | None:
        """The follower's last status; None if it never wrote one."""
        try:
            return msgspec.convert(parse_json(self._files.read("status.json", _BOUNDS.note_bytes)), ready(FollowerStatus))
        except (CheckpointError, ValueError):  # msgspec's errors are among these
            return None

    def _not_writable(self, broken: OSError | MillpondError) -> ReplicaError:
        cause = broken.__cause__ if isinstance(broken, MillpondError) else broken
        full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        why = broken.message.rstrip(".") if isinstance(broken, MillpondError) else broken.strerror
        return ReplicaError(
            "DISK_FULL" if full else "REPLICA_NOT_WRITABLE",
            f"The replica's folder {self.path} can't be used: {why}.",
            hint="Choose a folder on a local disk that this user may write to, with --replica-dir or MILLPOND_HOME.",
            path=str(self.path),
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_system(path: Path) -> str:
    """The system's name for the kind of file system of a path; empty if unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text()
    except OSError:
        return ""
    return kind_in(mounts, os.path.realpath(path))


def kind_in(mounts: str, target: str) -> str:
    """The same from the lines of /proc/mounts: `device folder kind options 0 0`.

    Blanks in folders are octal numbers.
    """
    best, kind = "", ""
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[1])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
