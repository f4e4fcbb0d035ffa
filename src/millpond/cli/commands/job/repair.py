"""`millpond repair`: what is wrong with a checkpoint, and a copy from which Spark goes on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.output import write_grid
from millpond.cli.plans import local_place, progress_of_files
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import SavepointError
from millpond.savepoint.repair.plan import RepairPlan, not_repairable
from millpond.tables.repair import plan_repair


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("job", required=False)
@click.option("--to", metavar="DIR|URI", help="The new checkpoint: an empty folder. [default: the checkpoint's name and -repaired]")
@click.option("--yes", is_flag=True, help="Make the copy; without this, show what is wrong and what would be done.")
@click.option("--archive", metavar="DIR|URI", help="An archive of the job, which may hold a later batch.")
@click.option("--new-id", is_flag=True, help="Give the copy an id of its own, for a sink that skips batches that it has seen.")
@options.stateless_option
@options.replica_option
@options.json_option
@local_place
def repair(
    place: str,
    job: str | None,
    to: str | None,
    yes: bool,
    archive: str | None,
    new_id: bool,
    stateless: bool,
    replica_dir: str | None,
    as_json: bool,
) -> None:
    """Find out why Spark can't start from a checkpoint, and make a copy that it goes on from.

    DIR is a pond, or the folder of a checkpoint; JOB may be left out if there is only one.  The
    checkpoint itself is never changed.  The command shows first what is wrong with it, what can be
    saved, and what is lost.

    Exit code 0: nothing is wrong that Spark minds, or the copy is made, and its place is the only
    line on stdout.  5: repair is needed and isn't done yet (REPAIR_NEEDED), or it isn't possible
    (NOT_REPAIRABLE).

    \b
    Examples:
      millpond repair ./pond page_views
      millpond repair ./pond page_views --to ./repaired --yes
      millpond repair s3://my-bucket/checkpoints/page-views --json
    """
    plan = plan_repair(place, job, to=to, archive=archive, replica_dir=replica_dir, stateless=stateless, new_id=new_id)
    if as_json:
        write_json(_as_json(plan))
    else:
        _show(plan, is_last=not yes)
    if not plan.is_needed:
        return
    if plan.restart is None:
        raise not_repairable(plan)
    if not yes:
        raise SavepointError(
            "REPAIR_NEEDED",
            f"Spark doesn't go on right from {plan.job.checkpoint} as it is.",
            hint=f"Make the repaired copy: add --yes; it is written to {plan.target.uri}.",
            uri=plan.job.checkpoint,
        )
    with progress_of_files() as progress:
        made = plan.run(progress)
    if not as_json:
        write_line(made.checkpoint)


def _show(plan: RepairPlan, *, is_last: bool) -> None:
    """Findings as a table, and the plan; on stderr if the place of the copy follows."""
    if plan.diagnosis.findings and is_last:
        rows = [[f.path, f.kind, f.effect, f.what, f.means] for f in plan.diagnosis.findings]
        write_grid(
            ["file", "finding", "spark", "what is wrong", "what it means"], [[visible(cell) for cell in row] for row in rows]
        )
    for line in plan.describe().splitlines():
        if not (is_last and line.startswith("found ")):
            (write_line if is_last else say)(visible(line))


def _as_json(plan: RepairPlan) -> dict[str, Any]:
    diagnosis, restart = plan.diagnosis, plan.restart
    return {
        "job": plan.job.job,
        "checkpoint": plan.job.checkpoint,
        "planned": diagnosis.planned,
        "committed": diagnosis.committed,
        "starts": diagnosis.starts,
        "needed": plan.is_needed,
        "possible": None if not plan.is_needed else restart is not None,
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "batch": None if restart is None else restart.batch,
        "run_again": None if restart is None else restart.again,
        "undone": None if plan.undone is None else list(plan.undone),
        "read_again": [asdict(part) for part in plan.again],
        "left_out": {} if restart is None else restart.left_out,
        "made": [] if restart is None else list(restart.made),
        "others": [asdict(other) for other in plan.others],
        "refused": {str(number): why for number, why in sorted(plan.refused.items())},
        "target": plan.target.uri,
        "new_id": plan.new_id,
    }
