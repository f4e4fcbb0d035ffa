"""`millpond samples`: what a server has measured of a job, over days."""

from __future__ import annotations

import time

import click
import msgspec

from millpond.catalogue import find_job
from millpond.cli import options
from millpond.cli.output import write_grid
from millpond.cli.terminal import say, write_json
from millpond.cli.top_view import behind_text
from millpond.operate.sample import Sample
from millpond.operate.sample_log import samples_of
from millpond.operate.units import moment, seconds_text, size_text
from millpond.settings import SampleSettings, parse_length

_COLUMNS = ("at", "state", "batch", "batches", "took", "longest", "waits", "behind", "event lag", "state size", "largest")


@click.command()
@options.pond_argument
@click.option("--job", help="The job, if there are several.")
@click.option("--last", default="1h", show_default=True, metavar="30m|24h|7d", help="How far back.")
@options.allow_option
@options.json_option
def samples(place: str, job: str | None, last: str, allow: tuple[str, ...], as_json: bool) -> None:
    """Show what `millpond serve` has measured of a job every minute: batches, lag, the size of its state.

    \b
    Examples:
      millpond samples ./pond --job page_views
      millpond samples s3://my-bucket/checkpoints/page-views --last 7d --json
    """
    folder, seconds = find_job(place, job, allow=allow), parse_length("--last", last)
    begin = 0 if seconds is None else int((time.time() - seconds) * 1000)
    found = samples_of(folder, begin)
    if as_json:
        for sample in found:
            write_json(msgspec.to_builtins(sample))
        return
    write_grid(_COLUMNS, [_cells(sample) for sample in found])
    if not found:
        say(f"Nobody has measured {folder.job} since then. `millpond serve` does it every {SampleSettings().sample_seconds:.0f} s.")


def _cells(sample: Sample) -> list[str]:
    largest = max((size.largest_bytes for size in sample.operators), default=None)
    return [
        moment(sample.at_ms),
        sample.problem or sample.job_state,
        "" if sample.batch is None else str(sample.batch),
        str(sample.batches),
        *(
            "" if value is None else seconds_text(value)
            for value in (sample.batch_seconds, sample.longest_batch_seconds, sample.waiting_seconds)
        ),
        behind_text(sample),
        "" if sample.event_lag_seconds is None else seconds_text(sample.event_lag_seconds),
        *("" if size is None else size_text(size) for size in (sample.state_bytes, largest)),
    ]
