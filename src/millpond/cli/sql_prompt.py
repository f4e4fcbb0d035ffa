"""The prompt of `millpond sql`: statements end with `;`, commands begin with a dot."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any

from millpond.cli.output import write_grid, write_sql
from millpond.cli.sql_text import Completer, split
from millpond.cli.terminal import say
from millpond.errors import MillpondError
from millpond.settings import home
from millpond.tables.pond import Pond
from millpond.wire.rows import typed_columns

if TYPE_CHECKING:
    from millpond.cli.place import AnyPond

_HELP = """.tables            list the tables
.describe TABLE    show its columns
.watch STATEMENT;  answer it again whenever a batch is committed, until Ctrl-C
.help              this list
.quit              end, as Ctrl-D"""
_HISTORY_LINES = 2000
_LOOK_SECONDS, _ASK_SECONDS = 0.2, 1.0


def run_prompt(pond: AnyPond, stdin: IO[str], how: dict[str, Any], *, as_json: bool) -> None:
    """Answer statements until the input ends; an error of one doesn't end it."""
    with _editing(pond) if stdin.isatty() else nullcontext():
        for statement in _statements(stdin):
            try:
                if not _command(pond, statement, how, as_json=as_json):
                    return
            except MillpondError as error:
                say(str(error))
            except KeyboardInterrupt:
                say("interrupted")


def _statements(stdin: IO[str]) -> Iterator[str]:
    """Statements and commands as they end; what has no `;` when the input ends is one, too."""
    rest = ""
    while True:
        try:
            if stdin.isatty():
                line = input("    ...> " if rest else "millpond> ")
            else:
                read = stdin.readline()
                if not read:
                    raise EOFError
                line = read.rstrip("\n")
        except EOFError:
            if rest:
                yield rest
            return
        except KeyboardInterrupt:
            rest = ""
            say("")
            continue
        if not rest and line.lstrip().startswith(".") and not line.lstrip().startswith(".watch"):
            yield line.strip().rstrip(";").strip()
            continue
        ended, rest = split(f"{rest}\n{line}")
        yield from ended


def _command(pond: AnyPond, text: str, how: dict[str, Any], *, as_json: bool) -> bool:
    """Do one thing; false if it ends the prompt."""
    word, _, rest = text.partition(" ")
    if word in (".quit", ".exit"):
        return False
    if word == ".help":
        say(_HELP)
    elif word == ".tables":
        write_grid(["table", "job"], ([name, pond[name].job] for name in pond.tables()))
    elif word == ".describe":
        definition = pond[rest.strip()].definition
        keys = {column.name for column in definition.key}
        columns = typed_columns(definition)
        write_grid(["column", "type", "key"], ([n, str(t), "key" if n in keys else ""] for n, t in columns))
    elif word == ".watch":
        _watch(pond, rest, how, as_json=as_json)
    elif word.startswith("."):
        say(f"There is no command {word}; .help lists them.")
    elif text:
        write_sql(pond.sql(text, **how), as_json=as_json)
    return True


def _watch(pond: AnyPond, statement: str, how: dict[str, Any], *, as_json: bool) -> None:
    with suppress(KeyboardInterrupt):
        shown: dict[str, int] | None = None
        while True:
            answer = pond.sql(statement, **how)
            batches = {cut.job: int(cut.position.batch) for cut in answer.cuts}
            if batches != shown:
                write_sql(answer, as_json=as_json)
                sys.stdout.flush()
                shown = batches
            if isinstance(pond, Pond):
                while all(_newest(pond, job) == batch for job, batch in batches.items()):
                    time.sleep(_LOOK_SECONDS)
            else:
                time.sleep(_ASK_SECONDS)


def _newest(pond: Pond, job: str) -> int | None:
    """The newest batch of a job that can be read; None if there is none."""
    try:
        with pond.cut(job) as cut:
            return cut.batch
    except MillpondError:
        return None


@contextmanager
def _editing(pond: AnyPond) -> Iterator[None]:
    """Within this context lines are edited, names completed, and statements remembered for the next prompt.

    A Python without readline has none of it.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    file = home() / "sql_history"
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer_delims(" \t\n,()=<>")
    completer, found = Completer(pond), list[str]()

    def complete(_word: str, number: int) -> str | None:
        nonlocal found
        if number == 0:
            found = completer.complete(readline.get_line_buffer()[: readline.get_endidx()], readline.get_begidx())
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    try:
        yield
    finally:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
