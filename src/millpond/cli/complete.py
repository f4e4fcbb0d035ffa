"""Shell completion of folders, the tables of a pond, and the columns of a key.

It reads the checkpoint and asks no server.  It hides errors, since the command will show them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.shell_completion import CompletionItem

from millpond.cli.place import is_server
from millpond.errors import MillpondError

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _quietly(complete: Complete) -> Complete:
    @wraps(complete)
    def call(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            return complete(ctx, parameter, begun)
        except (MillpondError, OSError):
            return []

    return call


def complete_place(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A folder."""
    return [] if is_server(begun) else [CompletionItem(begun, type="dir")]


@_quietly
def complete_table(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A table of the named place."""
    from millpond.tables.cold.table import find_tables

    place: Any = ctx.params.get("place")
    if not place or is_server(place):
        return []
    return [CompletionItem(name) for name in find_tables(place) if name.startswith(begun)]


@_quietly
def complete_column(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A column of the table's key that isn't given yet, followed by `=`."""
    from millpond.tables.cold.table import find_definition

    place, table = ctx.params.get("place"), ctx.params.get("table_name")
    if not place or not table or is_server(place) or "=" in begun:
        return []
    given = {word.partition("=")[0] for word in ctx.params.get("columns") or ()}
    columns = [column.name for column in find_definition(place, table).key if column.name not in given]
    return [CompletionItem(f"{name}=") for name in columns if name.startswith(begun)]
