"""The site's reference has every public name, each with a description."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import millpond

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
NAMED = re.findall(r"^::: (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _members(kind: type) -> dict[str, Any]:
    """Public members of Millpond's own classes, inherited ones included."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("millpond")]
    return {name: value for base in ours for name, value in vars(base).items() if not name.startswith("_")}


def _fields(kind: type) -> list[str]:
    """Public fields: of structs and dataclasses, slots, and annotated ones."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("millpond")]
    names = {name for base in ours for part in ("__annotations__", "__slots__") for name in vars(base).get(part, ())}
    return sorted(name for name in names if not name.startswith("_"))


def test_every_public_name_stands_in_the_reference_once() -> None:
    assert sorted(path for path in NAMED if path.count(".") == 1) == sorted(f"millpond.{name}" for name in millpond.__all__)
    assert len(NAMED) == len(set(NAMED))


@pytest.mark.parametrize("path", NAMED)
def test_what_stands_in_the_reference_says_what_it_is(path: str) -> None:
    found = _named(path)
    assert vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__, path
    if not inspect.isclass(found):
        return
    fields = _fields(found)
    methods = {name: value for name, value in _members(found).items() if name not in fields}
    assert [name for name, value in methods.items() if not (inspect.getdoc(value) or "").strip()] == []
    text = " ".join(inspect.getdoc(base) or "" for base in found.__mro__ if base.__module__.startswith("millpond"))
    assert [name for name in fields if not re.search(rf"\b{name}\b", text)] == []
