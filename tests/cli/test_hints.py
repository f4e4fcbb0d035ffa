"""On the command line, hints name commands and options, also for errors of other doors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from millpond.cli.hints import hint_here

SOURCE = Path(__file__).parents[2] / "src" / "millpond"
# Words of Python and of HTTP.
ELSEWHERE = re.compile(
    r"\b(pond|table)(\.(?!json)[a-z]|\[)|\bserver\.[a-z]|millpond\.(open|Retention)|range\(|find_event|wait_seconds"
    r"|`(get|range)`|`start` and|[ (]_[a-z]+=|GET /|POST |Authorization:"
)
# No command meets these: cuts, aligned tables, a server's routes and operations, keys in URLs, readiness and metrics.
NOT_HERE = re.compile(
    r"cut\b|pond\.cut|others by time|GET / lists|^GET /jobs lists|at GET /savepoints|_max_behind_seconds|route|_batch=41"
    r"|(asked for|Ask) by POST"
)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join("7" if isinstance(part, ast.FormattedValue) else _text(part) for part in node.values)
    return " ".join(_text(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


@cache
def _hints() -> tuple[tuple[str, str], ...]:
    return tuple(_read_hints())


def _read_hints() -> Iterator[tuple[str, str]]:
    for path in SOURCE.rglob("*.py"):
        if path.parent.name in ("spark", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield from ((path.name, _text(k.value)) for k in node.keywords if k.arg == "hint")
            elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "hint" for t in node.targets):
                yield path.name, _text(node.value)
            elif isinstance(node, ast.FunctionDef):
                names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]][-len(node.args.defaults) or None :]
                yield from ((path.name, _text(d)) for name, d in zip(names, node.args.defaults, strict=False) if name == "hint")


def test_no_hint_on_the_command_line_names_another_door() -> None:
    hints = _hints()
    assert len(hints) > 100
    foreign = [(where, hint) for where, hint in hints if ELSEWHERE.search(hint_here(hint)) and not NOT_HERE.search(hint)]
    assert foreign == []


def test_every_translation_is_of_a_hint_that_there_is() -> None:
    from millpond.cli.hints import _HERE

    hints = [hint for _, hint in _hints()]
    assert [there for there, _ in _HERE if not any(re.search(there, hint) for hint in hints)] == []
