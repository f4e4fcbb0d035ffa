"""docs/tutorial.md as a reader runs it: its job, commands and Python give the output that the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from inputs.typed_page import matches, run_page

pytestmark = pytest.mark.long


@pytest.mark.spark
def test_a_reader_sees_what_stands_in_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    for _, command, output, came in run_page("tutorial.md", tmp_path):
        assert matches(output, came), f"{command}\nis to write\n{output}\nand writes\n{came}"


@pytest.mark.parametrize(
    ("output", "came", "same"),
    [
        ("batch 2 · committed 3.1 s ago", "batch 2 · committed 21.5 s ago", True),
        ("batch 2 · committed 3.1 s ago", "batch 3 · committed 3.1 s ago", False),
        ('{"a":1,…}', '{"a":1,"b":2}', True),
        ("12:01", "03:59", True),
        ("2026-03-01T12:01:00Z", "2026-03-01T12:02:00Z", False),
        ("2026-03-01 12:01", "2026-03-01 12:02", False),
        ("12 rows", "13 rows", False),
        ("", "more", False),
    ],
)
def test_only_times_and_what_is_left_out_may_differ(output: str, came: str, same: bool) -> None:
    assert matches(output, came) == same
