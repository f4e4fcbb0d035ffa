"""Which of two offsets of a source is the later one, for the sources of which that is known.

| source               | offset                                          | grows                 |
| Kafka                | {topic: {partition: next offset}}               | in each partition     |
| files                | {"logOffset": entry of the source's own log}    | the entry             |
| rate, memory, socket | a number                                        | the number            |
| rate per micro-batch | {"offset": rows, "timestamp": ms}               | both                  |
| access log           | {"files": {path: {"line": lines read, …}}}      | each file's line      |

Any other offset is its source's own: a number in it may fall while the source goes on.  Delta's
`index` is -1 at the begin of the next version; a Python data source writes what it likes.

Source:  KafkaSourceOffset, FileStreamSourceOffset, LongOffset, RatePerMicroBatchStreamOffset, Spark 4.3.
"""

from __future__ import annotations

from typing import Any

Place = tuple[str, ...]
"""where in an offset a number stands"""


def growing_numbers(offset: Any) -> dict[Place, int] | None:
    """The numbers of an offset that grow while its source is read; None if that isn't known of this source."""
    if _is_number(offset):
        return {(): offset}
    if not isinstance(offset, dict):
        return None
    if offset.keys() in ({"logOffset"}, {"offset", "timestamp"}) and all(map(_is_number, offset.values())):
        return {(name,): number for name, number in offset.items()}
    if is_by_line(offset):
        return {(path,): place["line"] for path, place in offset["files"].items()}
    if is_by_topic(offset):
        return {(topic, partition): number for topic, partitions in offset.items() for partition, number in partitions.items()}
    return None


def fallen(before: Any, after: Any) -> list[Place] | None:
    """Which numbers are less than they were; None if the order of these offsets isn't known."""
    was, found = growing_numbers(before), growing_numbers(after)
    if was is None or found is None or _kind(before) != _kind(after):
        return None
    return [place for place, number in was.items() if place in found and found[place] < number]


def is_by_topic(offset: Any) -> bool:
    """Whether an offset is like Kafka's: topic -> partition -> number."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(isinstance(partitions, dict) and all(map(_is_number, partitions.values())) for partitions in offset.values())
    )


def is_by_line(offset: Any) -> bool:
    """Whether an offset is that of a source that reads logs line by line (`accesslog`)."""
    return (
        isinstance(offset, dict)
        and offset.keys() == {"files"}
        and isinstance(offset["files"], dict)
        and all(isinstance(place, dict) and _is_number(place.get("line")) for place in offset["files"].values())
    )


def _kind(offset: Any) -> str:
    if not isinstance(offset, dict):
        return "number"
    if is_by_line(offset):
        return "lines"
    return "topics" if is_by_topic(offset) else "+".join(sorted(offset))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
