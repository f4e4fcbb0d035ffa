"""`millpond alerts`: which rules fire for the jobs of a place, by their samples."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import msgspec

from millpond.cli import options
from millpond.cli.terminal import say, write_json, write_line
from millpond.errors import MillpondError
from millpond.operate.alerts.evaluate import Alert
from millpond.operate.alerts.look import look
from millpond.operate.alerts.notify.notifier import Notifier
from millpond.operate.alerts.prometheus import rule_file
from millpond.operate.alerts.rules import RULES
from millpond.operate.config import OperateConfig, read_config
from millpond.operate.units import moment, seconds_text, size_text
from millpond.operate.watcher import Watcher
from millpond.settings import SampleSettings
from millpond.signals import stop_signals
from millpond.storage import uri_of

FIRES = 1


@click.command()
@click.argument("place", metavar="DIR", required=False)
@click.option("--job", help="Only this job.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Thresholds and silences, a TOML file.")
@click.option("--prometheus", is_flag=True, help="Write the rules as a file for Prometheus, and end.")
@click.option("--watch", is_flag=True, help="Go on, and tell the webhooks and mails of --config what begins and ends.")
@options.allow_option
@options.json_option
@click.pass_context
def alerts(
    ctx: click.Context,
    place: str | None,
    job: str | None,
    config: Path | None,
    prometheus: bool,
    watch: bool,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show which alerts fire for the jobs of a pond or checkpoint; the exit code is 1 if one does.

    It goes by the samples that `millpond serve` keeps, and by one that it takes now.

    \b
    Examples:
      millpond alerts ./pond
      millpond alerts ./pond --config alerts.toml --json
      millpond alerts ./pond --config alerts.toml --watch
      millpond alerts --prometheus > millpond-rules.yml
    """
    given = read_config(config) if config is not None else OperateConfig()
    if prometheus:
        sys.stdout.write(rule_file(given))
        return
    if place is None:
        raise click.UsageError("Name a pond or a checkpoint.")
    if watch:
        if not given.notify.channels:
            raise click.UsageError("With --watch, --config must name webhooks or mails.")
        _watch(place, given, job, allow)
        return
    found = look(place, given, job, allow)
    for alert in found.loud:
        if as_json:
            write_json(msgspec.to_builtins(alert))
        else:
            _write(alert)
    if not as_json:
        for alert, silence in found.silenced:
            say(f"Silenced: {alert.job}, {alert.rule}: {silence.reason}")
    for name, error in found.errors.items():
        say(f"{name}: {error}")
    if found.loud:
        ctx.exit(FIRES)
    for error in found.errors.values():
        raise error
    if not as_json:
        say(f"None of the {len(RULES)} rules fires.")


def _watch(place: str, config: OperateConfig, job: str | None, allow: tuple[str, ...]) -> None:
    """Take samples, and tell of what begins and ends, until Ctrl-C or SIGTERM."""
    watched = uri_of(place) if job is None else f"{uri_of(place)} {job}"
    notifier = Notifier(watched, config.notify.channels, config.notify.repeat_seconds)
    errors: dict[str, str] = {}
    with stop_signals() as ending, Watcher({"": place}, allow=allow):
        say(f"Watching {place}; telling {', '.join(channel.name for channel in config.notify.channels)}.")
        while True:
            try:
                found = look(place, config, job, allow, with_sample=False)  # the watcher takes one
                silent = {(alert.job, alert.rule) for alert, _ in found.silenced}
                sent = notifier.tell(found.loud, int(time.time() * 1000), found.errors, found.begins | silent)
                now = {name: str(error) for name, error in {**found.errors, **notifier.errors}.items()}
            except MillpondError as error:  # the next look may go well
                sent, now = [], {place: str(error)}
            for message in sent[:1]:
                say(message.to_text().rstrip().replace("\n", "; "))
            for name, text in now.items():
                if errors.get(name) != text:
                    say(f"{name}: {text}")
            errors = now
            if ending.wait(SampleSettings().sample_seconds):
                return


def _write(alert: Alert) -> None:
    write_line(f"{alert.job}: {alert.rule}: {alert.title}")
    write_line(f"  {_measured(alert)}, since {moment(alert.since_ms)}")
    write_line(f"  {alert.advice}")


def _measured(alert: Alert) -> str:
    return f"measured {_number(alert.value, alert.unit)}, threshold {_number(alert.threshold, alert.unit)}"


def _number(number: float, unit: str) -> str:
    if unit in ("bytes", "seconds"):
        return size_text(number) if unit == "bytes" else seconds_text(number)
    return f"{number:,.4g} {unit}".strip()
