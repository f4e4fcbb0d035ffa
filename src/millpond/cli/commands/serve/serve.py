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
from millpond.cli.limits import access_options, limit_options, listen_options, log_options
from millpond.cli.terminal import write_json, write_line
from millpond.errors import RequestError
from millpond.logs import EventLog, write_logs
from millpond.operate.config import read_config
from millpond.replica.backends.choice import LMDB, choose_backend
from millpond.schema.shard import parse_shard
from millpond.serve.access.access import check_exposure
from millpond.serve.access.tokens import read_tokens
from millpond.serve.backups import Backups
from millpond.serve.connections.beside import Listeners
from millpond.serve.kept_options import by_pond, check_names, parse_index_words, parse_retention
from millpond.serve.ponds import check_room, name_places
from millpond.serve.process.server import (
    address_of,
    check_flight,
    check_libraries,
    check_otlp,
    open_certificate,
    open_listener,
    serve_http,
)
from millpond.serve.process.shared import shared_folder
from millpond.serve.process.workers import Plan, serve_workers
from millpond.serve.sql.pool import check_library
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
_PROTOCOLS = {"redis": "Redis' protocol", "postgres": "PostgreSQL's protocol", "flight": "Arrow Flight SQL"}


@click.command()
@click.argument("places", metavar="[NAME=]DIR...", nargs=-1)
@listen_options(_DEFAULT.port)
@click.option("--redis-port", type=click.IntRange(0, 65535), help="Answer Redis' protocol, too, at this port; 0 takes a free one.")
@click.option(
    "--postgres-port", type=click.IntRange(0, 65535), help="Answer PostgreSQL's protocol, too, at this port; 0 takes a free one."
)
@click.option(
    "--flight-port", type=click.IntRange(0, 65535), help="Answer Arrow Flight SQL, too, at this port; 0 takes a free one."
)
@click.option("--workers", type=click.IntRange(1, 64), default=_DEFAULT.workers, show_default=True, help="Processes that answer.")
@access_options
@click.option(
    "--sql/--no-sql", default=_DEFAULT.sql, help="Answer SQL statements, or don't.  By default it does, if duckdb is installed."
)
@click.option(
    "--samples/--no-samples", default=_DEFAULT.samples, help="Measure each job every minute, and keep that for two weeks, or don't."
)
@click.option("--console/--no-console", default=_DEFAULT.console, help="Show browsers a page at the server's root, or don't.")
@click.option("--otlp", metavar="URL", help="Push metrics to OpenTelemetry's collector there, such as http://localhost:4318.")
@click.option("--alerts", type=click.Path(dir_okay=False, path_type=Path), help="Thresholds and silences of alerts, a TOML file.")
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
@click.option(
    "--index", "indexes", metavar="TABLE=COLUMN,…", multiple=True, help="Also keep a table's rows in the order of these columns."
)
@click.option(
    "--shard",
    "--partitions",
    "shard",
    metavar="K/N|0-31",
    help="Follow some partitions of each job only: the K-th of N shares, or partitions by number.",
)
@click.option("--backend", default=LMDB, show_default=True, help="What keeps the replicas: lmdb, or one of an installed package.")
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
@log_options
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
    indexes: tuple[str, ...],
    shard: str | None,
    backend: str,
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
    if settings.alerts is not None:
        read_config(settings.alerts)
    if settings.otlp is not None:
        check_otlp(settings.otlp)
    shard = None if shard is None else parse_shard(shard).text
    if not choose_backend(backend).is_shared and settings.workers > 1:
        raise RequestError(
            "INVALID_REQUEST",
            f"The backend {backend} keeps a replica for one process, and --workers starts several.",
            hint="Leave --workers out.",
        )
    named, retention, indexed = name_places(places), parse_retention(history, keep_closed), parse_index_words(indexes)
    Backups(named, backups)  # an interval that isn't one is said now
    for name in check_names({*retention, *indexed}, named, allow):
        log.warning(
            "table.waits", table=name, message="there is no such table yet; its retention and indexes apply as soon as there is one"
        )
    with ExitStack() as opened:
        is_shared = settings.workers > 1
        if settings.postgres_port is not None or settings.flight_port is not None:
            check_library()
        if settings.flight_port is not None:
            check_flight()

        def listen(*ports: int | None) -> Listeners:
            found = [
                None if port is None else opened.enter_context(open_listener(settings.host, port, shared=is_shared))
                for port in ports
            ]
            assert found[0] is not None
            return Listeners(found[0], *found[1:])

        first = listen(settings.port, settings.redis_port, settings.postgres_port, settings.flight_port)
        ports = {name: each.getsockname()[1] for name, each in first._asdict().items() if each is not None}
        address = address_of(first.http, tls=settings.tls_cert is not None)
        if max_bytes is not None:
            check_room(named.values(), max_bytes, allow)

        def announce() -> None:
            where = ", ".join(named.values())
            beside = {name: port for name, port in ports.items() if name in _PROTOCOLS}
            if as_json:
                made = {"url": address, **({} if shard is None else {"shard": shard})}
                write_json({**made, **{f"{name}_port": port for name, port in beside.items()}})
            else:
                also = "".join(f", {_PROTOCOLS[name]} at port {port}" for name, port in beside.items())
                of = "" if shard is None else f"the shard {shard} of "
                write_line(f"Serving {of}{where} at {address}{also} (Ctrl-C ends)")
            sys.stdout.flush()
            log.info("serve.ready", url=address, places=", ".join(named.values()), workers=settings.workers)

        shared = opened.enter_context(shared_folder()) if settings.workers > 1 else None
        again = partial(read_again, arguments)
        plan = Plan(
            places=named,
            replica_dir=replica_dir,
            settings=settings,
            retention=by_pond(retention, named),
            indexes=by_pond(indexed, named),
            shared=shared,
            allow=allow,
            shard=shard,
            backend=backend,
            read_again=again,
            backups=backups,
        )
        if shared is not None:
            more = [listen(*(ports.get(name) for name in Listeners._fields)) for _ in range(settings.workers - 1)]
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
