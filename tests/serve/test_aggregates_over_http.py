"""The versions of aggregates over HTTP: what `millpond versions list` shows, of the tables that a token opens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.serve.access.tokens import add_token
from millpond.tables.versions.cut_over import plan_cut_over
from millpond.versions import begin_name
from suite.waiting import wait_until
from tables.versions.jobs import WrittenVersion


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """Versions 1 and 2 of `views`: 1 is current and three batches ahead."""
    jobs = [WrittenVersion(tmp_path / "pond", version) for version in (1, 2)]
    for version in (1, 2):
        begin_name(tmp_path / "pond", "views", version)
    for _ in range(3):
        jobs[0].run_batch()
    return tmp_path / "pond"


def listed(pond: Path) -> list[dict[str, Any]]:
    """What the command line says."""
    ran = CliRunner().invoke(main, ["versions", "list", str(pond), "--json"])
    assert ran.exit_code == 0, ran.output
    return [json.loads(line) for line in ran.stdout.splitlines()]


def without_error(versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: fact for name, fact in each.items() if name != "error"} for each in versions]


def test_the_list_is_that_of_the_command_line(pond: Path, serve: Any) -> None:
    with serve(pond) as (url, _), millpond.connect(url) as remote:
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, "the server's yes at /readyz")
        for current, behind in ((1, [0, 30]), (2, [0, 0])):
            every = httpx.get(f"{url}/aggregates", timeout=60).raise_for_status().json()
            assert (without_error(every["versions"]), every["unread"]) == (listed(pond), [])
            assert [v["is_current"] for v in every["versions"]] == [current == 1, current == 2]
            assert [v["behind"]["records"] for v in every["versions"]] == behind
            assert httpx.get(f"{url}/aggregates/views", timeout=60).json() == every
            assert [(v.version, v.batch, v.is_current) for v in remote.versions()] == [(1, 3, current == 1), (2, 0, current == 2)]
            assert remote.versions("views") == remote.versions()
            tables = {t["table"]: t["meant_by"] for t in httpx.get(f"{url}/tables", timeout=60).json()["tables"]}
            assert tables == {"views": None, "views.v1": None, "views.v2": None} | {f"views.v{current}": "views"}
            assert httpx.get(f"{url}/tables/views.v{current}", timeout=60).json()["meant_by"] == "views"
            plan_cut_over(pond, "views", to=2, force=True).run()
        with pytest.raises(MillpondError) as refused:
            remote.versions("other")
        assert refused.value.condition == "UNKNOWN_VERSION"

        async def asked() -> list[int]:
            async with millpond.connect_async(url) as server:
                return [version.version for version in await server.versions()]

        assert asyncio.run(asked()) == [1, 2]


def test_a_name_that_cant_be_read_doesnt_hide_the_others(pond: Path, serve: Any) -> None:
    (pond / "versions/broken.json").write_text("{")
    with serve(pond) as (url, _):
        every = httpx.get(f"{url}/aggregates", timeout=60).raise_for_status().json()
        assert [v["version"] for v in every["versions"]] == [1, 2]
        assert [(u["table"], u["error"]["condition"]) for u in every["unread"]] == [("broken", "CORRUPT_FILE")]
        answer = httpx.get(f"{url}/aggregates/broken", timeout=60)
        assert answer.json()["error"]["condition"] == "CORRUPT_FILE"
        assert answer.status_code == 500


def test_a_token_shows_the_versions_of_its_tables(pond: Path, serve: Any, tmp_path: Path) -> None:
    file, opened = tmp_path / "tokens.json", {"name": "views", "second": "views.v2", "all": "*", "other": "else"}
    tokens = {name: add_token(file, name, tables=[table]) for name, table in opened.items()}
    with serve(pond, "--tokens", str(file)) as (url, _):
        shown = {}
        for name, token in tokens.items():
            headers = {"authorization": f"Bearer {token}"}
            every = httpx.get(f"{url}/aggregates", headers=headers, timeout=60).raise_for_status().json()
            shown[name] = [v["version"] for v in every["versions"]]
            assert httpx.get(f"{url}/aggregates/views", headers=headers, timeout=60).status_code == (
                200 if name in ("name", "all") else 403
            )
        assert shown == {"name": [1], "second": [2], "all": [1, 2], "other": []}
        assert httpx.get(f"{url}/aggregates", timeout=60).status_code == 401
