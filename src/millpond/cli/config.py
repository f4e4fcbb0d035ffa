"""The options of a command from a TOML file: `--config FILE`.

Names in the file are the command's options, with hyphens or underscores.  An option that may be
repeated is a list of texts, or a table if its words are NAME=TEXT.  Options on the command line
replace those of the file.  Paths in the file are relative to its folder, so that they mean the same
wherever the command is called.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from millpond.errors import RequestError, SetupError
from millpond.storage.names import scheme_of

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
}
# Options that only make sense on the command line.
_NOT_IN_A_FILE = frozenset({"config", "help"})


def config_option(**arguments: str) -> Callable[[Any], Any]:
    """The option `--config` for a command.

    arguments:  name of an argument -> its name in the file
    """

    def read(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
        if path is not None:
            ctx.default_map = {**(ctx.default_map or {}), **read_options(ctx.command, path, arguments)}

    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=read,
        help="A TOML file with these options; an option on the command line replaces the file's.",
    )


def read_options(command: click.Command, path: Path, arguments: Mapping[str, str]) -> dict[str, Any]:
    """The values of a command's parameters in a file, by name.

    Raises:  FILE_MISSING; INVALID_CONFIG if it isn't TOML, or has an unknown name or a wrong value.
    """
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint="Give a TOML file with --config.") from None
    except (OSError, ValueError) as broken:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise _invalid(path, f"can't be read: {broken}", "Correct it; docs/serving.md has an example.") from None
    known = _parameters(command, arguments)
    out: dict[str, Any] = {}
    for name, value in data.items():
        parameter = known.get(name.replace("_", "-"))
        if parameter is None:
            near = difflib.get_close_matches(name.replace("_", "-"), known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Its names may be: {', '.join(sorted(known))}."
            raise _invalid(path, f"has {name!r}, which isn't an option of {command.name}", hint)
        assert parameter.name is not None
        out[parameter.name] = _value(path, name, value, parameter)
    return out


def _parameters(command: click.Command, arguments: Mapping[str, str]) -> dict[str, click.Parameter]:
    known: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            long = [word.removeprefix("--") for word in parameter.opts if word.startswith("--")]
            known |= {name: parameter for name in long if name not in _NOT_IN_A_FILE}
        elif parameter.name in arguments:
            known[arguments[parameter.name]] = parameter
    return known


def _value(path: Path, name: str, value: Any, parameter: click.Parameter) -> Any:
    """A value of the file in the form of the command line."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise _invalid(path, f"has {name} = {value!r:.80}", f"Write {name} = true or {name} = false.")
        return value
    if parameter.multiple or parameter.nargs == -1:
        return _words(path, name, value, is_place=parameter.nargs == -1)
    kind = parameter.type
    wanted, what = _KINDS.get(kind.name.removesuffix(" range"), ((str,), "a text"))
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise _invalid(path, f"has {name} = {value!r:.80}, which isn't {what}", f"Give {what}.")
    if isinstance(kind, click.Path):
        value = _placed(path, str(value))
    try:
        kind.convert(value, parameter, None)
    except click.BadParameter as wrong:
        raise _invalid(path, f"has {name} = {value!r:.80}: {wrong.message}", f"Look at the help of --{name}.") from None
    return value


def _words(path: Path, name: str, value: Any, *, is_place: bool) -> list[str]:
    """The words of an option that may be repeated, from a list, or from a table of NAME = TEXT."""
    if isinstance(value, dict):
        if all(isinstance(text, str | int) and not isinstance(text, bool) for text in value.values()):
            return [f"{key}={_placed(path, str(text)) if is_place else text}" for key, text in value.items()]
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        return [_placed(path, word) if is_place else word for word in value]
    raise _invalid(path, f"has {name} = {value!r:.80}", f'Write a list of texts, {name} = ["…"], or a table of them, [{name}].')


def _placed(path: Path, place: str) -> str:
    """A path relative to the file's folder; a URI stays as it is."""
    return place if scheme_of(place) else str(path.absolute().parent / Path(place).expanduser())


def _invalid(path: Path, what: str, hint: str) -> RequestError:
    return RequestError("INVALID_CONFIG", f"{path} {what}.", hint=hint, path=str(path))
