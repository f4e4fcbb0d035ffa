"""Offsets that a bound names, compared with those at which a batch ends.

Spark's end is the next offset to read: a record at offset 7 is in a batch that ends at 8.  Each
number is compared with the one at the same place in the source's offset.  If the source has no
number there, or other names, the bound is refused: nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millpond.checkpoint.offset_order import is_by_topic
from millpond.errors import RequestError

Offsets = Mapping[str, Any]
"""source -> its offset, as Spark wrote it; None if it had none yet"""


class Wanted(msgspec.Struct, frozen=True):
    """One number that an offset must reach.

    bound:   the bound that asks for it, as its caller wrote it
    source:  the source's name, None for every source that has this topic
    path:    names inside the offset, such as Kafka's topic and partition; empty if the offset is a
             number
    end:     the least end that meets the bound
    """

    bound: str
    source: str | None
    path: tuple[str, ...]
    end: int


class Missing(msgspec.Struct, frozen=True):
    """A number that the offset hasn't reached.

    here:     where the batch ends; None if the source had no offset yet
    unknown:  which topics or partitions the source has, if it lacks this one
    """

    wanted: Wanted
    here: int | None
    unknown: str | None = None


def parse_record(text: str) -> Wanted:
    """`topic:partition:offset` of one record, as a producer gets it.  Raises INVALID_BOUND."""
    topic, _, rest = text.partition(":") if text.count(":") == 2 else ("", "", "")
    partition, _, offset = rest.partition(":")
    if not (topic and _is_number(partition) and _is_number(offset)):
        raise invalid(f"contains_offset is {text!r:.120}", "Write topic:partition:offset, like views:0:11170.")
    # A batch that contains the record ends after it: at offset 11171 or later.
    return Wanted(f"contains_offset {text}", None, (topic, str(int(partition))), int(offset) + 1)


def plan_ends(tree: Mapping[str, Any], found: Offsets) -> Iterator[Wanted]:
    """What `min_offsets` asks for: by source if all its names are sources, else by topic."""
    by_source = all(name in found for name in tree)
    for name, below in tree.items():
        source, path = (name, ()) if by_source else (None, (name,))
        yield from _leaves(below, source, path)


def _leaves(tree: Any, source: str | None, path: tuple[str, ...]) -> Iterator[Wanted]:
    if isinstance(tree, int):
        place = ":".join(path if source is None else (f"source {source}", *path))
        yield Wanted(f"min_offsets {place}:{tree}", source, path, tree)
        return
    for name, below in tree.items():
        yield from _leaves(below, source, (*path, name))


def missing_of(wanted: Wanted, found: Offsets) -> Missing | None:
    """What is missing for this number; None if it is reached.

    Raises:  INVALID_BOUND if no source has offsets of this shape.
    """
    if wanted.source is not None:
        return _missing_in(wanted, found[wanted.source], wanted.source)
    topic = wanted.path[0]
    given = {source: offset for source, offset in found.items() if offset is not None}
    by_topic = {source: offset for source, offset in given.items() if is_by_topic(offset)}
    if given and not by_topic and len(given) == len(found):
        raise invalid(
            f"{wanted.bound} names a topic and a partition, but no source of this job has such offsets: {describe(found)}",
            "Name the source: min_offsets={'0': …} with a value of the same shape, or contains_file for a file source.",
        )
    # If two sources read the same topic, a record is in the answer only after both have read it.
    reading = [(source, offset) for source, offset in by_topic.items() if topic in offset]
    for source, offset in reading:
        missing = _missing_in(wanted, offset, source)
        if missing is not None:
            return missing
    if reading:
        return None
    if len(given) < len(found):
        return Missing(wanted, None)  # it may be the topic of a source that hasn't read yet
    topics = sorted({name for offset in by_topic.values() for name in offset})
    return Missing(wanted, None, f"the topics are {', '.join(topics)}")


def _missing_in(wanted: Wanted, offset: Any, source: str) -> Missing | None:
    at = offset
    for depth, name in enumerate(wanted.path):
        if at is None:
            return Missing(wanted, None)
        if not isinstance(at, dict):
            raise _other_shape(wanted, offset, source)
        if name not in at:
            what = "partitions" if depth == 1 and is_by_topic(offset) else "names there"
            return Missing(wanted, None, f"the {what} are {', '.join(map(str, at))}")
        at = at[name]
    if at is None:
        return Missing(wanted, None)
    if isinstance(at, bool) or not isinstance(at, int):
        raise _other_shape(wanted, offset, source)
    return None if at >= wanted.end else Missing(wanted, at)


def _other_shape(wanted: Wanted, offset: Any, source: str) -> RequestError:
    return invalid(
        f"{wanted.bound} doesn't fit source {source}, whose offset is {_shown(offset)}",
        "Give numbers in the shape of the offset that the message shows.",
    )


def is_own(offset: Any) -> bool:
    """Whether an offset means something in its own job only.

    A file source counts the entries of its own log, a rate source the seconds since it began.
    """
    return not isinstance(offset, dict) or offset.keys() == {"logOffset"}


def describe(found: Offsets) -> str:
    """Each source with the offset that it ends at."""
    return "; ".join(f"source {name} ends at {_shown(offset)}" for name, offset in found.items()) or "it has no sources"


def _shown(offset: Any) -> str:
    text = json.dumps(offset)
    return text if len(text) <= 200 else text[:200] + "…"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19


def invalid(message: str, hint: str) -> RequestError:
    """A bound that can't be understood."""
    return RequestError("INVALID_BOUND", f"{message}.", hint=hint)
