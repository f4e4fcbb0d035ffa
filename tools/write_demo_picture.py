"""Draws what a command wrote as a terminal, light and dark, to docs/pictures/demo.svg.

    millpond demo --once --rows 9000 | python tools/write_demo_picture.py "millpond demo --once --rows 9000"

Lines that only say when something was seen are left out.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

TARGET = Path(__file__).parents[1] / "docs" / "pictures" / "demo.svg"
_LINE, _CHARACTER, _TOP, _LEFT = 19, 7.6, 58, 20
_STYLE = """<style>
text { font: 12.5px "DejaVu Sans Mono", Consolas, monospace; fill: #1f2933 }
.head { fill: #2f8f6b }
.page { fill: #ffffff; stroke: #d9e2ec }
.dot { fill: #bcccdc }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb }
.head { fill: #4fb58d }
.page { fill: #1b2430; stroke: #334e68 }
.dot { fill: #486581 }
}
</style>"""


def draw(command: str, written: str) -> str:
    """A terminal with a command and what it wrote."""
    lines = [line.rstrip() for line in written.splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line)]
    width = round(2 * _LEFT + _CHARACTER * max(map(len, lines)))
    height = _TOP + _LINE * (len(lines) + 1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>What the demo shows</title>",
        _STYLE,
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(f'<circle class="dot" cx="{x}" cy="20" r="5"/>' for x in (24, 42, 60)),
        _text(_TOP, f"$ {command}", "head"),
        *(_text(_TOP + _LINE * n, line, "head" if line.startswith(("table ", "page ")) else "") for n, line in enumerate(lines, 1)),
        "</svg>\n",
    ]
    return "\n".join(out)


def _text(y: int, text: str, kind: str) -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{_LEFT}" y="{y}"{marked} xml:space="preserve">{escape(text, quote=False)}</text>'


if __name__ == "__main__":
    TARGET.write_text(draw(sys.argv[1], sys.stdin.read()), encoding="utf-8")
