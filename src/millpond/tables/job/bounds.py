"""Bounds: at least this batch or these offsets, at most so far behind or so old.

A bound with an unknown offset isn't met, and waits like any other, since topics grow partitions.
After the timeout the error says whether the offset was unknown.
"""

from __future__ import annotations

import math
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from millpond.checkpoint.restart_files import log_offset
from millpond.errors import PASSING, MillpondError, ReplicaError, RequestError
from millpond.replica.replica import View
from millpond.schema.shard import parse_shard
from millpond.storage import Storage
from millpond.tables.answer import Cut
from millpond.tables.job.offsets import Missing, Wanted, describe, invalid, missing_of, parse_record, plan_ends
from millpond.tables.job.read_files import ReadFiles

# `start` makes the job known before Spark begins its checkpoint.
_PASSING = PASSING | {"NO_CHECKPOINT"}
# The errors of a table that doesn't exist yet.
ARRIVING = frozenset({"UNKNOWN_TABLE", "NO_COMMITTED_BATCH", "REPLICA_BUILDING"})
_MAX_DEPTH = 8
_SECONDS = {"minimum": 0}
_STOPPED = " The job has stopped."


class Bounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer must reflect.  All given bounds must hold.

    min_batch:           at least this batch
    min_offsets:         each source's end, as in Spark's offsets/N: exclusive, the next offset to
                         read.  By source, {"0": {"views": {"0": 11171}}}, or by topic, {"views":
                         {"0": 11171}}
    contains_offset:     records by their own offset, as a Kafka producer gets it: "views:0:11170",
                         or a list of such texts
    contains_file:       a file that a file source has read: a path, or a URI as Spark logs it
    max_behind_seconds:  the oldest commit that isn't applied is at most so old
    max_age_seconds:     the newest applied commit is at most so old
    shard:               answer from this shard alone, for whoever combines the answers of all shards:
                         the text of the shard that the replica follows
    wait_seconds:        the most seconds to wait for all bounds and for the job's first batch; 0
                         answers or refuses at once.  A read doesn't wait for a job that reported
                         that it stopped, but it does for a killed one, which may be starting again

    Raises:  INVALID_BOUND.
    """

    min_batch: Annotated[int | None, Meta(description="Answer from this batch or a later one only.")] = None
    min_offsets: Annotated[
        Mapping[Any, Any] | None,
        Meta(description='Answer only if the sources have come so far, as in Spark\'s offsets/N: \'{"views": {"0": 11171}}\'.'),
    ] = None
    contains_offset: Annotated[
        str | Iterable[str] | None,
        Meta(description="Answer only if the records with these offsets were read, each as topic:partition:offset."),
    ] = None
    contains_file: Annotated[
        str | os.PathLike[str] | None, Meta(description="Answer only if a file source has read this file.")
    ] = None
    max_behind_seconds: Annotated[
        float | None, Meta(description="Answer only if no commit has waited for longer to be applied.", extra_json_schema=_SECONDS)
    ] = None
    max_age_seconds: Annotated[
        float | None, Meta(description="Answer only if the newest commit isn't older.", extra_json_schema=_SECONDS)
    ] = None
    shard: Annotated[str | None, Meta(description="Answer from this shard alone, which the server must follow.")] = None
    wait_seconds: Annotated[float, Meta(description="Wait so long for all of these.", extra_json_schema=_SECONDS)] = 0.0

    def __post_init__(self) -> None:
        batch = self.min_batch
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int)):
            raise invalid(f"min_batch is {batch!r:.80}", "Give a batch's number.")
        if self.min_offsets is not None:
            _put(self, "min_offsets", _tree(self.min_offsets, 0))
        if self.contains_offset is not None:
            several: Any = self.contains_offset
            given = tuple(several) if isinstance(several, Iterable) and not isinstance(several, str) else (several,)
            if not all(isinstance(text, str) for text in given):
                raise invalid(f"contains_offset is {given!r:.120}", "Write topic:partition:offset, like views:0:11170.")
            for text in given:
                parse_record(text)
            _put(self, "contains_offset", given)
        if self.contains_file is not None:
            try:
                path = os.fspath(self.contains_file)
            except TypeError:
                path = ""
            if not isinstance(path, str) or not path:
                raise invalid(f"contains_file is {self.contains_file!r:.120}", "Give the path of one file.")
            _put(self, "contains_file", path)
        if self.shard is not None:
            _put(self, "shard", _shard(self.shard))
        for name in ("max_behind_seconds", "max_age_seconds", "wait_seconds"):
            seconds = getattr(self, name)
            if seconds is None and name != "wait_seconds":
                continue
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                raise invalid(f"{name} is {seconds!r:.80}", "Give a number of seconds, at least 0.")

    def records(self) -> Iterator[Wanted]:
        """The records that `contains_offset` names."""
        given: Any = self.contains_offset or ()
        return map(parse_record, given)


_put = msgspec.structs.force_setattr


def _shard(text: Any) -> str:
    try:
        return parse_shard(text).text
    except (RequestError, TypeError):
        raise invalid(f"shard is {text!r:.80}", "Write 1/3 or 0-31, as the server was started.") from None


class Unmet(msgspec.Struct, frozen=True):
    """The first bound that doesn't hold.

    missing:  how much is missing: batches, offsets or seconds; None if that is unknown
    """

    condition: str
    message: str
    context: dict[str, Any]


class BoundCheck:
    """One caller's bounds, checked again and again while it waits."""

    def __init__(self, bounds: Bounds, storage: Storage) -> None:
        self._bounds = bounds
        self._storage = storage
        self._files: ReadFiles | None = None

    def unmet(self, cut: Cut) -> Unmet | None:
        """The first bound that this cut doesn't meet.  Raises INVALID_BOUND if one doesn't fit this job."""
        bounds, position, lag = self._bounds, cut.position, cut.lag
        if bounds.min_batch is not None and position.batch < bounds.min_batch:
            return _unmet(cut, "min_batch", bounds.min_batch, position.batch, bounds.min_batch - position.batch, "batches")
        wanted = list(bounds.records())
        if bounds.min_offsets is not None:
            wanted += plan_ends(bounds.min_offsets, position.offsets)
        for each in wanted:
            missing = missing_of(each, position.offsets)
            if missing is not None:
                return _missing_offset(cut, missing)
        behind, age = lag.behind_seconds, lag.age_seconds
        if bounds.max_behind_seconds is not None and behind > bounds.max_behind_seconds:
            return _too_late(cut, "max_behind_seconds", bounds.max_behind_seconds, behind)
        if bounds.max_age_seconds is not None and age > bounds.max_age_seconds:
            return _too_late(cut, "max_age_seconds", bounds.max_age_seconds, age)
        if bounds.contains_file is not None:
            return self._unread_file(str(bounds.contains_file), cut)
        return None

    def _unread_file(self, path: str, cut: Cut) -> Unmet | None:
        offsets = cut.position.offsets
        if all(offset is not None and log_offset(offset) is None for offset in offsets.values()):
            raise invalid(
                f"contains_file is given, but no source of this job reads files: {describe(offsets)}",
                "Use contains_offset or min_offsets.",
            )
        if self._files is None:
            self._files = ReadFiles(self._storage, _wanted(path), _canonical)
        have, lack = self._files.split(offsets)
        if have and not lack:
            return None
        batch = cut.position.batch
        context = {"bound": "contains_file", "wanted": path, "batch": batch}
        if not have:
            return Unmet("NOT_UP_TO_BOUND", f"Up to batch {batch}, no file source has read {path}.", context)
        lacking, having = (f"source{'s'[: len(names) > 1]} {', '.join(names)}" for names in (lack, have))
        return Unmet(
            "NOT_UP_TO_BOUND",
            f"Up to batch {batch}, {having} has read {path}, and {lacking}, which reads the same folder, hasn't.",
            {**context, "sources": lack},
        )


