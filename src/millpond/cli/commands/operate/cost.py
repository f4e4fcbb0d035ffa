"""`millpond cost`: what each job costs a month, and by what that is known."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from millpond.cli import options
from millpond.cli.complete import complete_place
from millpond.cli.output import write_grid
from millpond.cli.terminal import say, visible, write_json, write_line
from millpond.operate.cost.cost import Cost, CostLine, read_costs
from millpond.operate.cost.prices import read_prices, write_prices
from millpond.operate.units import money
from millpond.settings import parse_length

_WHOLE = 1000
_COLUMNS = ("what", "quantity", "unit", "price", "a month", "known", "source")


def _write_prices(ctx: click.Context, _option: click.Parameter, file: str | None) -> None:
    if file is not None:
        write_prices(file)
        say(f"Wrote {file}. Check each price, then use it with --prices.")
        ctx.exit()


@click.command()
@click.argument("place", metavar="DIR|URI", required=False, shell_complete=complete_place)
@click.argument("job", required=False)
@options.prices_option
@options.storage_option
@options.last_option
@click.option(
    "--write-prices",
    is_eager=True,
    expose_value=False,
    callback=_write_prices,
    metavar="FILE",
    help="Write the shipped table of prices to a new file, to be edited, and end.",
)
@options.replica_option
@options.allow_option
@options.json_option
def cost(
    place: str | None,
    job: str | None,
    prices: Path | None,
    storage: str | None,
    last: str,
    replica_dir: str | None,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what each job of a place costs a month: its state files, requests, and replicas on this machine.

    It goes by what was measured: the samples that `millpond serve` keeps, or else the log and the
    files of the checkpoint.  Each line says so, or that it is an estimate.  The shipped prices are
    those of one day in one region: check them.

    \b
    Examples:
      millpond cost ./pond
      millpond cost ./pond page_views --storage s3-standard
      millpond cost --write-prices prices.toml
      millpond cost s3://my-bucket/pond --prices prices.toml --json
    """
    if place is None:
        raise click.UsageError("Name a pond or checkpoint.")
    table, seconds = read_prices(prices), parse_length("--last", last)
    found = read_costs(place, table, job=job, storage=storage, last_seconds=seconds, replica_dir=replica_dir, allow=allow)
    for each in found:
        if as_json:
            write_json(msgspec.to_builtins(each))
        else:
            _write(each, table.words)


def _write(found: Cost, words: str) -> None:
    write_line(visible(f"{found.job}: {money(found.a_month)} {found.currency} a month on {found.storage}, by {words}"))
    write_grid(_COLUMNS, [_cells(line, found.currency) for line in found.lines])
    for sentence in found.unknown:
        say(f"Not in it: {sentence}")


def _cells(line: CostLine, currency: str) -> list[str]:
    return [
        line.what,
        f"{line.quantity:,.3f}" if line.quantity < _WHOLE else f"{line.quantity:,.0f}",
        line.unit,
        f"{line.price:g}",
        f"{money(line.cost)} {currency}",
        line.known,
        line.source,
    ]
