"""`millpond token`: the tokens of a server's readers."""

from __future__ import annotations

from pathlib import Path

import click

from millpond.cli.terminal import write_line
from millpond.errors import RequestError
from millpond.serve.access.tokens import SavepointRight, add_token, remove_token
from millpond.settings import parse_length


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("name")
@click.option(
    "--tables", "tables", metavar="PATTERN", multiple=True, help="Tables that the token opens, such as page_*; * opens all."
)
@click.option("--metrics", is_flag=True, help="Let the token also open /metrics, which covers all jobs.")
@click.option(
    "--savepoints",
    type=click.Choice(["read", "create"]),
    help="Let the token list and verify savepoints of all jobs, or make them, too.",
)
@click.option("--valid", metavar="30m|24h|7d|forever", default="forever", show_default=True, help="How long the token is valid.")
@click.option("--remove", is_flag=True, help="Remove the reader's token instead.")
def token(
    file: Path,
    name: str,
    tables: tuple[str, ...],
    metrics: bool,
    savepoints: SavepointRight | None,
    valid: str,
    remove: bool,
) -> None:
    """Give the reader NAME a token in FILE, and show it once; it replaces the reader's old token.

    FILE gets a hash of the token, for `millpond serve --tokens FILE`, which notices changes within
    a second.

    \b
    Examples:
      millpond token readers.json dashboard --tables 'page_*' --tables visits
      millpond token readers.json prometheus --metrics
      millpond token readers.json deploys --savepoints create
      millpond token readers.json guest --tables page_views --valid 7d
      millpond token readers.json dashboard --remove
    """
    if remove:
        if not remove_token(file, name):
            raise RequestError("INVALID_NAME", f"{file} has no reader {name!r}.", hint="Look into the file for its readers.")
        return
    if not (tables or metrics or savepoints):
        raise RequestError("INVALID_REQUEST", "The token would open nothing.", hint="Name tables: --tables 'page_*'.")
    seconds = parse_length("--valid", valid)
    if seconds == 0:
        raise RequestError("INVALID_REQUEST", "The token would never let anybody in.", hint="Give a time, like --valid 7d.")
    write_line(add_token(file, name, tables=tables, metrics=metrics, savepoints=savepoints, valid_seconds=seconds))
