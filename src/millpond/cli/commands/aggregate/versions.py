"""`millpond versions`: the versions of declared aggregates, what differs, cut-over, retirement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.output import write_grid
from millpond.cli.plans import local_place
from millpond.cli.progress import Progress
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import RequestError
from millpond.operate.units import moment
from millpond.schema.values import encode_json
from millpond.tables.job.offsets import describe
from millpond.tables.versions.align import plan_align
from millpond.tables.versions.cut_over import describe_done, plan_cut_over
from millpond.tables.versions.difference import KEYS, VersionDiff, diff_versions
from millpond.tables.versions.listing import Version, list_versions
from millpond.tables.versions.retire import plan_retire
from millpond.wire.answers import error_json, members

DIFFERENT = 1
_place = click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
_name = click.argument("name")
_yes = click.option("--yes", is_flag=True, help="Do it; without this, only show what would be done.")


@click.group()
def versions() -> None:
    """List, align, compare, cut over and retire the versions of declared aggregates.

    A version is a job of its own, with its table: page_views.v2.  The name page_views means one of
    them, and a cut-over changes which.  DIR is a pond.

    \b
    Examples:
      millpond versions list ./pond
      millpond versions diff ./pond page_views 1 2
      millpond versions cutover ./pond page_views --to 2 --max-changed 1% --yes
      millpond versions retire ./pond page_views 1 --yes
    """


@versions.command("list")
@_place
@click.argument("name", required=False)
@options.allow_option
@options.json_option
@local_place
def list_(place: str, name: str | None, allow: tuple[str, ...], as_json: bool) -> None:
    """List the versions in DIR: which is current, its batch, and what it hasn't read yet.

    Behind is what the current version has read and this one hasn't, in records and files.
    """
    found = list_versions(place, name, allow=allow)
    if as_json:
        for version in found:
            write_json(_facts(version))
        return
    if found:
        columns = ["name", "version", "current", "job", "state", "batch", "committed", "behind", "not read", "offsets"]
        write_grid(columns, [_row(version) for version in found])
    for version in found:
        if version.error is not None:
            say(f"{version.job}: {version.error}")


def _facts(version: Version) -> dict[str, Any]:
    facts = {name: getattr(version, name) for name in Version.__slots__ if name not in ("behind", "error")}
    behind = None if version.behind is None else asdict(version.behind)
    return {**facts, "behind": behind, **({} if version.error is None else members(error_json(version.error)))}


def _row(version: Version) -> list[str]:
    return [
        version.name,
        str(version.version),
        "current" if version.is_current else "",
        version.job,
        version.job_state,
        "" if version.batch is None else str(version.batch),
        "" if version.committed_ms is None else moment(version.committed_ms),
        "" if version.behind is None else version.behind.words(),
        "" if version.behind_source is None else f"{version.behind_source:,}",
        "" if version.offsets is None else describe(version.offsets),
    ]


@versions.command("diff")
@_place
@_name
@click.argument("left", type=click.IntRange(min=0))
@click.argument("right", type=click.IntRange(min=0))
@click.option(
    "--keys", type=click.IntRange(min=0), default=KEYS, show_default=True, help="Show so many of the keys that differ most."
)
@options.allow_option
@options.json_option
@local_place
def diff_(place: str, name: str, left: int, right: int, keys: int, allow: tuple[str, ...], as_json: bool) -> None:
    """Compare two versions of NAME where both have read the same; exit code 1 if they differ.

    It takes the newest batches of both that end at the same source offsets, or that have read the
    same files.

    \b
    Examples:
      millpond versions diff ./pond page_views 1 2
    """
    with _reading() as report:
        found = diff_versions(place, name, left, right, keys=keys, allow=allow, progress=report)
    if as_json:
        write_line(encode_json(_diff_json(found)).decode())
    else:
        _show_diff(found)
    if not found.table.is_same:
        click.get_current_context().exit(DIFFERENT)


@contextmanager
def _reading() -> Iterator[Any]:
    with Progress("rows") as line:
        yield lambda rows: line(f"{rows:,} read")


def _diff_json(found: VersionDiff) -> dict[str, Any]:
    table = found.table
    return {
        "name": found.name,
        "left": {"version": found.left_version, "job": found.left.job, "batch": found.left.batch, "offsets": found.left.offsets},
        "right": {
            "version": found.right_version,
            "job": found.right.job,
            "batch": found.right.batch,
            "offsets": found.right.offsets,
        },
        "share": found.share,
        "counts": asdict(table.counts),
        "only_left": list(table.only_left),
        "only_right": list(table.only_right),
        "retyped": [asdict(each) for each in table.retyped],
        "differ": [
            {"resolution": resolution, "added": counts.added, "removed": counts.removed, "changed": counts.changed}
            for resolution, counts in found.differ.items()
        ],
        "columns": [asdict(each) for each in found.columns],
        "most": [{"key": each.key, "old": each.old, "new": each.new, "change": each.change} for each in found.most],
        "added": list(found.added),
        "removed": list(found.removed),
    }


def _show_diff(found: VersionDiff) -> None:
    if found.differ:
        grid = [[r or "", f"{c.added:,}", f"{c.removed:,}", f"{c.changed:,}"] for r, c in found.differ.items()]
        write_grid(["resolution", "added", "removed", "changed"], grid)
    if found.columns:
        write_line("")
        grid = [[c.column, f"{c.changed:,}", *(f"{n:.3%}" for n in (c.p50, c.p90, c.p99, c.most))] for c in found.columns]
        write_grid(["column", "rows changed", "p50", "p90", "p99", "most"], grid)
    if found.most:
        write_line("")
        grid = [[_text(each.key), _text(each.old), _text(each.new), f"{each.change:.3%}"] for each in found.most]
        write_grid(["differs most", "old", "new", "change"], grid)
    for word, keys in (("added", found.added), ("removed", found.removed)):
        for key in keys:
            write_line(visible(f"{word}: {_text(key)}"))
    table, counts = found.table, found.table.counts
    for side in (found.left, found.right):
        say(f"{side.job}: batch {side.batch}, {describe(side.offsets)}")
    for word, columns in (("left", table.only_left), ("right", table.only_right)):
        if columns:
            say(f"only on the {word}, not compared: {', '.join(columns)}")
    for column in table.retyped:
        say(f"{column.name} is {column.left} on the left, {column.right} on the right")
    for change in found.columns:
        if not change.is_exact:
            say(f"{change.column}: the percentiles are of a sample")
    say(
        f"{counts.added:,} added, {counts.removed:,} removed, {counts.changed:,} changed, {counts.same:,} the same: "
        f"{found.share:.3%} differ"
    )


def _text(values: dict[str, Any]) -> str:
    return encode_json(values).decode()


@versions.command()
@_place
@_name
@click.option("--to", type=click.IntRange(min=0), required=True, metavar="VERSION", help="The version that the name is to mean.")
@click.option(
    "--max-behind",
    type=click.IntRange(min=0),
    default=0,
    metavar="COUNT",
    help="Allow the new version to lack so many records and files that the current one has read.",
)
@click.option("--max-changed", metavar="1%", help="Compare both at the same offsets; refuse if more of the rows differ.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long until it isn't behind.",
)
@click.option("--force", is_flag=True, help="Go on if it is behind, or if the two can't be compared.")
@_yes
@options.allow_option
@local_place
def cutover(
    place: str,
    name: str,
    to: int,
    max_behind: int,
    max_changed: str | None,
    wait_seconds: float,
    force: bool,
    yes: bool,
    allow: tuple[str, ...],
) -> None:
    """Let NAME mean another version, in one step for all readers; the same command goes back.

    \b
    Examples:
      millpond versions cutover ./pond page_views --to 2 --max-changed 1% --yes
      millpond versions cutover ./pond page_views --to 1 --force --yes
    """
    share = None if max_changed is None else _share(max_changed)
    with _reading() as report:
        plan = plan_cut_over(
            place,
            name,
            to=to,
            max_behind=max_behind,
            max_changed=share,
            wait_seconds=wait_seconds,
            force=force,
            allow=allow,
            progress=report,
        )
    for line in plan.describe().splitlines():
        say(visible(line))
    if not yes and not plan.is_done:
        say("Nothing is done yet: add --yes.")
        return
    write_line(visible(describe_done(plan.run())))


@versions.command()
@_place
@_name
@click.argument("version", type=click.IntRange(min=0))
@_yes
@options.allow_option
@local_place
def align(place: str, name: str, version: int, yes: bool, allow: tuple[str, ...]) -> None:
    """Let the next batch of a stopped version of NAME end where the current version ends.

    Start the job then: Spark runs exactly that batch first, and `versions diff` finds both there.

    \b
    Examples:
      millpond versions align ./pond page_views 2 --yes
    """
    plan = plan_align(place, name, version, allow=allow)
    for line in plan.describe().splitlines():
        say(visible(line))
    if not yes:
        say("Nothing is done yet: add --yes.")
    elif (planned := plan.run()) is not None:
        write_line(visible(f"batch {planned} of {plan.first.name} is planned"))


@versions.command()
@_place
@_name
@click.argument("version", type=click.IntRange(min=0))
@_yes
@local_place
def retire(place: str, name: str, version: int, yes: bool) -> None:
    """Remove an old version of NAME: its job, its state, and this machine's replica.

    NAME must mean another version, and the job mustn't run.  Savepoints of it stay.

    \b
    Examples:
      millpond versions retire ./pond page_views 1 --yes
    """
    plan = plan_retire(place, name, version)
    for line in plan.describe().splitlines():
        say(visible(line))
    if not yes:
        say("Nothing is done yet: add --yes.")
        return
    if not plan.run():
        say("Another process still has its replica open: delete that when it has ended.")
    write_line(visible(f"version {version} of {name} is removed"))


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100 if number != text else float(number)
        if 0 <= share <= 1:
            return share
    except ValueError:
        pass
    raise RequestError("INVALID_REQUEST", f"--max-changed is {text!r:.40}.", hint="Write a part of the rows: 1%, or 0.01.")
