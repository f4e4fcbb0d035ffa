"""Statements that programs send to PostgreSQL, recorded in files.

A statement begins with `-- name: …`.  After it may come `-- note: …` and `-- parameters: [JSON]`; the
rest, up to the next name, is its text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INT8, _VARCHAR, _TIMESTAMPTZ = 20, 1043, 1184


@dataclass(frozen=True, slots=True)
class Recorded:
    """One statement; `{…}` in its text and its parameters stands for a name of the test's.

    parameters:  of the types that pgjdbc gives them: a whole number is int8, a text varchar, and a
                 text that begins with `timestamptz ` that
    """

    text: str
    parameters: tuple[Any, ...] = ()

    def ask(self, pg: Any, **names: str) -> Any:
        """The answer of a server, by libpq: as pgjdbc sends it, in the extended protocol."""
        text, values, types = self.text_of(**names), [], []
        for value in self.parameters:
            shown = str(value)
            for name, given in names.items():
                shown = shown.replace(f"{{{name}}}", given)
            zoned = shown.removeprefix("timestamptz ")
            types.append(_INT8 if isinstance(value, int) else _VARCHAR if zoned == shown else _TIMESTAMPTZ)
            values.append(zoned.encode())
        return pg.exec_params(text.encode(), values, types)

    def text_of(self, **names: str) -> str:
        """The text with these names in it."""
        text = self.text
        for name, given in names.items():
            text = text.replace(f"{{{name}}}", given)
        return text


def recorded(path: Path) -> dict[str, Recorded]:
    """The statements of a file by their names."""
    found = {}
    for part in re.split(r"^-- name: ", path.read_text(), flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        parameters: list[Any] = []
        while (line := re.match(r"-- (note|parameters): (.*)\n", text)) is not None:
            text = text[line.end() :]
            if line[1] == "parameters":
                parameters = json.loads(line[2])
        found[name] = Recorded(text.rstrip("\n"), tuple(parameters))
    return found
