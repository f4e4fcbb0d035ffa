"""`millpond audit`: whether a declared aggregate has each event of its input once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from millpond.cli import options
from millpond.cli.aggregates import open_aggregate
from millpond.cli.complete import complete_place
from millpond.cli.plans import local_place
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.errors import RequestError
from millpond.schema.values import decode_json, encode_json

UNBALANCED = 1


@click.command()
@click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
@click.argument("table")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--since", type=click.IntRange(min=0), metavar="BATCH", help="Begin with this batch. [default: all that was read]")
@click.option("--until", type=click.IntRange(min=0), metavar="BATCH", help="End with this batch. [default: the newest]")
@click.option("--event", metavar="JSON", help='Say what became of events instead: columns and values, \'{"id": "e-17"}\'.')
@click.option("--offset", metavar="TOPIC:PARTITION:OFFSET", help="The same of the event at this offset.")
@click.option("--parts", is_flag=True, help="Show a line for each file or range of offsets.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated.")
@options.allow_option
@options.json_option
@local_place
def audit(
    place: str,
    table: str,
    file: Path,
    since: int | None,
    until: int | None,
    event: str | None,
    offset: str | None,
    parts: bool,
    conf: tuple[str, ...],
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare TABLE, a declared aggregate, with all events that its job has read.

    FILE declares it: Python with the aggregate and a function source(spark), or SQL statements.
    Spark reads the source once more, on this machine, as far as the checkpoint says; nothing is
    started. Exit code 1 if an event is missing or is there twice; with --event or --offset, if none
    of them is in a bucket.

    \b
    Examples:
      millpond audit ./pond page_views views.py
      millpond audit ./pond page_views views.sql --since 40 --parts
      millpond audit ./pond page_views views.py --event '{"event_id": "e-17"}'
    """
    meant = None if event is None else _parse(event)
    with open_aggregate("audit", place, table, file, conf) as (aggregate, source):
        from millpond.spark.audit.audit import audit as run

        if meant is not None or offset is not None:
            from millpond.spark.audit.event import audit_event

            events = audit_event(aggregate, source, meant, offset=offset, pond=place, since=since, until=until, allow=allow)
            for each in events.events:
                if as_json:
                    write_json(each.to_json())
                else:
                    write_line(visible(encode_json({n: v for n, v in each.to_json()["event"].items() if v is not None}).decode()))
                    for line in each.describe().splitlines():
                        write_line(visible(f"  {line}"))
            if events.reason is not None:
                say(f"{events.reason} Batches up to {events.batch} were looked at.")
            if not any(each.is_in for each in events.events):
                click.get_current_context().exit(UNBALANCED)
            return
        found = run(aggregate, source, pond=place, since=since, until=until, allow=allow)
        if as_json:
            write_json(found.to_json())
        else:
            for line in found.describe(parts=parts).splitlines():
                write_line(visible(line))
        if not found.is_balanced:
            click.get_current_context().exit(UNBALANCED)


def _parse(text: str) -> dict[str, Any]:
    try:
        found = decode_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RequestError("INVALID_REQUEST", f"--event {text!r:.80} isn't a JSON object.", hint="""Write '{"id": "e-17"}'.""")
    return found
