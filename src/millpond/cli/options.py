"""What several commands share: arguments, options, and the opening of a pond that is caught up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

import millpond
from millpond.cli.progress import Progress
from millpond.errors import MillpondError, RequestError
from millpond.schema.definition import TableDefinition
from millpond.serve.keys import Key, parse_object, parse_pairs
from millpond.tables.pond import Pond
from millpond.tables.values import decode_json

Command = TypeVar("Command", bound=Callable[..., Any])

pond_argument = click.argument("pond_dir", metavar="DIR")
table_argument = click.argument("table_name", metavar="TABLE")
columns_argument = click.argument("columns", metavar="[COLUMN=VALUE]...", nargs=-1)
key_option = click.option(
    "--key", "key_json", metavar="JSON", help='Key columns as a JSON object instead: \'{"page": "/", "host": null}\'.'
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, one object a line.")
replica_option = click.option(
    "--replica-dir",
    type=click.Path(file_okay=False),  # as text: a Path makes a folder of memory://
    help="Where the local copy is kept; memory:// for none. [default: under $MILLPOND_HOME, else the user's cache folder]",
)
wait_option = click.option(
    "--wait-seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="How long to wait until the newest committed batch is in.",
)


def reading_options(command: Command) -> Command:
    """The options of every command that opens a pond, reads once and ends."""
    for option in (json_option, wait_option, replica_option):
        command = option(command)
    return command


@contextmanager
def open_caught_up(pond_dir: str, *, replica_dir: str | None, wait_seconds: float, table: str | None = None) -> Iterator[Pond]:
    """The pond, once the newest batch that was committed at the call is in; progress goes to stderr.

    table:   the one that is going to be read: trouble in other jobs is none of its

    Raises:  what `millpond.open` raises, and REPLICA_BEHIND where the time is over.
    """
    with millpond.open(pond_dir, replica_dir=replica_dir, wait_seconds=0) as pond:
        with Progress() as progress:
            try:
                pond.catch_up(wait_seconds, on_progress=progress)
            except MillpondError as error:
                if table is not None:
                    pond.catch_up(wait_seconds, on_progress=progress, table=table)
                elif pond.tables():
                    click.echo(str(error), err=True)
                else:
                    raise
        yield pond


def parse_key(definition: TableDefinition, columns: tuple[str, ...], key_json: str | None) -> Key:
    """The key, or a part of it, from COLUMN=VALUE words or --key.

    Raises:  INVALID_REQUEST where a word has no `=`, --key is no JSON object, or both are given; WRONG_TYPE.
    """
    if key_json is None:
        return parse_pairs(definition, [_split(word) for word in columns])
    if columns:
        raise RequestError("INVALID_REQUEST", "Both --key and COLUMN=VALUE are given.", hint="Use one of the two.")
    try:
        data = decode_json(key_json)
    except ValueError as wrong:
        raise RequestError("INVALID_REQUEST", f"--key is no JSON: {wrong}.", hint='Write it like \'{"page": "/"}\'.') from None
    return parse_object(definition, data)


def _split(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals:
        raise RequestError(
            "INVALID_REQUEST",
            f"{word!r} names no value.",
            hint=f"Write {word}=VALUE, {word}= for the empty text, or {word}__isnull=1 for NULL.",
        )
    return name, text
