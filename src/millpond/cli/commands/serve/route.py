"""`millpond route`: the tables of several servers at one address."""

from __future__ import annotations

import ssl
import sys
from dataclasses import replace
from typing import Any

import click

from millpond.cli import options
from millpond.cli.limits import access_options, listen_options, log_options, router_limit_options
from millpond.cli.terminal import write_json, write_line
from millpond.logs import EventLog, write_logs
from millpond.router.pond import ShardedPond, connect_shards
from millpond.settings import ServeSettings

log = EventLog(__name__)
_DEFAULT = ServeSettings(port=8643)


def connect(urls: tuple[str, ...], token: str | None) -> ShardedPond:
    """The servers of these addresses, with the system's certificates."""
    verify = ssl.create_default_context() if any(url.startswith("https") for url in urls) else False
    return connect_shards(urls, token=token, verify=verify)


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@listen_options(_DEFAULT.port)
@access_options
@router_limit_options
@options.server_token_option
@log_options
@options.json_option
def route(urls: tuple[str, ...], server_token: str | None, as_json: bool, **given: Any) -> None:
    """Answer HTTP requests from several servers that each follow a shard, until Ctrl-C or SIGTERM.

    A row is asked of the server that has its partition; other reads are combined at one batch.
    Several servers may follow the same shard: another one is asked if the first fails.

    \b
    Examples:
      millpond route http://one:8642 http://two:8642 http://three:8642
      curl 'localhost:8643/tables/page_views/rows?page=/index.html'
    """
    from millpond.router.program import route_http
    from millpond.serve.access.access import check_exposure
    from millpond.serve.access.tokens import read_tokens
    from millpond.serve.process.server import address_of, check_libraries, open_certificate, open_listener

    settings = replace(_DEFAULT, **given)
    write_logs(settings.log_level, settings.log_format)
    check_libraries()
    check_exposure(settings)
    open_certificate(settings)
    if settings.tokens is not None:
        read_tokens(settings.tokens)
    with open_listener(settings.host, settings.port) as listener, connect(urls, server_token) as pond:
        address = address_of(listener, tls=settings.tls_cert is not None)

        def announce() -> None:
            if as_json:
                write_json({"url": address})
            else:
                write_line(f"Routing to {', '.join(urls)} at {address} (Ctrl-C ends)")
            sys.stdout.flush()
            log.info("route.ready", url=address, servers=", ".join(urls))

        route_http(pond, listener, settings, on_ready=announce)
    log.info("route.ended")
