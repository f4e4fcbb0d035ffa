"""The manual names everything there is: conditions, routes, commands, options."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from millpond.checkpoint.operators import SHORT_NAMES
from millpond.cli import main
from millpond.cli.group import COMMANDS
from millpond.errors import CONDITIONS
from millpond.serve.app import ROUTES
from millpond.settings import ObjectStoreSettings, ReplicaSettings, ServeSettings
from millpond.storage.bucket import SCHEMES

DOCS = Path(__file__).parents[2] / "docs"


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_condition_stands_in_the_manual_with_its_status_and_exit_code() -> None:
    written = {row[0].strip("`"): (int(row[1]), int(row[2])) for row in _rows(_page("errors.md")) if row[0].startswith("`")}
    assert written == {name: (c.http_status, c.exit_code) for name, c in CONDITIONS.items()}


def test_every_exit_code_stands_in_the_manual() -> None:
    written = {int(row[0]) for row in _rows(_page("cli.md")) if row[0].isdigit()}
    assert written == {0, 1, 130} | {c.exit_code for c in CONDITIONS.values()}


def test_every_route_stands_in_the_manual_and_no_other() -> None:
    written = [row[0].strip("`") for row in _rows(_page("http.md")) if row[0].startswith(("`GET", "`POST"))]
    assert written == [f"{r.method} {r.path}" for r in ROUTES]


def test_every_command_stands_in_the_manual_and_no_other() -> None:
    written = {row[0].strip("`").split()[1] for row in _rows(_page("cli.md")) if row[0].startswith("`millpond")}
    assert written == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_stands_in_the_manual(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [text for p in command.params if isinstance(p, click.Option) for text in p.opts if text.startswith("--")]
    page = _page("cli.md")
    assert [text for text in options if f"`{text}`" not in page] == []


def test_the_limits_in_the_manual_are_those_of_the_server() -> None:
    settings, page = ServeSettings(), _page("http.md")
    for number in (settings.limit_rows, settings.max_rows, settings.max_keys, settings.max_body_bytes, settings.port):
        assert re.search(rf"\b{number}\b", page), number


def test_every_operator_stands_in_the_manual_under_the_word_of_its_tables() -> None:
    rows = _rows(_page("operators.md"))
    written = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0].rpartition("(")[2])}
    assert {name: f"`job.{word}_0" in written.get(name, "") for name, word in SHORT_NAMES.items()} == dict.fromkeys(
        SHORT_NAMES, True
    )


def test_what_the_manual_says_of_object_stores_is_what_the_settings_are() -> None:
    store, replica, page = ObjectStoreSettings(), ReplicaSettings(), " ".join(_page("storage.md").split())
    assert all(f"{scheme}://" in page for scheme in SCHEMES)
    assert f"at least {replica.remote_poll_seconds:g} and at most {replica.remote_idle_poll_seconds:g} seconds" in page
    assert replica.remote_patience == 0.1
    assert "a tenth of the time since the last commit" in page
    assert f"{replica.remote_reads} at a time" in page
    assert f"up to {replica.remote_lag_seconds:g} seconds, before the replica is built again" in page
    assert f"After {replica.remote_silence_seconds:g} seconds without a successful poll" in page
    assert f"hears nothing for {store.request_seconds:g} seconds" in page
    assert (store.tries, "tried five times in all" in page) == (5, True)
    assert (replica.remote_heartbeat_seconds, "heartbeats, every five seconds" in page) == (5.0, True)
    assert (replica.remote_catalogue_seconds, "the catalogue, every half minute" in page) == (30.0, True)


def test_every_event_of_the_log_stands_in_the_manual_and_no_other() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "src").rglob("*.py"))
    events = set(re.findall(r'\blog\.(?:debug|info|warning|error)\(\s*"([a-z_.]+)"', source))
    for name in re.findall(r'Trouble\((?:log|EventLog\(__name__\)), "([a-z]+)"', source):
        events |= {f"{name}.failed", f"{name}.recovered"}
    section = _page("serving.md").partition("## Logs")[2].partition("\n## ")[0]
    listed = {name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`([a-z_.]+)`", row)}
    assert {"follower.failed", "journal.failed", "catalogue.failed", "request"} <= events
    assert events - {"follower.traceback"} == listed - {"follower.waits"}


def test_every_command_that_waits_says_so_by_the_same_option() -> None:
    helps = {}
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        waits = [p for p in command.params if isinstance(p, click.Option) and any(text.startswith("--wait") for text in p.opts)]
        assert [p.opts for p in waits] in ([], [["--wait"]]), name
        if waits:
            helps[name] = waits[0].help
    assert {"tables", "describe", "get", "scan", "windows", "count", "history", "event", "watch", "changes"} <= helps.keys()
    assert len(set(helps.values())) == 1