def open_within(
    bounds: Bounds,
    storage: Storage,
    open_view: Callable[[], tuple[View, Cut]],
    wait_for_step: Callable[[float], None],
    *,
    said_stopped: Callable[[], bool],
    settle_seconds: float,
) -> tuple[View, Cut]:
    """A view that meets the bounds, as soon as there is one.

    said_stopped:    whether the job itself reported that it stopped
    settle_seconds:  a job counts as stopped after it has looked stopped for so long, with nothing
                     left to apply: readers don't see its last batch and its last heartbeat at the
                     same instant
    Raises:  NOT_UP_TO_BOUND or UNKNOWN_OFFSET if there is none in time or the job has stopped;
             INVALID_BOUND; as `open_view`.
    """
    began, check = time.monotonic(), BoundCheck(bounds, storage)
    stopped_at: float | None = None
    while True:
        problem: MillpondError
        is_stopped = False
        try:
            view, cut = open_view()
        except MillpondError as error:
            if error.condition not in _PASSING:
                raise
            problem = error
        else:
            with view:
                unmet = check.unmet(cut)
                if unmet is None:
                    return view.hand_on(), cut
            is_stopped = cut.job_state == "stopped" and cut.lag.behind_batches == 0 and said_stopped()
            waited = min(bounds.wait_seconds, round(time.monotonic() - began, 3))
            problem = error_of(unmet, waited, is_stopped=is_stopped)
        now = time.monotonic()
        left = began + bounds.wait_seconds - now
        stopped_at = (stopped_at or now) if is_stopped else None
        if left <= 0 or (stopped_at is not None and now - stopped_at >= settle_seconds):
            raise problem
        wait_for_step(left if stopped_at is None else min(left, settle_seconds))


