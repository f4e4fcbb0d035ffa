"""A batch by a token: all requests with that token read the same batch, of any table of the job.

    token   = place, generation, batch, holder; see `token`
    place   = hash of where the job's checkpoint lies
    holder  = the process that keeps the batch readable

Such a cut is a page's view (`held_views`) under another name.  It ends by itself, and the same
limit of views applies.  A process can answer if the batch is its newest or if it holds the batch.
"""

from __future__ import annotations

import hashlib

import msgspec

from millpond.errors import ReplicaError, RequestError
from millpond.replica.replica import View
from millpond.tables.answer import Answer, Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.held_views import HOLDER
from millpond.tables.job.reads import JobReads, Reads
from millpond.tables.job.shards import ShardState
from millpond.tables.scan.token import pack, unpack

_PLACE_BYTES = 12


class CutToken(Answer):
    """A batch that stays readable for a while.

    token:    opens the batch: `table.at(cut=token)`, of this table or another one of the job
    seconds:  at most so long; less where many batches are kept
    state:    which rows of the table are there
    """

    def __init__(self, cut: Cut, *, token: str, seconds: float, state: ShardState) -> None:
        self.cut = cut
        self.token = token
        self.seconds = seconds
        self.state = state


class _Token(msgspec.Struct, frozen=True, array_like=True):
    place: bytes
    generation: str
    batch: int
    holder: str


def begin_cut(job: JobReads, view: View, cut: Cut, state: ShardState) -> CutToken:
    """Keep the batch of a view readable, and end the view."""
    token = pack(_Token(_place(job), view.generation, view.record.batch, HOLDER))
    job.keep(view)
    return CutToken(cut, token=token, seconds=job.settings.page_view_seconds, state=state)


def cut_not_open(opener: str) -> ReplicaError:
    """A cut that is read outside its context."""
    return ReplicaError("CUT_EXPIRED", "The cut isn't open.", hint=f"Write: with {opener}.cut(…) as cut.")


def is_cut_of(job: JobReads, text: str) -> bool:
    """Whether a token is that of a cut of this job."""
    token = unpack(text, _Token)
    return token is not None and token.place == _place(job)


class TokenReads(Reads):
    """A job as of the batch of a cut."""

    def __init__(self, job: JobReads, text: str, table: str) -> None:
        """Raises INVALID_TOKEN; OTHER_JOB if the cut isn't one of this table's job."""
        self.job = job
        token = unpack(text, _Token)
        if token is None:
            raise RequestError(
                "INVALID_TOKEN",
                "This isn't a cut's token: it is damaged, or a token of another kind.",
                hint="Give the token of GET /tables/{table}/cut.",
                table=table,
            )
        if token.place != _place(job):
            raise RequestError(
                "OTHER_JOB",
                f"{table} is a table of {job.folder.job}, but this is a cut of another job: batches of two jobs don't correspond.",
                hint="Open another cut for it.",
                table=table,
                job=job.folder.job,
            )
        self._token = token

    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:
        """A view of that batch.

        Raises:  CUT_EXPIRED, JOB_REPLACED; NOT_UP_TO_BOUND if it doesn't meet the bounds.
        """
        with self.job.replica.snapshot() as now:
            found = self.job.try_batch(now, self._token.generation, self._token.batch)
            if found is None:
                raise self._expired(now)
        return self.job.meeting(found, bounds)

    def _expired(self, now: View) -> ReplicaError:
        token = self._token
        why = "its time is over" if now.generation == token.generation else "the replica was built again"
        return ReplicaError(
            "CUT_EXPIRED",
            f"The cut of {self.job.folder.job} at batch {token.batch} can no longer be read: {why}.",
            hint="Open a new cut, and make all its reads sooner.",
            batch=token.batch,
            holder=token.holder,
        )


def _place(job: JobReads) -> bytes:
    return hashlib.blake2b(job.folder.checkpoint.encode(), digest_size=_PLACE_BYTES).digest()
