"""`millpond top`: all jobs of some places, live."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import click
import msgspec
from rich.console import Console
from rich.live import Live

from millpond.catalogue import read_catalogue, shown_name
from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.terminal import write_json
from millpond.cli.top_view import COLUMNS, JobLine, grid, keys, screen
from millpond.errors import MillpondError
from millpond.operate.measure import JobMeter
from millpond.serve.ponds import name_places
from millpond.settings import SampleSettings
from millpond.storage.places import Places

# A person looks at sizes for a while only, so they may take more of a thread's time than in a server.
_SETTINGS = replace(SampleSettings(), sizes_seconds=2.0, remote_sizes_seconds=60.0, share=0.1)


@click.command()
@click.argument("places", metavar="[NAME=]DIR...", nargs=-1, required=True, shell_complete=complete_place)
@options.allow_option
@click.option("--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks.")
@click.option("--sort", type=click.Choice(list(COLUMNS)), default="size", show_default=True, help="The column to sort by.")
@click.option("--once", is_flag=True, help="Look twice, show the jobs, and end; this is so in a pipe.")
@options.json_option
def top(places: tuple[str, ...], allow: tuple[str, ...], interval: float, sort: str, once: bool, as_json: bool) -> None:
    """Show all jobs of ponds and checkpoints, live: batches, lag, and the size of their state.

    It reads the names and sizes of files, and the logs of few batches; no row, and no replica.
    `took` is from a batch's plan to its commit, `waits` the time since a batch was planned that
    isn't committed yet, `age` the time since the newest commit.

    \b
    Examples:
      millpond top ./pond
      millpond top web=/data/web/pond shop=s3://my-bucket/shop --sort lag
      millpond top /data/checkpoints/page-views --json
    """
    looking = _Looking(name_places(places), allow)
    if once or as_json or not sys.stdout.isatty():
        looking.look()
        if not as_json:
            time.sleep(min(interval, 2.0))
            looking.look()
        _show(looking.lines(), sort, as_json=as_json)
        return
    _live(looking, sort, interval)


def _live(looking: _Looking, sort: str, interval: float) -> None:
    console, order, reverse = Console(highlight=False), list(COLUMNS), False
    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        looking.look()
        due = time.monotonic() + interval
        while True:
            live.update(screen(looking.lines(), sort, reverse=reverse, width=console.width, height=console.height), refresh=True)
            match pressed(max(0.0, due - time.monotonic())):
                case "q":
                    return
                case "s" | "S" as key:
                    sort = order[(order.index(sort) + (1 if key == "s" else -1)) % len(order)]
                case "r":
                    reverse = not reverse
                case _:
                    looking.look()
                    due = time.monotonic() + interval


def _show(lines: list[JobLine], sort: str, *, as_json: bool) -> None:
    if not as_json:
        # A pipe has no width: nothing is left out there, and nothing is cut off.
        console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=1000)
        console.print(grid(lines, sort, reverse=False, width=console.width))
        return
    for line in lines:
        facts = msgspec.to_builtins(line.newest) if line.newest is not None else {}
        write_json({"job": line.name, **facts, **({"error": line.error} if line.error else {})})


class _Looking:
    """Looks at every job of some places."""

    def __init__(self, places: dict[str, str], allow: tuple[str, ...]) -> None:
        self._places, self._allow = places, Places.of(allow)
        self._meters: dict[str, JobMeter] = {}
        self._lines: dict[str, JobLine] = {}

    def lines(self) -> list[JobLine]:
        """The jobs that were there at the last look."""
        return list(self._lines.values())

    def look(self) -> None:
        """Measure every job.  Raises NO_CHECKPOINT if the only place is neither a pond nor a checkpoint."""
        seen: set[str] = set()
        for pond, place in self._places.items():
            found = read_catalogue(place, self._allow)
            for job, error in found.broken.items():
                name = shown_name(pond, job, len(self._places))
                seen.add(name)
                self._line(name).error = error.condition
            for folder in found.jobs:
                name = shown_name(pond, folder.job, len(self._places))
                seen.add(name)
                line = self._line(name)
                try:
                    meter = self._meters.get(name)
                    if meter is None or meter.checkpoint != folder.checkpoint:
                        meter = self._meters[name] = JobMeter(folder, _SETTINGS)
                    line.add(meter.look())
                    line.error = None
                except MillpondError as error:
                    line.error = error.condition
        for gone in self._lines.keys() - seen:
            del self._lines[gone]
            self._meters.pop(gone, None)

    def _line(self, name: str) -> JobLine:
        return self._lines.setdefault(name, JobLine(name))
