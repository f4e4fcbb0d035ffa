"""`millpond tables`: what there is to ask."""

from __future__ import annotations

import click

from millpond.cli import options
from millpond.cli.output import write_grid, write_line
from millpond.errors import MillpondError
from millpond.serve.shapes import describe_table, error_json
from millpond.tables.values import encode_json


@click.command()
@options.pond_argument
@options.reading_options
def tables(pond_dir: str, replica_dir: str | None, wait_seconds: float, as_json: bool) -> None:
    """List the tables of a pond or checkpoint: key, columns, rows, and the batch they are at.

    \b
    Examples:
      millpond tables ./pond
      millpond tables /data/checkpoints/page-views --json
    """
    with options.open_caught_up(pond_dir, replica_dir=replica_dir, wait_seconds=wait_seconds) as pond:
        rows = []
        warnings = []
        for name in pond.tables():
            # One table that can't be read mustn't hide the others.
            try:
                shown = describe_table(pond[name])
            except MillpondError as error:
                shown = {"table": name, **error_json(error)}
                warnings.append(f"{name}: {error}")
            if as_json:
                write_line(encode_json(shown).decode())
                continue
            if "error" in shown:
                rows.append([name, "", "", "", "", "", shown["error"]["condition"]])
                continue
            warnings += [f"{name}: {warning}" for warning in shown["warnings"]]
            values = [column["name"] for column in shown["columns"] if not column["key"]]
            key, behind = ", ".join(shown["key"]), f"{shown['lag']['behind_seconds']:.1f} s"
            rows.append([name, shown["job"], key, ", ".join(values), str(shown["row_count"]), str(shown["batch"]), behind])
        if not as_json:
            write_grid(["table", "job", "key", "columns", "rows", "batch", "behind"], rows)
            for warning in warnings:
                click.echo(warning, err=True)
