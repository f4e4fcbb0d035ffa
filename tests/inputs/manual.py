"""The manual's code, for tests that run it unchanged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_ANY_BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_below(page: str, heading: str) -> list[str]:
    """The blocks of Python between this heading of a page and the next one."""
    text = "\n" + (DOCS / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no {heading}"
    return _BLOCK.findall(re.split(r"^##+ ", rest, maxsplit=1, flags=re.MULTILINE)[0])


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: its language, its title or "", its text."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """All blocks of code of a page, in order."""
    return [Block(*found) for found in _ANY_BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]