def may_pass(error: MillpondError) -> bool:
    """Whether the next batch may mend this: a bound isn't met yet, or the job can't be read now."""
    return "waited_seconds" in error.context or error.condition in _PASSING


def is_of_stopped(error: MillpondError) -> bool:
    """Whether a bound isn't met and the job seems to have stopped."""
    return error.context.get("job_state") == "stopped"


def after(error: MillpondError, waited_seconds: float) -> MillpondError:
    """The error for a caller who has waited so long."""
    if "waited_seconds" not in error.context:
        return error
    stopped = _STOPPED if error.message.endswith(_STOPPED) else ""
    message = f"{error.message.removesuffix(stopped).removesuffix('.')} after {waited_seconds:g} seconds.{stopped}"
    context = {**error.context, "waited_seconds": waited_seconds}
    return type(error)(error.condition, message, hint=error.hint, **context)


def error_of(unmet: Unmet, waited_seconds: float, *, is_stopped: bool = False) -> MillpondError:
    """The error for bounds that aren't met in time, or can't be met by a stopped job."""
    waited = f" after {waited_seconds:g} seconds" if waited_seconds else ""
    message = f"{unmet.message.removesuffix('.')}{waited}."
    context = {**unmet.context, "waited_seconds": waited_seconds}
    if is_stopped:
        message += _STOPPED
        hint = "Start the job again, or loosen the bound."
        context["job_state"] = "stopped"
    elif unmet.condition == "UNKNOWN_OFFSET":
        hint = "Correct the topic or partition, or wait until Spark reads it."
    else:
        hint = "Wait longer (wait_seconds), or loosen the bound."
    kind = RequestError if unmet.condition == "UNKNOWN_OFFSET" else ReplicaError
    return kind(unmet.condition, message, hint=hint, **context)


def _unmet(cut: Cut, bound: str, wanted: Any, here: Any, missing: Any, unit: str) -> Unmet:
    return Unmet(
        "NOT_UP_TO_BOUND",
        f"{bound} is {wanted}, and the replica of {cut.job} is at {here}: {missing} {unit} to go.",
        {"bound": bound, "wanted": wanted, "here": here, "missing": missing, "batch": cut.position.batch},
    )


def _too_late(cut: Cut, bound: str, allowed: float, found: float) -> Unmet:
    return Unmet(
        "NOT_UP_TO_BOUND",
        f"{bound} is {allowed:g}, and the replica of {cut.job} is {found:.3f} seconds {'old' if 'age' in bound else 'behind'} "
        f"at batch {cut.position.batch}.",
        {"bound": bound, "wanted": allowed, "here": found, "missing": found - allowed, "batch": cut.position.batch},
    )


def _missing_offset(cut: Cut, missing: Missing) -> Unmet:
    wanted, batch = missing.wanted, cut.position.batch
    name = wanted.bound.partition(" ")[0]
    context = {"bound": name, "wanted": wanted.end, "here": missing.here, "batch": batch}
    if missing.unknown is not None:
        return Unmet("UNKNOWN_OFFSET", f"{wanted.bound}: batch {batch} has no such offset; {missing.unknown}", context)
    if missing.here is None:
        return Unmet("NOT_UP_TO_BOUND", f"{wanted.bound}: up to batch {batch}, that source has read nothing.", context)
    short = wanted.end - missing.here
    return Unmet(
        "NOT_UP_TO_BOUND",
        f"{wanted.bound}: batch {batch} ends at offset {missing.here}, exclusive, but must end at {wanted.end}: {short} to go.",
        {**context, "missing": short},
    )


def _wanted(path: str) -> str:
    """One spelling of a file: with a scheme, a percent-encoded URI; without one, a plain path on the local disk."""
    return _canonical(unquote(path)) if ":/" in path else os.path.abspath(path)


def _canonical(uri: str) -> str:
    """One spelling for file:///a, file:/a and /a, and for s3a:// and s3://."""
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return posixpath.normpath(uri)
    if scheme == "file":
        return posixpath.normpath("/" + rest.lstrip("/"))
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}:{rest}"


def _tree(given: Any, depth: int) -> Any:
    """min_offsets with names as Spark writes them: texts."""
    hint = "Write it like {'views': {'0': 11171}}, or {'0': …} with the offset of source 0 as in offsets/N."
    if isinstance(given, Mapping) and given and depth < _MAX_DEPTH:
        if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in given):
            raise invalid(f"min_offsets has the names {list(given)!r:.120}", hint)
        return {str(name): _tree(below, depth + 1) for name, below in given.items()}
    if isinstance(given, bool) or not isinstance(given, int) or depth == 0:
        raise invalid(f"min_offsets holds {given!r:.120}", hint)
    return given
