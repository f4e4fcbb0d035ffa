"""The manual's code, for tests that run it as it stands."""

from __future__ import annotations

import re
from pathlib import Path

_DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_below(page: str, heading: str) -> list[str]:
    """The blocks of Python between this heading of a page and the next one."""
    text = "\n" + (_DOCS / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no {heading}"
    return _BLOCK.findall(re.split(r"^##+ ", rest, maxsplit=1, flags=re.MULTILINE)[0])
