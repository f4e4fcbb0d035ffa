"""Extension of griffe: docstrings as Markdown, for the site's reference.

Arguments, shapes and errors stand in docstrings as `name:  text`, aligned, with further lines indented.  Here they become a list.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

_ENTRY = re.compile(r"^([A-Za-z_][\w, ]*|`[^`]+`): +(?=\S)")
_ALWAYS = {"Raises", "Shape", "Units", "Source"}


class Docstrings(Extension):
    """Registered in mkdocs.yml."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring = Docstring(as_markdown(obj.docstring.value), parent=obj, lineno=obj.docstring.lineno)


def as_markdown(text: str) -> str:
    """A docstring with its entries as a list: after a blank line, after another entry, or where its name is one of `_ALWAYS`."""
    written: list[str] = []
    inside = False
    for line in text.expandtabs().splitlines():
        entry = _ENTRY.match(line)
        if entry and (inside or entry[1] in _ALWAYS or not written or not written[-1].strip()):
            if not inside and written and written[-1].strip():
                written.append("")
            written.append(f"- **{entry[1]}**: {line[entry.end() :]}")
            inside = True
        elif inside and line.startswith(" "):
            written.append("  " + line.strip())
        else:
            inside = False
            written.append(line)
    return "\n".join(written)
