"""`millpond doctor`: what in a job costs more than it should, and what to change."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from millpond import __version__
from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.group import show_error
from millpond.cli.plans import local_place
from millpond.cli.queries import settings_of
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import MillpondError
from millpond.operate.doctor.advice import CANT_LOOK, Advice, Diagnosis
from millpond.operate.doctor.diagnose import diagnose
from millpond.operate.doctor.sarif import to_sarif


@click.command()
@click.argument("place", metavar="DIR|URI|FILE.py", shell_complete=complete_place)
@click.argument("arguments", metavar="[-- ARGUMENT...]", nargs=-1)
@click.option("--job", help="Only this job.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Thresholds and silences, a TOML file.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="Of a program: a Spark setting of its deploy; may be repeated.")
@options.allow_option
@options.json_option
@click.option("--sarif", is_flag=True, help="Write SARIF 2.1.0, for code hosts and editors.")
@local_place
def doctor(
    place: str,
    arguments: tuple[str, ...],
    job: str | None,
    config: Path | None,
    conf: tuple[str, ...],
    allow: tuple[str, ...],
    as_json: bool,
    sarif: bool,
) -> None:
    """Show what in the jobs of a pond or checkpoint, or in a program, costs more than it should, and what to change.

    Each piece of advice has a rule, evidence, a cost and a change.  Of state this reads Spark's files
    alone, of a large one a part of the rows.  A program is run, with the ARGUMENTS, in a process of
    its own, where Spark plans its queries and starts none.

    Exit codes: 0 there is nothing to change, 1 there is, 2 the doctor can't look.

    \b
    Examples:
      millpond doctor ./pond
      millpond doctor /data/checkpoints/page-views --json
      millpond doctor ./pond --job page_views --config operate.toml
      millpond doctor pipeline.py --conf spark.master=yarn -- --topic views
    """
    if as_json and sarif:
        raise click.UsageError("Choose one of --json and --sarif.")
    try:
        settings = settings_of(conf)
        found = diagnose(place, job, config=config, conf=settings, arguments=arguments, allow=allow)
    except MillpondError as error:
        show_error(error, as_json=as_json or sarif)
        sys.exit(CANT_LOOK)
    if sarif:
        write_json(to_sarif(found, __version__))
    else:
        _write(found, as_json=as_json)
    sys.exit(found.exit_code)


def _write(found: Diagnosis, *, as_json: bool) -> None:
    for advice in found.advice:
        if as_json:
            write_json(msgspec.to_builtins(advice))
        elif advice.ignored is not None:
            say(f"Ignored: {advice.job}, {advice.rule}, {advice.place}: {advice.ignored}")
        else:
            _write_advice(advice)
    for sentence in found.unseen:
        say(sentence)


def _write_advice(advice: Advice) -> None:
    of = advice.job if advice.file is None else f"{advice.file}:{advice.line or 1}"
    write_line(visible(f"{of}: {advice.rule}: {advice.title}"))
    for word, text in (
        ("where", advice.place),
        ("evidence", advice.evidence),
        ("costs", advice.cost),
        ("change", advice.change),
    ):
        write_line(visible(f"  {word:<10}{text}"))
