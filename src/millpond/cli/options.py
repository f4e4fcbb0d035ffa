"""Arguments and options that several commands share, and their parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from millpond.cli.complete import complete_column, complete_place, complete_table
from millpond.cli.place import Reading, open_table
from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import decode_json
from millpond.tables.job.bounds import Bounds
from millpond.wire.declare import fields
from millpond.wire.keys import Key, parse_object, parse_pairs
from millpond.wire.questions import AsOf, Scan

if TYPE_CHECKING:
    from millpond.cli.place import AnyTable

Command = TypeVar("Command", bound=Callable[..., Any])
LIMIT = 100

pond_argument = click.argument("place", metavar="DIR|URL", shell_complete=complete_place)
table_argument = click.argument("table_name", metavar="[TABLE]", required=False, shell_complete=complete_table)
take_over_option = click.option(
    "--take-over", is_flag=True, help="Take the job's lease from whoever has it; only if that can't write any more."
)
stateless_option = click.option(
    "--stateless", is_flag=True, help="The query keeps no state; else a checkpoint without any has lost it."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, one object per line.")
replica_option = click.option(
    "--replica-dir",
    type=click.Path(file_okay=False),  # as text: a Path makes a folder of memory://
    help="The folder of the replica; memory:// for memory. [default: under $MILLPOND_HOME, else the user's cache folder]",
)

server_token_option = click.option(
    "--server-token",
    envvar="MILLPOND_TOKEN",
    metavar="TOKEN",
    help="The reader's token, if the server needs one; better in $MILLPOND_TOKEN, which other users can't see.",
)
prices_option = click.option(
    "--prices",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A table of prices, TOML. [default: the shipped one, see --write-prices of cost]",
)
last_option = click.option("--last", default="7d", show_default=True, metavar="24h|7d", help="By the samples of so long.")
storage_option = click.option(
    "--storage", metavar="NAME", help="Count the checkpoint as if it were on this storage of the prices. [default: where it is]"
)
allow_option = click.option(
    "--allow",
    metavar="DIR|URI",
    multiple=True,
    help="Allow the pond to name this place outside of it, for a checkpoint or a link's target; may be repeated.",
)


def _bundled(
    name: str,
    make: Callable[..., Any],
    *given: Callable[[Command], Command],
    words: Iterable[str] | None = None,
    shared: tuple[str, ...] = (),
) -> Callable[[Command], Command]:
    """A decorator that passes these options to a command as one argument, which `make` makes of them.

    words:   the options' names; by default those of the parameters of `make`
    shared:  options of a bundle below this one that it reads as well
    """
    words = list(signature(make).parameters) if words is None else [*words, *shared]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(*arguments: Any, **others: Any) -> Any:
            values = {word: others[word] if word in shared else others.pop(word) for word in words}
            return command(*arguments, **{name: make(**values)}, **others)

        for option in reversed(given):
            call = option(call)
        return call  # type: ignore[return-value]

    return decorate


# The words for a field's value in the help, if its type isn't enough.
_VALUES = {
    "contains_file": "PATH",
    "contains_offset": "TOPIC:PARTITION:OFFSET",
    "event_time": "TIME",
    "file": "PATH",
    "offset": "TOPIC:PARTITION:OFFSET",
    "time": "TIME",
}


def field_option(kind: type[msgspec.Struct], name: str, **more: Any) -> Callable[[Command], Command]:
    """The option of a declared field, with its description as help.

    It has the field's name, without `_seconds`.

    more:  further or other arguments of `click.option`
    """
    field = fields(kind)[name]
    how: dict[str, Any] = {"help": field.text, "metavar": _VALUES.get(name)}
    if field.kinds == {bool}:
        how["is_flag"] = True
    elif list in field.kinds:
        how |= {"multiple": True, "help": f"{field.text}  May be repeated."}
    elif dict in field.kinds:
        how["metavar"] = "JSON"
    elif float in field.kinds:
        how |= {"type": float, "metavar": "SECONDS"}
    elif field.kinds == {int}:
        how["type"] = int
    return click.option(f"--{name.removesuffix('_seconds').replace('_', '-')}", name, **{**how, **more})


# ------------------------------------------------------------ where, and how


# The options of every command that opens a pond or asks a server, as `reading`.
place_options = _bundled(
    "reading",
    Reading,
    allow_option,
    replica_option,
    click.option(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="How long to wait for a pond, a table, the newest committed batch, and all bounds."
        "  [default: 300 for the newest committed batch, 0 for the others]",
    ),
    server_token_option,
)


def reading_options(command: Command) -> Command:
    """The options of every command that opens a pond or asks a server: `reading`, and `as_json`."""
    return place_options(json_option(command))


# ------------------------------------------------------------ which rows


@dataclass(frozen=True, slots=True)
class KeyWords:
    """The key, or a part of it, from COLUMN=VALUE words or --key."""

    columns: tuple[str, ...]
    key_json: str | None

    def after(self, given: str | None, table: str) -> KeyWords:
        """These words, and before them the one that stood where TABLE may stand, if that wasn't the table's name."""
        return self if given in (None, table) else KeyWords((str(given), *self.columns), self.key_json)

    def of(self, definition: TableDefinition, *, by_value: bool = False) -> Key:
        """The key of a table; `by_value` as for `parse_pairs`.

        Raises:  INVALID_REQUEST if a word has no `=`, --key isn't a JSON object, or both are given;
                 WRONG_TYPE.
        """
        if self.key_json is None:
            return _parse_words(definition, self.columns, by_value=by_value)
        if self.columns:
            raise RequestError("INVALID_REQUEST", "Both --key and COLUMN=VALUE are given.", hint="Use one of the two.")
        try:
            data = decode_json(self.key_json)
        except ValueError as wrong:
            raise RequestError("INVALID_REQUEST", f"--key isn't JSON: {wrong}.", hint='Write it like \'{"page": "/"}\'.') from None
        return parse_object(definition, data, by_value=by_value)


key_options = _bundled(
    "key_words",
    KeyWords,
    click.argument("columns", metavar="[COLUMN=VALUE]...", nargs=-1, shell_complete=complete_column),
    click.option(
        "--key", "key_json", metavar="JSON", help='Key columns as a JSON object instead: \'{"page": "/", "host": null}\'.'
    ),
)


@dataclass(frozen=True, slots=True)
class Edges:
    """Where a range of keys, or of an index, begins and ends, in COLUMN=VALUE words."""

    start: tuple[str, ...]
    end: tuple[str, ...]

    def of(self, definition: TableDefinition, *, by_value: bool = False) -> dict[str, Key]:
        """The given ones, in the form that reads take; `by_value` as for `parse_pairs`.

        Raises:  INVALID_REQUEST, WRONG_TYPE.
        """
        words = {"start": self.start, "end": self.end}
        return {edge: _parse_words(definition, given, by_value=by_value) for edge, given in words.items() if given}


edge_options = _bundled(
    "edges",
    Edges,
    click.option(
        "--start", multiple=True, metavar="COLUMN=VALUE", help="Begin at this value of the key's next column; may be repeated."
    ),
    click.option("--end", multiple=True, metavar="COLUMN=VALUE", help="End before this."),
)


def _page(limit: int, reverse: bool, token: str | None) -> dict[str, Any]:
    return {"limit": limit, "reverse": reverse, "token": token}


page_options = _bundled(
    "page",
    _page,
    field_option(Scan, "limit", default=LIMIT, show_default=True),
    field_option(Scan, "reverse"),
    field_option(Scan, "token"),
)


@dataclass(frozen=True, slots=True)
class Export:
    """Conditions on values, order and form of a scan's rows."""

    where: tuple[str, ...]
    order_by: str | None
    csv: bool
    parquet: Path | None

    @property
    def is_plain(self) -> bool:
        """Whether none of these options is given."""
        return self == Export((), None, False, None)


