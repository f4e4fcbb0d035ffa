"""Each thing has one word.  The glossary has it once, and prose uses it and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from millpond.cli import main
from millpond.cli.group import COMMANDS

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]

# A pattern -> the word to use.  The test skips names of functions and fields, which stand in backticks.
INSTEAD = {
    r"closed rows?|rows? ((that|which) )?(is|are|was|were) (closed|over(?! HTTP))": "expired",
    r"evict(ed|s|ion)?": "expired",
    r"out-?dated rows?|stale rows?|dead rows?": "expired",
    r"pin|pinned (batch|view|read)s?|pins? a (batch|view)": "cut",
    r"mirrors?|standby replicas?": "replica",
    r"bootstrap(s|ped|ping)?|rebuilds? of (a|the) replica": "build",
    r"micro batch(es)?": "batch",
    r"changelogs?(?!\.md)|change-logs?": "change log",
    r"followers? process(es)?|tailers?": "follower",
    r"catch-up lag|replication lag|staleness": "behind or age",
    r"retention period|keep time": "retention",
    r"(is|are|was|were|be|been) told": "an active verb: says, names, shows, knows",
}

# Words that no member may have as its name: they don't say what it is.
NAMELESS = {"told", "_told"}


def _terms() -> list[tuple[str, str]]:
    page = GLOSSARY.read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z][a-zA-Z ]*) \| (.+?) \|$", page, re.MULTILINE)
    return [(term, meaning) for term, meaning in rows if term != "word"]


def _prose(page: str) -> str:
    """A page without its code."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`", "`…`", page)


def _help() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        yield name, command.help or ""
        for option in command.params:
            yield f"{name} --{option.name}", getattr(option, "help", None) or ""


def test_every_term_stands_once_in_order_with_one_sentence() -> None:
    terms = _terms()
    names = [term for term, _ in terms]
    assert len(names) > 30
    assert names == sorted(set(names))
    assert [term for term, meaning in terms if not meaning.endswith(".") or re.search(r"[a-z]\. [A-Z]", meaning)] == []


def test_every_term_is_used() -> None:
    pages = {path: path.read_text(encoding="utf-8").lower() for path in PAGES if path != GLOSSARY}
    code = {path: path.read_text(encoding="utf-8").lower() for path in (ROOT / "src").rglob("*.py")}
    used = "\n".join([*pages.values(), *code.values()])
    assert [term for term, _ in _terms() if not re.search(rf"\b{term.replace(' ', '[ _]')}(s|es)?(\b|_)", used)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_uses_the_words_of_the_glossary(path: Path) -> None:
    text = " ".join(_prose(path.read_text(encoding="utf-8")).split())
    assert _found(text) == []


def test_help_uses_the_words_of_the_glossary() -> None:
    assert [(where, found) for where, text in _help() if (found := _found(" ".join(text.split())))] == []


def test_a_replaced_word_is_found() -> None:
    assert _found("Closed rows were evicted.") == [("Closed rows", "expired"), ("evicted", "expired")]


def _found(text: str) -> list[tuple[str, str]]:
    return [(hit[0], word) for wrong, word in INSTEAD.items() for hit in re.finditer(rf"(?i)\b({wrong})\b", text)]


def test_no_identifier_is_a_word_that_names_nothing() -> None:
    found = []
    for folder in ("src", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if not NAMELESS & {*re.findall(r"\w+", text)}:
                continue
            for node in ast.walk(ast.parse(text)):
                names = {getattr(node, member, None) for member in ("id", "attr", "arg", "name")}
                found += [f"{path.relative_to(ROOT)}:{node.lineno}" for name in names & NAMELESS if hasattr(node, "lineno")]
    assert found == []


def test_docstrings_use_the_words_of_the_glossary() -> None:
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                # Member names and names in JSON aren't prose.
                prose = re.sub(r'"\w+"|\b\w+:', "…", _prose(ast.get_docstring(node) or ""))
                text = " ".join(prose.split())
                where = f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
                found += [(where, hit, word) for hit, word in _found(text)]
    assert found == []
