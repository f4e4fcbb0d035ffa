"""`millpond serve`: the HTTP door."""

from __future__ import annotations

import sys

import click

import millpond
from millpond.cli import options
from millpond.cli.output import write_line
from millpond.serve.server import address_of, open_listener, serve_http
from millpond.settings import ServeSettings
from millpond.tables.values import encode_json

_DEFAULT = ServeSettings()


@click.command()
@options.pond_argument
@click.option("--port", type=click.IntRange(0, 65535), default=_DEFAULT.port, show_default=True, help="0 takes a free one.")
@click.option("--host", default=_DEFAULT.host, show_default=True, help="The address to listen at; 0.0.0.0 is every one.")
@click.option(
    "--max-behind-seconds",
    type=click.FloatRange(min=0),
    default=_DEFAULT.ready_behind_seconds,
    show_default=True,
    help="/readyz says no when a committed batch waits for longer.",
)
@options.replica_option
@options.json_option
def serve(pond_dir: str, port: int, host: str, max_behind_seconds: float, replica_dir: str | None, as_json: bool) -> None:
    """Follow the jobs of a pond or checkpoint and answer requests over HTTP, until Ctrl-C or SIGTERM.

    Whoever reaches the address may read everything: it is this machine only, unless --host says otherwise.

    \b
    Examples:
      millpond serve ./pond
      curl 'localhost:8642/tables/page_views/rows?page=/index.html'
      millpond serve /data/checkpoints/page-views --port 9000
      millpond serve s3://my-bucket/checkpoints/page-views
    """
    settings = ServeSettings(host=host, port=port, ready_behind_seconds=max_behind_seconds)
    with open_listener(host, port) as listener, millpond.open(pond_dir, replica_dir=replica_dir, wait_seconds=0) as pond:
        address = address_of(listener)

        def announce() -> None:
            write_line(encode_json({"url": address}).decode() if as_json else f"Serving {pond_dir} at {address} (Ctrl-C ends)")
            sys.stdout.flush()

        serve_http(pond, listener, settings=settings, on_ready=announce)
