"""A user's Python file, from which a command takes functions by name."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from millpond.errors import MillpondError, RequestError, SetupError

_MODULE = "_millpond_program_"


def import_program(path: Path) -> ModuleType:
    """Run a file as a module: what stands under `__name__ == "__main__"` isn't run.

    Raises:  FILE_MISSING; INVALID_REQUEST if it raises.
    """
    if not path.is_file():
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint="Name a Python file.")
    name = f"{_MODULE}{uuid.uuid4().hex}"
    described = importlib.util.spec_from_file_location(name, path)
    if described is None or described.loader is None:
        raise wrong_program(f"{path} isn't a Python file", "Name a Python file.")
    module = importlib.util.module_from_spec(described)
    sys.modules[name] = module
    try:
        call_program(str(path), described.loader.exec_module, module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def importable(path: Path) -> Iterator[None]:
    """Modules beside the file can be imported, as if Python ran the file.

    They are forgotten afterwards: those of the old code may have the same names as those of the new.
    """
    folder, before = path.resolve().parent, set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and not name.startswith(_MODULE) and Path(file).is_relative_to(folder):
                del sys.modules[name]


def function_of(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    """A function of a program.

    Raises:  INVALID_REQUEST if the program has no function of that name.
    """
    function = getattr(module, name, None)
    if not callable(function):
        raise wrong_program(f"{path} has no function {name!r}", "Define it in that file, or name another function.")
    return function  # type: ignore[no-any-return]


def call_program(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function.

    what:    how an error names the call
    Raises:  INVALID_REQUEST if it raises.
    """
    try:
        return function(*arguments)
    except (MillpondError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise wrong_program(f"{what} ends with {type(error).__name__}: {error!s:.300}", "Mend it, and try again.") from error


def wrong_program(what: str, hint: str) -> RequestError:
    """The error of a program that can't be used."""
    return RequestError("INVALID_REQUEST", f"{what}.", hint=hint)
