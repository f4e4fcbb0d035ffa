"""The answers about versions of aggregates, declared once: each class is the JSON of an answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgspec

from millpond.tables.versions.listing import Version
from millpond.wire.answers import ErrorJson, UnreadTable, error_json
from millpond.wire.declare import says


class BehindJson(msgspec.Struct, frozen=True, kw_only=True):
    """What the current version has read and this one hasn't."""

    records: int
    files: int
    unknown: Annotated[str, says("Why the rest can't be compared; empty if all is.")]


class AggregateVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an aggregate: times in milliseconds since 1970 UTC, offsets as Spark wrote them."""

    name: str
    version: int
    is_current: Annotated[bool, says("Whether the name means it.")]
    table: Annotated[str, says("Its own name, under which it can be read whatever the name means.")]
    job: str
    job_state: str
    batch: Annotated[int | None, says("The newest one.")]
    offsets: Annotated[dict[str, Any] | None, says("Per source, where that batch ends.")]
    committed_ms: int | None
    watermark_ms: int | None
    behind: Annotated[BehindJson | None, says("Null if it can't be read.")]
    behind_source: Annotated[int | None, says("Records that Kafka had when the job last asked, and it hasn't read; or null.")]
    error: Annotated[ErrorJson | None, says("Why it can't be read.")]


class AggregatesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of aggregates, by name and number."""

    versions: list[AggregateVersion]
    unread: Annotated[list[UnreadTable], says("Names whose versions can't be read.")]


def version_json(version: Version, prefix: str = "") -> AggregateVersion:
    """One version.

    prefix:  what precedes the names of its pond
    """
    facts = {name: getattr(version, name) for name in Version.__slots__ if name not in ("behind", "error", "name", "table")}
    return AggregateVersion(
        name=prefix + version.name,
        table=prefix + version.table,
        **facts,
        behind=None if version.behind is None else BehindJson(**asdict(version.behind)),
        error=None if version.error is None else error_json(version.error).error,
    )