export_options = _bundled(
    "export",
    Export,
    click.option(
        "--where",
        multiple=True,
        metavar="CONDITION",
        help="Only rows that meet this condition: 'hits > 100'; may be repeated: rows that meet all.",
    ),
    click.option(
        "--order-by", metavar="COLUMN", help="Sort by this column's value instead of by key; with --reverse the largest first."
    ),
    click.option("--csv", is_flag=True, help="Write CSV with a header line; all rows, unless --limit is given."),
    click.option(
        "--parquet",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write a Parquet file; all rows, unless --limit is given.",
    ),
)


def _parse_words(definition: TableDefinition, words: tuple[str, ...], *, by_value: bool = False) -> Key:
    """The key, or a part of it, from COLUMN=VALUE words.

    by_value:  as for `parse_pairs`
    Raises:  INVALID_REQUEST if one has no `=`; WRONG_TYPE.
    """
    return parse_pairs(definition, [_split(word) for word in words], by_value=by_value)


def _split(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals:
        raise RequestError(
            "INVALID_REQUEST",
            f"{word!r} has no value.",
            hint=f"Write {word}=VALUE, {word}= for the empty text, or {word}__isnull=1 for NULL.",
        )
    return name, text


# ------------------------------------------------------------ as of when


as_of_options = _bundled(
    "as_of",
    AsOf,
    field_option(AsOf, "batch"),
    field_option(AsOf, "time"),
    click.option(
        "--closed/--live",
        default=None,
        help="Show expired rows, or don't. [default: only expired windows and sessions]",
    ),
    words=("batch", "time", "closed"),
)


def _bounds(*, min_offsets: str | None, wait: float | None, **others: Any) -> Bounds | None:
    """The bounds of the options; None without any.  Raises INVALID_BOUND."""
    given = {name: value for name, value in others.items() if value not in (None, ())}
    if min_offsets is not None:
        try:
            offsets = decode_json(min_offsets)
        except ValueError as wrong:
            raise RequestError(
                "INVALID_BOUND", f"--min-offsets isn't JSON: {wrong}.", hint='Write it like \'{"views": {"0": 11171}}\'.'
            ) from None
        # Without this check, JSON's null would mean no bound.
        given["min_offsets"] = offsets if isinstance(offsets, dict) else {}
    return Bounds(**given, wait_seconds=wait or 0.0) if given or wait else None


_BOUNDS = tuple(name for name in fields(Bounds) if name != "wait_seconds")
bounds_options = _bundled("bounds", _bounds, *(field_option(Bounds, name) for name in _BOUNDS), words=_BOUNDS, shared=("wait",))


# ------------------------------------------------------------ one read of one table


@dataclass(frozen=True, slots=True)
class TableRead:
    """One read of one table: where, of which key, as of when, within which bounds, and how to show it."""

    place: str
    table_name: str | None
    key_words: KeyWords
    as_of: AsOf
    bounds: Bounds | None
    reading: Reading
    as_json: bool

    @contextmanager
    def open(self, *, by_value: bool = False) -> Iterator[tuple[AnyTable, Key]]:
        """The table in the wanted state, and the key.  Raises as `open_table`, `KeyWords.of` and `Table.at`."""
        with open_table(self.place, self.table_name, self.reading, self.bounds) as table:
            key = self.key_words.after(self.table_name, table.name).of(table.definition, by_value=by_value)
            yield self.as_of.state_of(table), key


def table_read(*own: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """The options of a command that reads one table, as its argument `asked`.

    own:  options of the command itself; the help shows them after the key
    """
    above, below = (pond_argument, table_argument, key_options), (as_of_options, bounds_options, reading_options)
    return _bundled("asked", TableRead, *above, *own, *below)
