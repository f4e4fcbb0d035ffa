"""Errors of sketches."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.errors import CheckpointError


def damaged(kind: str, data: bytes, why: str) -> CheckpointError:
    """Bytes that should be a sketch aren't one.

    kind:  what kind of sketch
    """
    return CheckpointError(
        "CORRUPT_FILE",
        f"A {kind} sketch of {len(data)} bytes can't be read: {why}.",
        hint="Compare the job's checkpoint with a backup; report this if Spark can read it.",
    )


def sketches_differ(kind: str, sizes: Iterable[int]) -> CheckpointError:
    """Sketches of several sizes can't be merged."""
    return CheckpointError(
        "SKETCHES_DIFFER",
        f"{kind} sketches of several sizes can't be merged: {', '.join(map(str, sorted(set(sizes))))} (logarithms to base 2).",
        hint="Aggregate sketches of one size: start a new job for a sketch of another size.",
    )
