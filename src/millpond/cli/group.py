"""The group of all commands: finds them by name, and turns every error into one line with its hint and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from millpond.errors import MillpondError, RequestError, exit_code
from millpond.schema.values import encode_json
from millpond.serve.shapes import error_json

# Command -> its one line in `millpond --help`, so that the list needs no import of a command's libraries.
COMMANDS = {
    "changes": "Show what happened to the rows of a table.",
    "count": "Show how many rows a table has.",
    "demo": "Run the page-view job on a log, and ask its state while it runs.",
    "event": "Is this event in, and was it too late?",
    "get": "Show one row of a table.",
    "history": "Show what a row was, batch after batch.",
    "inspect": "Show what a checkpoint holds, and what can't be read.",
    "scan": "Show the rows of a table, or of a part of its key.",
    "serve": "Answer requests over HTTP.",
    "tables": "List the tables of a pond or checkpoint.",
    "token": "Say who may read what from a server.",
    "watch": "Show a row each time that it changes.",
    "windows": "Show the windows of a key between two times.",
}
INTERRUPTED = 130


class Commands(click.Group):
    """A click group whose commands lie in modules of the same name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.params.append(
            click.Option(
                ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
            )
        )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"millpond.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output has seen enough (`| head`).  Without this Python complains once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command and exit; errors are shown here, and only here."""
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        # What log lines would say, errors say; a server writes them as well.
        logging.getLogger("millpond").addHandler(logging.NullHandler())
        try:
            ended = super().main(words, prog_name or "millpond", *rest, **extra)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except click.ClickException as wrong:
            _fail(_from_click(wrong), words)
        except MillpondError as error:
            _fail(error, words)
        except Exception as error:
            if os.environ.get("MILLPOND_DEBUG"):
                raise
            _fail(_mistake(error), words)
        sys.exit(ended if isinstance(ended, int) else 0)


def _version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from millpond import __version__

        click.echo(f"millpond {__version__}")
        ctx.exit()


def _from_click(wrong: click.ClickException) -> MillpondError:
    path = wrong.ctx.command_path if isinstance(wrong, click.UsageError) and wrong.ctx else "millpond"
    message = " ".join(wrong.format_message().split())
    return RequestError("INVALID_REQUEST", message, hint=f"Run: {path} --help")


def _mistake(error: Exception) -> MillpondError:
    return MillpondError(
        "INTERNAL_ERROR",
        f"Millpond made a mistake: {type(error).__name__}: {' '.join(str(error).split())}.",
        hint="Run it again with MILLPOND_DEBUG=1 and report the traceback.",
    )


def _fail(error: MillpondError, words: list[str]) -> NoReturn:
    """One line for people, or the JSON of an error where the caller wants JSON; both on stderr."""
    as_json = "--json" in words[: words.index("--") if "--" in words else None]
    line = encode_json(error_json(error)).decode() if as_json else str(error).replace("\n", " ")
    click.echo(line, err=True)
    sys.exit(exit_code(error))
