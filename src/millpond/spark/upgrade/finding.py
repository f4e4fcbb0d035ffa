"""What a deploy would do to a job's state: the findings of `check_upgrade`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Kind = Literal["noted", "unknown", "silently_wrong", "fixable", "refused"]
Verdict = Literal["compatible", "unknown", "silently_wrong", "fixable", "refused"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the least to the one that decides.  If Spark refuses to start, the state stays as it is."""

EXIT_CODES: dict[Verdict, int] = {"compatible": 0, "unknown": 10, "silently_wrong": 11, "fixable": 12, "refused": 13}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the new code changes.

    kind:         noted: Spark goes on, and the state means the same.
                  unknown: Spark goes on, and nothing here says what the state meant.
                  silently_wrong: Spark goes on, and takes values for something else.
                  fixable: Spark refuses to start; the state could be rewritten for the new code.
                  refused: Spark refuses to start; the state has nothing that the new code could use
    operator:     Spark's operator id; None if it isn't about one
    what:         what changes
    spark_error:  the class of Spark's error; None if Spark starts
    hint:         what to do; empty if nothing
    """

    kind: Kind
    operator: int | None
    what: str
    spark_error: str | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """All that the new code changes for a job's state.

    job:       the job's name
    batch:     the newest committed batch, after which Spark would go on
    findings:  in no order; none if nothing changes
    """

    job: str
    batch: int
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What Spark would do, by the finding that decides."""
        worst = max((KINDS.index(finding.kind) for finding in self.findings), default=0)
        kind = KINDS[worst]
        return "compatible" if kind == "noted" else kind

    @property
    def exit_code(self) -> int:
        """Of `millpond check-upgrade`: 0 if it is compatible."""
        return EXIT_CODES[self.verdict]

    def describe(self) -> str:
        """The verdict and the findings, in a few lines."""
        lines = [f"{self.job}, after batch {self.batch}: {self.verdict.replace('_', ' ')}"]
        for finding in sorted(self.findings, key=lambda f: -KINDS.index(f.kind)):
            where = "" if finding.operator is None else f"operator {finding.operator}: "
            error = f" [{finding.spark_error}]" if finding.spark_error else ""
            lines.append(f"{finding.kind.replace('_', ' ')}: {where}{finding.what}{error}")
            if finding.hint:
                lines.append(f"  {finding.hint}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"job": self.job, "batch": self.batch, "verdict": self.verdict, "findings": [asdict(f) for f in self.findings]}
