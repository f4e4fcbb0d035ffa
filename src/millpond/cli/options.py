"""What several commands share: arguments, options, and what their words mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.errors import RequestError
from millpond.schema.definition import TableDefinition
from millpond.serve.keys import Key, parse_object, parse_pairs
from millpond.tables.bounds import Bounds
from millpond.tables.values import decode_json

if TYPE_CHECKING:
    from millpond.cli.place import AnyTable

Command = TypeVar("Command", bound=Callable[..., Any])
LIMIT = 100

pond_argument = click.argument("place", metavar="DIR|URL")
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


server_token_option = click.option(
    "--server-token",
    envvar="MILLPOND_TOKEN",
    metavar="TOKEN",
    help="The reader's token, where a URL's server wants one; better in $MILLPOND_TOKEN, which other users don't see.",
)


def reading_options(command: Command) -> Command:
    """The options of every command that opens a pond or asks a server: `place.open_place` takes what they say but --json."""
    for option in (json_option, server_token_option, wait_option, replica_option):
        command = option(command)
    return command


_BOUNDS = (
    click.option("--min-batch", type=int, help="Insist on this batch or a later one."),
    click.option(
        "--contains-offset",
        multiple=True,
        metavar="TOPIC:PARTITION:OFFSET",
        help="Insist that this record was read, by its own offset; may be repeated.",
    ),
    click.option(
        "--min-offsets",
        metavar="JSON",
        help='Insist that the sources have come so far, as in Spark\'s offsets/N: \'{"views": {"0": 11171}}\'.',
    ),
    click.option("--contains-file", metavar="PATH", help="Insist that a file source has read this file."),
    click.option("--max-behind", type=float, metavar="SECONDS", help="Insist that no commit waits for longer to be applied."),
    click.option("--max-age", type=float, metavar="SECONDS", help="Insist that the newest commit is no older."),
    click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="How long to wait for all of these. [default: 0]"),
)


def bounds_options(command: Command) -> Command:
    """The options that say what an answer must reflect; `parse_bounds` reads them."""
    for option in reversed(_BOUNDS):
        command = option(command)
    return command


def as_of_options(command: Command) -> Command:
    """The options that say which batch is read, and whether with rows that expired."""
    for option in (
        click.option(
            "--closed/--live",
            default=None,
            help="With rows that a watermark or a TTL has ended, or without them. [default: with finished windows]",
        ),
        click.option("--time", metavar="TIME", help="As of the newest batch that was committed by then."),
        click.option("--batch", type=int, help="As of this batch, where history is kept."),
    ):
        command = option(command)
    return command


def page_options(command: Command) -> Command:
    """The options of commands that show rows page by page."""
    for option in (
        click.option("--token", help="Show the next rows: what the same command wrote before."),
        click.option("--reverse", is_flag=True, help="Against the order of the key."),
        click.option("--limit", type=int, default=LIMIT, show_default=True, help="The largest number of rows."),
    ):
        command = option(command)
    return command


def edge_options(command: Command) -> Command:
    """The options that say where a range of keys begins and ends; `parse_edges` reads them."""
    for option in (
        click.option("--end", multiple=True, metavar="COLUMN=VALUE", help="End before this."),
        click.option(
            "--start", multiple=True, metavar="COLUMN=VALUE", help="Begin here: the next columns of the key, repeated for several."
        ),
    ):
        command = option(command)
    return command


def parse_edges(definition: TableDefinition, start: tuple[str, ...], end: tuple[str, ...]) -> tuple[Key | None, Key | None]:
    """What the options of `edge_options` say, None where they say nothing.  Raises as `parse_words`."""
    first, last = (parse_words(definition, words) if words else None for words in (start, end))
    return first, last


def as_of(table: AnyTable, batch: int | None, time: str | None, closed: bool | None) -> AnyTable:
    """The table as of what the options of `as_of_options` say.  Raises as `Table.at`."""
    if closed is not None:
        table = table.with_closed() if closed else table.live()
    return table if batch is None and time is None else table.at(batch=batch, time=time)


def parse_bounds(
    min_batch: int | None,
    contains_offset: tuple[str, ...],
    min_offsets: str | None,
    contains_file: str | None,
    max_behind: float | None,
    max_age: float | None,
    wait: float,
) -> Bounds | None:
    """The bounds that the options of `bounds_options` give, None where they give none.  Raises INVALID_BOUND."""
    given = (min_batch, contains_offset or None, min_offsets, contains_file, max_behind, max_age)
    if all(bound is None for bound in given) and wait == 0:
        return None
    offsets: Any = None
    if min_offsets is not None:
        try:
            offsets = decode_json(min_offsets)
        except ValueError as wrong:
            raise RequestError(
                "INVALID_BOUND", f"--min-offsets is no JSON: {wrong}.", hint='Write it like \'{"views": {"0": 11171}}\'.'
            ) from None
        # JSON's null would be no bound at all.
        offsets = offsets if isinstance(offsets, dict) else {}
    return Bounds(
        min_batch=min_batch,
        contains_offset=contains_offset or None,
        min_offsets=offsets,
        contains_file=contains_file,
        max_behind_seconds=max_behind,
        max_age_seconds=max_age,
        wait_seconds=wait,
    )


def parse_key(definition: TableDefinition, columns: tuple[str, ...], key_json: str | None) -> Key:
    """The key, or a part of it, from COLUMN=VALUE words or --key.

    Raises:  INVALID_REQUEST where a word has no `=`, --key is no JSON object, or both are given; WRONG_TYPE.
    """
    if key_json is None:
        return parse_words(definition, columns)
    if columns:
        raise RequestError("INVALID_REQUEST", "Both --key and COLUMN=VALUE are given.", hint="Use one of the two.")
    try:
        data = decode_json(key_json)
    except ValueError as wrong:
        raise RequestError("INVALID_REQUEST", f"--key is no JSON: {wrong}.", hint='Write it like \'{"page": "/"}\'.') from None
    return parse_object(definition, data)


def parse_words(definition: TableDefinition, words: tuple[str, ...]) -> Key:
    """The key, or a part of it, from COLUMN=VALUE words.  Raises INVALID_REQUEST where one has no `=`; WRONG_TYPE."""
    return parse_pairs(definition, [_split(word) for word in words])


def _split(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals:
        raise RequestError(
            "INVALID_REQUEST",
            f"{word!r} names no value.",
            hint=f"Write {word}=VALUE, {word}= for the empty text, or {word}__isnull=1 for NULL.",
        )
    return name, text
