"""The options of a door: where it listens, who may read, what it logs; and one for each limit of a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from millpond.logs import FORMATS, LEVELS
from millpond.settings import ServeSettings

_DEFAULT = ServeSettings()
_FILE = click.Path(dir_okay=False, path_type=Path)
_SOME, _NONE_OR_SOME = click.IntRange(1), click.IntRange(0)
_TIME = click.FloatRange(min=0, min_open=True)
Limit = tuple[str, click.IntRange | click.FloatRange, str]
"""setting, the values it may have, help"""
_LIMITS: tuple[Limit, ...] = (
    ("max_rows", _SOME, "The most rows of one answer."),
    ("max_answer_bytes", _SOME, "The most bytes of one answer."),
    ("sql_processes", _SOME, "SQL statements that a process answers at one time, each in a process of its own."),
    ("sql_memory_bytes", click.IntRange(16 << 20), "The most memory of one SQL statement, in bytes."),
    ("max_seconds", _TIME, "The longest time of one read."),
    ("requests_per_second", click.FloatRange(min=0), "Requests of one client per second; 0 is no limit."),
    ("failed_logins_per_minute", _NONE_OR_SOME, "Requests of one address without a valid token; 0 is no limit."),
    ("max_url_bytes", click.IntRange(64), "Bytes of a URL."),
    ("max_header_bytes", click.IntRange(256), "Bytes of a request's URL and headers."),
    ("max_body_bytes", _SOME, "Bytes of a request's body."),
    ("header_seconds", _TIME, "The longest time for a request's headers to arrive."),
    ("body_seconds", _TIME, "The longest time for a request's body to arrive."),
    ("keep_alive_seconds", _TIME, "How long an idle connection stays open."),
    ("send_seconds", _TIME, "How long a client may take to read its answer."),
    ("max_unread_bytes", _SOME, "Bytes of answers that the clients haven't read yet."),
    ("max_connections", _SOME, "Open connections of a process."),
    ("max_connections_per_client", _SOME, "The same of one client."),
    ("max_streams", _NONE_OR_SOME, "Event streams of a process."),
    ("max_streams_per_client", _NONE_OR_SOME, "The same of one client."),
    ("max_waits", _NONE_OR_SOME, "Requests of a process that wait for a batch."),
    ("max_waits_per_client", _NONE_OR_SOME, "The same of one client."),
    ("max_large_answers", _SOME, "Large answers that a process makes at one time."),
    ("max_downloads", _NONE_OR_SOME, "Large answers in pieces that a process sends at one time."),
    ("max_downloads_per_client", _NONE_OR_SOME, "The same of one client."),
    ("max_operations", _NONE_OR_SOME, "Savepoints that are made or verified at one time."),
    ("kept_operations", _SOME, "Ended operations that a process remembers."),
)


# A router makes no savepoints, and has two threads for large answers.
_NOT_OF_ROUTER = {"max_large_answers", "max_operations", "kept_operations"}


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each limit of a server, with the name of its setting."""
    return _all_of(*map(_limit_option, _LIMITS))(command)


def router_limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same of a router."""
    return _all_of(*(_limit_option(limit) for limit in _LIMITS if limit[0] not in _NOT_OF_ROUTER))(command)


def _limit_option(limit: Limit) -> Callable[..., Any]:
    name, values, text = limit
    option = f"--{name.replace('_', '-')}"
    return click.option(option, type=values, default=getattr(_DEFAULT, name), show_default=True, help=text)


def listen_options(port: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of where it listens, each with the name of its setting.

    port:  the default
    """
    return _all_of(
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=port,
            show_default=True,
            help="The port to listen on; 0 takes a free one.",
        ),
        click.option("--host", default=_DEFAULT.host, show_default=True, help="The address to listen on; 0.0.0.0 is all of them."),
    )


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same of who may read, and over TLS."""
    return _all_of(
        click.option("--tokens", type=_FILE, help="Let in only readers with a token of this file; `millpond token` makes tokens."),
        click.option("--insecure-open", "insecure", is_flag=True, help="Let everybody who can reach the address read."),
        click.option("--allow-host", "allow_hosts", metavar="NAME", multiple=True, help="Also answer requests for this host name."),
        click.option("--tls-cert", type=_FILE, help="Certificates, PEM: answer over TLS."),
        click.option("--tls-key", type=_FILE, help="The certificate's key, PEM."),
    )(command)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same of what is logged."""
    return _all_of(
        click.option(
            "--log-level", type=click.Choice(LEVELS), default=_DEFAULT.log_level, show_default=True, help="What is logged."
        ),
        click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            default=_DEFAULT.log_format,
            show_default=True,
            help="The form of log lines.",
        ),
        click.option("--log-requests", is_flag=True, help="Log each request, with its route but never its key."),
    )(command)


def _all_of(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
