"""Names that strangers chose never reach a terminal unchanged: a terminal obeys control characters."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.catalogue import create_job
from suite.sizes import a_few
from trust.test_places import checkpoint, say

CLI = Path(__file__).parents[2] / "src/millpond/cli"
EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\x7f"
# rich itself writes these: colours and weights.
OURS = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(*words: str, home: Path) -> str:
    """Everything that a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "MILLPOND_HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "200", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "millpond.cli", *words]
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    written = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            written += os.read(ours, 65536)
        except OSError:
            break  # the other end is closed
    running.wait(60)
    os.close(ours)
    return written.decode()


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """A pond with a job that is well, and others whose names and files are hostile."""
    create_job(tmp_path / "pond", "good")
    checkpoint(tmp_path / "pond/jobs/good/checkpoint", 5)
    say(tmp_path / "pond", "other", f"/nowhere/{EVIL}")
    say(tmp_path / "pond", "third", "checkpoint").write_text(json.dumps({"job": EVIL, "checkpoint": "checkpoint"}))
    bad = tmp_path / "pond/jobs" / EVIL.replace("/", "")
    bad.mkdir()
    (bad / "job.json").write_text(json.dumps({"job": bad.name, "checkpoint": "checkpoint"}))
    checkpoint(bad / "checkpoint", 6)
    (tmp_path / "pond/jobs/good/tables").mkdir()
    (tmp_path / f"pond/jobs/good/tables/{EVIL}.json").write_text(EVIL)
    return tmp_path / "pond"


@pytest.mark.parametrize(
    "words",
    a_few([
        (("tables",),), (("tables", "--json"),), (("inspect",),), (("inspect", "--json"),),
        (("get", EVIL, "k=a"),), (("get", EVIL, "k=a", "--json"),),
        (("scan", f"{EVIL}.aggregate_0"),), (("scan", f"{EVIL}.aggregate_0", "--json"),), (("count", f"{EVIL}.aggregate_0"),),
        (("get", "--cold", EVIL, "k=a"),), (("get", f"{EVIL}.aggregate_0", f"k={EVIL}"),),
    ], 4),
)  # fmt: skip
def test_no_control_character_reaches_a_terminal(pond: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    command, *rest = words
    options = [word for word in rest if word.startswith("--")]
    names = [word for word in rest if not word.startswith("--")]
    written = on_a_terminal(command, *options, str(pond), *names, home=tmp_path / "home")
    assert written.strip()
    left = OURS.sub("", written.replace(EVIL, "EVIL")).replace("\r\n", "\n")
    left = re.sub(r"\r\x1b\[K", "", left)  # the line of progress
    assert "EVIL" not in left
    unseen = {char for char in left if not char.isprintable() and char not in "\n\t"}
    assert not unseen, (unseen, written)
    assert "red" in written  # visible, not left out
    for line in left.splitlines():
        if "--json" in options and line.startswith("{"):
            json.loads(line)


def test_only_one_module_writes() -> None:
    allowed = {"terminal.py"}
    # These draw grids and progress, with texts that went through `visible`.
    drawing = {"grid.py", "output.py", "demo_view.py", "progress.py", "group.py"}
    for path in sorted(CLI.glob("*.py")):
        tree = ast.parse(path.read_text())
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found = {call for call in calls if call in ("print", "click.echo", "sys.stdout.write", "sys.stderr.write", "Console")}
        found |= {call for call in calls if call.endswith("buffer.write")}
        assert not found or path.name in allowed | drawing, (path.name, found)
        assert "click.echo" not in found or path.name in allowed | {"group.py"}, path.name
        assert "print" not in found
