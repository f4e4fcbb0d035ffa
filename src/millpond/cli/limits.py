"""An option for each limit of a server, with the default of its setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from millpond.settings import ServeSettings

_DEFAULT = ServeSettings()
_SOME, _NONE_OR_SOME = click.IntRange(1), click.IntRange(0)
_TIME = click.FloatRange(min=0, min_open=True)
# Setting, the values it may have, help.
_LIMITS: tuple[tuple[str, click.IntRange | click.FloatRange, str], ...] = (
    ("max_rows", _SOME, "The most rows of one answer."),
    ("max_answer_bytes", _SOME, "The most bytes of one answer."),
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


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each limit, with the name of its setting."""
    for name, values, text in reversed(_LIMITS):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, type=values, default=getattr(_DEFAULT, name), show_default=True, help=text)(command)
    return command
