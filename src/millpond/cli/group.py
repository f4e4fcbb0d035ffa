"""The group of all commands: finds them by name, and turns errors into a line and an exit code."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from millpond.cli.hints import hint_here
from millpond.cli.streams import drop_output, guard_streams
from millpond.cli.terminal import say, write_json
from millpond.errors import MillpondError, RequestError, exit_code
from millpond.wire.answers import error_json

# Package of commands -> command -> its line in `millpond --help`, so that the list needs no import of
# a command's libraries.  A title may have commands of several packages.
SECTIONS = {
    "Try": {
        "serve": {"demo": "Run the page-view job on a log, and ask its state while it runs."},
    },
    "Ask": {
        "ask": {
            "tables": "List the tables of a pond or checkpoint.",
            "describe": "Show a table's columns, and how long its history is kept.",
            "get": "Show one row of a table.",
            "scan": "Show the rows of a table, or of a part of its key.",
            "windows": "Show the windows of a key between two times.",
            "count": "Show how many rows a table has.",
            "total": "Show one row for a span of time of a declared aggregate.",
            "series": "Show the same with a row for each step.",
            "watch": "Show a row each time it changes.",
            "changes": "Show the changes of a table's rows.",
            "history": "Show all versions of a row.",
            "sql": "Answer a SELECT over tables, or many at a prompt.",
            "event": "Show which batch read an event, and whether it was late.",
        },
    },
    "Run": {
        "operate": {
            "run": "Keep a program of jobs running; a standby takes over from it.",
            "drill": "Restore the newest savepoints beside, start them, and measure how long that takes.",
        },
    },
    "Declare aggregates": {
        "aggregate": {
            "apply": "Start the aggregates that a file of SQL statements declares.",
            "versions": "List, align, compare, cut over and retire versions.",
            "retention": "Keep the buckets for another time.",
            "reprocess": "Compute buckets anew, and repair rows that differ.",
            "audit": "Compare an aggregate with all events that its job has read.",
        },
    },
    "Look into a checkpoint": {
        "operate": {
            "top": "Show all jobs live: batches, lag, size of state.",
            "samples": "Show the same of one job, over days.",
            "alerts": "Show which alerts fire, and what to do.",
            "doctor": "Show what costs more than it should, and what to change.",
            "forecast": "Show how the state grows, and when it meets a limit.",
            "cost": "Show what each job costs a month, and how that is known.",
            "what-if": "Show what a job would be with another TTL, codec, partitions, …",
        },
        "job": {
            "inspect": "Show the contents of a checkpoint, and what can't be read.",
            "diff": "Show which rows differ between savepoints or jobs.",
        },
    },
    "Keep and move jobs": {
        "savepoint": {"savepoint": "Make, verify and restore copies of a job's checkpoint."},
        "job": {
            "fork": "Make a second job with the state of a savepoint.",
            "rescale": "Give a job's state another number of partitions.",
            "rollback": "Take a job back to an earlier batch.",
            "archive": "Archive every batch of a job as it commits.",
            "repair": "Show why Spark can't start from a checkpoint, and make a copy that it starts from.",
            "check-upgrade": "Show what new code would do to a job's state.",
            "write-state": "Make a checkpoint for a new job, whose state has the rows of a past.",
            "evolve": "Make a savepoint with which new code goes on.",
            "erase": "Remove one key from a job, its savepoints and archives.",
        },
    },
    "Serve": {
        "serve": {
            "serve": "Answer requests over HTTP.",
            "route": "Answer from several servers that each follow a shard.",
            "shards": "Show which server has which partitions.",
            "token": "Give a reader a token for a server, or remove it.",
            "send": "Send a table's changes to Kafka, files, a database or a webhook.",
        },
    },
}
_PACKAGES = {name: package for section in SECTIONS.values() for package, lines in section.items() for name in lines}
COMMANDS = {name: line for section in SECTIONS.values() for lines in section.values() for name, line in lines.items()}
INTERRUPTED = 130
HELP = ["-h", "--help"]


class Commands(click.Group):
    """A click group whose commands are in modules of the same name, in packages by subject."""

    def __init__(self, **options: Any) -> None:
        super().__init__(context_settings={"help_option_names": HELP}, **options)
        self.params.append(
            click.Option(
                ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
            )
        )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        return self.named(cmd_name) if cmd_name in COMMANDS else None

    def named(self, name: str) -> click.Command:
        """The command of this name.  It has -h also where a program calls it without the group."""
        module = name.replace("-", "_")
        command = getattr(import_module(f"millpond.cli.commands.{_PACKAGES[name]}.{module}"), module)
        assert isinstance(command, click.Command)
        command.context_settings.setdefault("help_option_names", HELP)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and near:
            raise RequestError(
                "INVALID_REQUEST", f"There is no command {args[0]!r}.", hint=f"Did you mean: {ctx.command_path} {near[0]}?"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        widest = max(map(len, COMMANDS))
        for title, packages in SECTIONS.items():
            with formatter.section(title):
                lines = [(name.ljust(widest), line) for commands in packages.values() for name, line in commands.items()]
                formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()  # its reader has ended (`| head`)
            return 0
        return result

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command and exit; only this shows errors."""
        guard_streams()
        # Without arguments, show the help.
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        # Errors say what log lines would say; only a server writes log lines.
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
        f"This is a bug in Millpond: {type(error).__name__}: {' '.join(str(error).split())}.",
        hint="Run it again with MILLPOND_DEBUG=1 and report the traceback.",
    )


def _fail(error: MillpondError, words: list[str]) -> NoReturn:
    """Write an error to stderr: a line for people, or JSON with --json."""
    if error.context.get("stream") == "stdout":
        drop_output()
    show_error(error, as_json="--json" in words[: words.index("--") if "--" in words else None])
    sys.exit(exit_code(error))


def show_error(error: MillpondError, *, as_json: bool) -> None:
    """An error to stderr, as a line for people or as JSON."""
    shown = type(error)(error.condition, error.message, hint=hint_here(error.hint), **error.context)
    if as_json:
        write_json(error_json(shown), err=True)
    else:
        say(str(shown).replace("\n", " "))
