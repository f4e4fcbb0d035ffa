"""`millpond shards`: who has which partitions, and how far each server is."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.commands.serve.route import connect
from millpond.cli.output import write_grid
from millpond.cli.terminal import say, write_json
from millpond.wire.answers import members


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@options.server_token_option
@options.json_option
def shards(urls: tuple[str, ...], server_token: str | None, as_json: bool) -> None:
    """List who has what: for each server and table its shard, its batch, and how far it is behind.

    \b
    Examples:
      millpond shards http://one:8642 http://two:8642 http://three:8642
    """
    with connect(urls, server_token) as pond:
        rows = []
        for url, said in pond.shards():
            if isinstance(said, str):
                write_json({"url": url, "error": said}) if as_json else say(f"{url}: {said}")
                continue
            for name, table in sorted(said.items()):
                if as_json:
                    write_json({"url": url, **members(table)})
                    continue
                state = table.state
                what = state.shard or "all"
                rows.append([name, what, str(state.partitions), url, str(table.batch), f"{table.lag.behind_seconds:.1f} s"])
        if not as_json:
            write_grid(["table", "shard", "of", "server", "batch", "behind"], sorted(rows))
