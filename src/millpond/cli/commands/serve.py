"""`millpond serve`: the HTTP door."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from millpond.cli import options
from millpond.cli.config import config_option
from millpond.cli.limits import limit_options
from millpond.cli.terminal import write_json, write_line
from millpond.errors import RequestError
from millpond.logs import FORMATS, LEVELS, EventLog, write_logs
from millpond.serve.access.access import check_exposure
from millpond.serve.access.tokens import read_tokens
from millpond.serve.backups import Backups
from millpond.serve.ponds import check_room, name_places
from millpond.serve.process.server import address_of, check_libraries, open_certificate, open_listener, serve_http
from millpond.serve.process.shared import shared_folder
from millpond.serve.process.workers import Plan, serve_workers
from millpond.serve.retention_options import check_retention, parse_retention, retention_by_pond
from millpond.settings import BackupSettings, ServeSettings

log = EventLog(__name__)
# The option of each field of BackupSettings.
_BACKUPS = {
    "savepoint_every": "savepoint_every",
    "keep_last": "savepoint_keep_last",
    "keep_for": "savepoint_keep_for",
    "keep_daily": "savepoint_keep_daily",
    "archive": "archive",
    "archive_keep_for": "archive_keep_for",
}
_DEFAULT = ServeSettings()
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("places", metavar="[NAME=]DIR...", nargs=-1)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_DEFAULT.port,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option("--host", default=_DEFAULT.host, show_default=True, help="The address to listen on; 0.0.0.0 is all of them.")
@click.option("--workers", type=click.IntRange(1, 64), default=_DEFAULT.workers, show_default=True, help="Processes that answer.")
@click.option("--tokens", type=_FILE, help="Let in only readers with a token of this file; `millpond token` makes tokens.")
@click.option("--insecure-open", "insecure", is_flag=True, help="Let everybody who can reach the address read.")
@click.option("--allow-host", "allow_hosts", metavar="NAME", multiple=True, help="Also answer requests for this host name.")
@click.option("--tls-cert", type=_FILE, help="Certificates, PEM: answer over TLS.")
@click.option("--tls-key", type=_FILE, help="The certificate's key, PEM.")
@click.option(
    "--max-behind-seconds",
    "ready_behind_seconds",
    type=click.FloatRange(min=0),
    default=_DEFAULT.ready_behind_seconds,
    show_default=True,
    help="/readyz answers 503 if a committed batch waits for longer.",
)
@limit_options
@click.option(
    "--history", metavar="TABLE=N|24h|forever", multiple=True, help="Keep a table's changes: of N batches, or for this long."
)
@click.option("--keep-closed", metavar="TABLE=24h|forever|no", multiple=True, help="How long to keep a table's expired rows.")
@click.option("--savepoint-every", metavar="15m|1h|1d", help="Make a savepoint of each job at this interval.")
@click.option(
    "--savepoint-keep-last", type=click.IntRange(min=0), default=0, metavar="N", help="Of these, keep the newest N of each job."
)
@click.option("--savepoint-keep-for", metavar="12h|30d", help="Of these, keep those that are younger.")
@click.option(
    "--savepoint-keep-daily", type=click.IntRange(min=0), default=0, metavar="DAYS", help="Of these, keep the newest of each day."
)
@click.option("--archive", metavar="DIR|URI", help="Archive each batch of each job, in a folder here with the job's name.")
@click.option("--archive-keep-for", metavar="12h|30d", help="How long archived batches stay; without it, for ever.")
@click.option("--log-level", type=click.Choice(LEVELS), default=_DEFAULT.log_level, show_default=True, help="What is logged.")
@click.option(
    "--log-format", type=click.Choice(FORMATS), default=_DEFAULT.log_format, show_default=True, help="The form of log lines."
)
@click.option("--log-requests", is_flag=True, help="Log each request, with its route but never its key.")
@click.option("--max-bytes", type=click.IntRange(1), help="Don't start if replicas would take more disk than this.")
@options.allow_option
@options.replica_option
@options.json_option
@config_option(places="ponds")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    places: tuple[str, ...],
    history: tuple[str, ...],
    keep_closed: tuple[str, ...],
    max_bytes: int | None,
    allow: tuple[str, ...],
    replica_dir: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Follow the jobs of ponds and checkpoints and answer requests over HTTP, until Ctrl-C or SIGTERM.

    By default only this machine can read. --host opens another address, with --tokens or
    --insecure-open.

    \b
    Examples:
      millpond serve ./pond
      curl 'localhost:8642/tables/page_views/rows?page=/index.html'
      millpond serve /data/checkpoints/page-views --port 9000
      millpond serve web=/data/web/pond shop=s3://my-bucket/shop --workers 2
      millpond serve --config millpond.toml
      millpond serve ./pond --host 0.0.0.0 --tokens readers.json \\
        --tls-cert cert.pem --tls-key key.pem
    """
    places = places or tuple((ctx.default_map or {}).get("places", ()))
    if not places:
        raise RequestError("INVALID_REQUEST", "No pond is named.", hint="Name a folder: millpond serve ./pond.")
    backups = BackupSettings(**{name: limits.pop(option) for name, option in _BACKUPS.items()})
    settings, arguments = replace(_DEFAULT, **limits), _arguments()
    write_logs(settings.log_level, settings.log_format)
    check_libraries()
    check_exposure(settings)
    open_certificate(settings)
    if settings.tokens is not None:
        read_tokens(settings.tokens)
    named, retention = name_places(places), parse_retention(history, keep_closed)
    Backups(named, backups)  # an interval that isn't one is said now
    for name in check_retention(retention, named, allow):
        log.warning(
            "retention.waits", table=name, message="there is no such table yet; its retention applies as soon as there is one"
        )
    with ExitStack() as opened:
        first = opened.enter_context(open_listener(settings.host, settings.port, shared=settings.workers > 1))
        address = address_of(first, tls=settings.tls_cert is not None)
        if max_bytes is not None:
            check_room(named.values(), max_bytes, allow)

        def announce() -> None:
            where = ", ".join(named.values())
            if as_json:
                write_json({"url": address})
            else:
                write_line(f"Serving {where} at {address} (Ctrl-C ends)")
            sys.stdout.flush()
            log.info("serve.ready", url=address, places=", ".join(named.values()), workers=settings.workers)

        shared = opened.enter_context(shared_folder()) if settings.workers > 1 else None
        retentions = retention_by_pond(retention, named)
        again = partial(read_again, arguments)
        plan = Plan(
            places=named,
            replica_dir=replica_dir,
            settings=settings,
            retention=retentions,
            shared=shared,
            allow=allow,
            read_again=again,
            backups=backups,
        )
        if shared is not None:
            port = first.getsockname()[1]
            more = [opened.enter_context(open_listener(settings.host, port, shared=True)) for _ in range(settings.workers - 1)]
            serve_workers(plan, [first, *more], on_ready=announce)
        else:
            with plan.open_ponds(follow=True) as ponds:
                serve_http(ponds, first, settings=settings, read_again=again, on_ready=announce)
        log.info("serve.ended")


def _arguments() -> tuple[str, ...]:
    """The arguments after the command's name."""
    words = sys.argv
    return tuple(words[words.index("serve") + 1 :]) if "serve" in words else ()


def read_again(arguments: tuple[str, ...]) -> ServeSettings:
    """The present settings of these arguments and their file.  Raises INVALID_CONFIG, FILE_MISSING."""
    try:
        given = serve.make_context("serve", list(arguments)).params
    except click.ClickException as wrong:
        raise RequestError("INVALID_CONFIG", f"{wrong.format_message()}.", hint="Correct the file of options.") from None
    return replace(_DEFAULT, **{field.name: given[field.name] for field in fields(ServeSettings) if field.name in given})
