"""What commands with a plan have in common: they need files, show the plan, and run it with `--yes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar

import click

from millpond.cli.place import is_server
from millpond.cli.progress import Progress
from millpond.cli.terminal import say, visible, write_line
from millpond.errors import RequestError
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.rewrite.form import CODECS, PROVIDERS

Command = TypeVar("Command", bound=Callable[..., Any])


class Describes(Protocol):
    """A plan."""

    def describe(self) -> str:
        """What will be done, in a few lines."""


class NewSavepointPlan(Describes, Protocol):
    """A plan of a savepoint that is made of another one."""

    def run(self, progress: Any) -> Savepoint:
        """Make it."""


def local_place(command: Command) -> Command:
    """Refuse a server's address for `place`: these commands need the files."""

    @wraps(command)
    def call(place: str, *arguments: Any, **others: Any) -> Any:
        if is_server(place):
            raise RequestError(
                "INVALID_REQUEST", f"{place} is a server.", hint="Give the pond's folder or bucket: this command reads its files."
            )
        return command(place, *arguments, **others)

    return call  # type: ignore[return-value]


def form_options(command: Command) -> Command:
    """The options that say how the state of a new checkpoint is written."""
    for option in (
        click.option("--row-checksum/--no-row-checksum", default=None, help="Write each row with a checksum or without."),
        click.option("--codec", type=click.Choice(CODECS), help="The codec of the state's files, but for RocksDB's own."),
        click.option(
            "--format", "checkpoint_format", type=click.IntRange(1, 2), help="Spark's checkpoint format; 2 is for RocksDB only."
        ),
        click.option("--provider", type=click.Choice(PROVIDERS), help="Write the state for this state store provider."),
        click.option("--partitions", type=int, help="Divide the state into so many partitions."),
    ):
        command = option(command)
    return command


def show_plan(plan: Describes, *, yes: bool) -> bool:
    """Show a plan; whether it is to be run."""
    for line in plan.describe().splitlines():
        say(line)
    if not yes:
        say("Nothing is done yet: --yes does it.")
    return yes


def show_or_run(plan: NewSavepointPlan, *, yes: bool) -> None:
    """Show what a plan would do; with `yes`, do it and name the new savepoint."""
    for line in plan.describe().splitlines():
        say(visible(line))
    if not yes:
        say("Nothing is done yet: add --yes.")
        return
    with progress_of_files() as progress:
        made = plan.run(progress)
    write_line(visible(made.manifest.name))


@contextmanager
def progress_of_files() -> Iterator[Callable[[int, int], None]]:
    """Shows how many files are done."""
    with Progress("files") as line:
        yield lambda done, every: line(f"{done:,} of {every:,}")
