"""A user's Python file, from which a command takes functions by name.

What stands under `__name__ == "__main__"` isn't run.  The file may start no query while it is
loaded: that would go on with the job's own checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from millpond.errors import MillpondError, RequestError, SetupError, importing_pyspark


def load_program(path: str | Path) -> ModuleType:
    """Run a Python file as a module.

    It may import the files beside it.  Spark's workers get its functions and classes as they are:
    they can't import it.

    Raises:  FILE_MISSING; INVALID_REQUEST if it raises or starts a query; PYSPARK_MISSING.
    """
    with importing_pyspark():
        from pyspark import cloudpickle
    file = Path(path).resolve()
    if not file.is_file():
        raise missing_program(path)
    name = f"_millpond_program_{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise RequestError("INVALID_REQUEST", f"{path} isn't a Python file.", hint="Name a file that ends in .py.", path=str(path))
    module = module_from_spec(spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    with _without_starts(str(path)):
        call_program(f"{path}", spec.loader.exec_module, module)
    cloudpickle.register_pickle_by_value(module)
    return module


def missing_program(path: str | Path) -> SetupError:
    """The error of a program that isn't there."""
    return SetupError("FILE_MISSING", f"There is no file {path}.", hint="Name the Python file that defines the query.")


def function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function of a program.

    Raises:  INVALID_REQUEST if the program has no function of that name.
    """
    function = getattr(module, name, None)
    if not callable(function):
        raise RequestError(
            "INVALID_REQUEST",
            f"{module.__file__} has no function {name!r}.",
            hint=f"Define it in that file: def {name}(…).",
            path=module.__file__,
        )
    return function  # type: ignore[no-any-return]


def call_program(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function.

    what:    how an error names the call
    Raises:  INVALID_REQUEST if it raises.
    """
    try:
        return function(*arguments)
    except MillpondError:
        raise
    except Exception as broken:
        reason = " ".join(str(broken).split())
        raise RequestError(
            "INVALID_REQUEST", f"{what} ends with {type(broken).__name__}: {reason:.500}", hint="Mend it, and try again."
        ) from broken


@contextmanager
def _without_starts(path: str) -> Iterator[None]:
    """Refuse to start a query."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start

    def refuse(*_: object, **__: object) -> Any:
        raise RequestError(
            "INVALID_REQUEST", f"{path} starts a query when it is loaded.", hint="Start it below: if __name__ == '__main__'."
        )

    DataStreamWriter.start = refuse
    try:
        yield
    finally:
        DataStreamWriter.start = start
