"""MULTI to EXEC: several commands that read one batch of each job, as Redis runs them without another's in between.

1. From MULTI on, commands are looked at and queued.  One that is unknown or malformed breaks the transaction.
2. WATCH remembers what a row is; if it is another one at EXEC, nothing runs.
3. EXEC opens a cut of each job that a command names, and runs all commands on these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from millpond.serve.ponds import Ponds
from millpond.serve.redis.wire import OK, Encoded, Error, NullArray, Reply, Simple, encode
from millpond.tables.cut import PondCut
from millpond.tables.job.reads import JobReads
from millpond.tables.table import Table

_QUEUED = Simple("QUEUED")
TOO_LARGE = Error("ERR ANSWER_TOO_LARGE The answer is too large. Ask for fewer keys at a time.")
# They subscribe, or change how the replies of EXEC are written.
REFUSED = frozenset(b"subscribe psubscribe unsubscribe punsubscribe pubsub hello auth".split())
# These aren't queued.
AT_ONCE = frozenset(b"exec discard multi watch quit reset".split())


class OneBatch:
    """The tables of a door, each job's at one batch.  A context manager."""

    def __init__(self, ponds: Ponds) -> None:
        self._ponds = ponds
        self._cuts: dict[JobReads, PondCut] = {}
        self._open = ExitStack()

    def __enter__(self) -> OneBatch:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def __getitem__(self, name: str) -> Table:
        """A table by its name.  Raises as `Ponds`."""
        table = self._ponds[name]
        job = table.job_reads
        if job not in self._cuts:
            self._cuts[job] = self._open.enter_context(self._ponds.cut(name, None))
        return self._cuts[job][table.name]


class Transaction:
    """What a connection has queued and watches.

    most:        how many commands may be queued, and how many keys watched
    most_bytes:  of all words of these commands, and of all these keys
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self.queued: list[list[bytes]] | None = None
        self._bytes = 0
        self._is_broken = False
        self._watched: dict[bytes, bytes] = {}
        self._watched_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether MULTI has begun one."""
        return self.queued is not None

    def clear(self) -> None:
        """Forget all of it."""
        self.queued, self._bytes, self._is_broken = None, 0, False
        self.unwatch()

    def begin(self) -> Reply:
        """MULTI."""
        if self.queued is not None:
            return Error("ERR MULTI calls can not be nested")
        self.queued = []
        return OK

    def queue(self, words: list[bytes]) -> Reply:
        """A command that is known and well-formed."""
        assert self.queued is not None
        self._bytes += sum(map(len, words))
        if len(self.queued) >= self._most or self._bytes > self._most_bytes:
            self.queued.clear()
            return self.broken(Error(f"ERR A transaction may have {self._most} commands and {self._most_bytes} bytes"))
        if not self._is_broken:
            self.queued.append(words)
        return _QUEUED

    def broken(self, error: Error) -> Error:
        """The error of a command that isn't queued: nothing will run."""
        self._is_broken = self._is_broken or self.is_open
        return error

    def discard(self) -> Reply:
        """DISCARD."""
        if self.queued is None:
            return Error("ERR DISCARD without MULTI")
        self.clear()
        return OK

    def watch(self, keys: list[bytes], read: Callable[[bytes], Reply]) -> Reply:
        """WATCH.

        read:  gives a key's row
        """
        if self.queued is not None:
            return Error("ERR WATCH inside MULTI is not allowed")
        new = [key for key in dict.fromkeys(keys) if key not in self._watched]
        new_bytes = sum(map(len, new))
        if len(self._watched) + len(new) > self._most or self._watched_bytes + new_bytes > self._most_bytes:
            return Error(f"ERR A connection may watch {self._most} keys and {self._most_bytes} bytes")
        self._watched.update((key, _digest(read(key))) for key in new)
        self._watched_bytes += new_bytes
        return OK

    def unwatch(self) -> Reply:
        """UNWATCH."""
        self._watched, self._watched_bytes = {}, 0
        return OK

    def run(self, read: Callable[[bytes], Reply], answer: Callable[[list[bytes]], Reply], protocol: int, most_bytes: int) -> Reply:
        """EXEC: the replies to all commands, on the batches that `read` and `answer` read.

        most_bytes:  of all replies
        """
        queued, watched, is_broken = self.queued, self._watched, self._is_broken
        if queued is None:
            return Error("ERR EXEC without MULTI")
        self.clear()
        if is_broken:
            return Error("EXECABORT Transaction discarded because of previous errors.")
        if any(_digest(read(key)) != was for key, was in watched.items()):
            return NullArray()
        return _bounded((encode(answer(words), protocol) for words in queued), most_bytes)


def _bounded(replies: Iterable[bytes], most_bytes: int) -> Reply:
    out, size = list[Reply](), 0
    for reply in replies:
        size += len(reply)
        if size > most_bytes:
            return TOO_LARGE
        out.append(Encoded(reply))
    return out


def _digest(reply: Reply) -> bytes:
    return hashlib.blake2b(encode(reply, 2), digest_size=16).digest()
