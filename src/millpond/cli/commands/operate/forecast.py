"""`millpond forecast`: how a job's state grows, and when it meets a limit."""

from __future__ import annotations

import re
import time

import click
import msgspec

from millpond.catalogue import find_job, open_jobs
from millpond.cli import options
from millpond.cli.terminal import say, write_json, write_line
from millpond.errors import RequestError
from millpond.operate.alerts.rules import BY_ID
from millpond.operate.forecast import LEAST_SECONDS, Fact, Forecast, forecast_of
from millpond.operate.sample_log import samples_of
from millpond.operate.units import moment, seconds_text, size_text
from millpond.settings import parse_length

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB)?")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@click.command()
@options.pond_argument
@click.option("--job", help="Only this job.")
@options.last_option
@click.option("--limit", metavar="50GiB", help="A limit of the state's bytes. [default: that of the alert state-large, 10 GiB]")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="A limit of rows, where Spark counts them.")
@options.allow_option
@options.json_option
def forecast(
    place: str, job: str | None, last: str, limit: str | None, rows: int | None, allow: tuple[str, ...], as_json: bool
) -> None:
    """Show how fast the state of each job grows, how sure that is, and when it meets a limit.

    It goes by the samples that `millpond serve` keeps.

    \b
    Examples:
      millpond forecast ./pond
      millpond forecast ./pond --job page_views --limit 50GiB --last 14d
    """
    seconds, most = parse_length("--last", last), BY_ID["state-large"].threshold if limit is None else _bytes(limit)
    begin = 0 if seconds is None else int((time.time() - seconds) * 1000)
    for folder in open_jobs(place, allow=allow) if job is None else [find_job(place, job, allow=allow)]:
        samples = samples_of(folder, begin)
        asked: list[tuple[Fact, float | None]] = [("state_bytes", most), ("state_rows", rows)]
        found = [each for fact, its in asked if (each := forecast_of(folder.job, samples, fact, its)) is not None]
        if not found:
            say(f"{folder.job}: no forecast. It needs samples of at least {LEAST_SECONDS // 3600} hours; there are {len(samples)}.")
        for each in found:
            if as_json:
                write_json(msgspec.to_builtins(each))
            else:
                write_line(_line(each))


def _bytes(text: str) -> float:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise RequestError("INVALID_REQUEST", f"--limit is {text!r:.80}.", hint="Write bytes, or a size like 50GiB.")
    return float(found[1]) * _UNITS[found[2] or ""]


def _line(found: Forecast) -> str:
    show = size_text if found.fact == "state_bytes" else lambda rows: f"{rows:,.0f} rows"
    growth = f"grows {show(found.per_day)} a day (90 %: {show(found.per_day_low)} to {show(found.per_day_high)})"
    text = f"{found.job}: {show(found.now)}, {growth}, by {seconds_text(found.span_seconds)}"
    if found.limit is None:
        return text + "."
    ends = [None if at is None else moment(at)[:10] for at in (found.reaches_ms, found.earliest_ms, found.latest_ms)]
    reaches, earliest, latest = ends
    if reaches is None:
        when = f"not within ten years{f', at the earliest {earliest}' if earliest else ''}"
    else:
        when = f"{reaches}, between {earliest} and {latest or 'never'}"
    return f"{text}. Meets {show(found.limit)}: {when}."
