"""What was found wrong with a checkpoint, and what it means for Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["fails", "may fail", "wrong", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    kind:    missing; empty; damaged; left (the checksum of a file that is gone); ahead, behind (of
             commits and plans); rewound; rewritten (by a second job, after it was committed);
             hole (rows of a join that aren't those that its counts name); went_back (offsets or
             times); reset (a topic that was made anew); settings; copied
    path:    the file or folder, below the checkpoint
    what:    what is wrong
    effect:  fails: Spark doesn't start, or its next batch fails; may fail: it fails once it reads
             the damaged part; wrong: it starts, and its state or output is wrong; none
    means:   the same in words, with Spark's error class if it is known
    remedy:  what can be done
    batch:   from which batch on nothing can be trusted; None if the finding says nothing of batches
    """

    kind: str
    path: str
    what: str
    effect: Effect
    means: str
    remedy: str
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with a checkpoint.

    checkpoint:  its URI
    planned:     the newest batch that Spark has planned (offsets/N); None if there is none
    committed:   the newest batch that is committed and can be read; None if there is none
    findings:    empty for a healthy checkpoint, also while its job runs
    """

    checkpoint: str
    planned: int | None
    committed: int | None
    findings: tuple[Finding, ...]

    @property
    def starts(self) -> bool:
        """Whether Spark starts from it as it is."""
        return not any(finding.effect == "fails" for finding in self.findings)

    @property
    def is_sound(self) -> bool:
        """Whether Spark starts from it as it is, and goes on right: nothing needs repair."""
        return all(finding.effect == "none" for finding in self.findings)
