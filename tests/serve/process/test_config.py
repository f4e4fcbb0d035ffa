"""A file may have the options of the command line, and nothing else."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from millpond.cli import main
from millpond.cli.config import read_options
from millpond.errors import MillpondError
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint

PLACES = {"places": "ponds"}
MANUAL = Path(__file__).parents[3] / "docs" / "serving.md"

command = main.named("serve")


def _file(folder: Path, text: str) -> Path:
    path = folder / "millpond.toml"
    path.write_text(text)
    return path


def _example() -> str:
    found = re.search(r"```toml\n(.+?)```", MANUAL.read_text(), re.DOTALL)
    assert found
    return found[1]


def test_the_example_of_the_manual_is_what_the_command_line_would_be(tmp_path: Path) -> None:
    given = read_options(command, _file(tmp_path, _example()), PLACES)
    words = ["web=/data/web/pond", "shop=s3://my-bucket/shop", "--port=8642", "--host=0.0.0.0", "--workers=2"]
    words += [f"--tokens={tmp_path / 'readers.json'}", "--log-format=json", "--history=page_views=24h"]
    words += ["--history=web/page_minutes=100"]
    wanted = command.make_context("serve", words).params
    assert command.make_context("serve", [], default_map=given).params == wanted


def test_every_option_can_stand_in_a_file_and_means_the_same(tmp_path: Path) -> None:
    for parameter in command.params:
        if not isinstance(parameter, click.Option) or parameter.name in ("config", "help"):
            continue
        long = max(parameter.opts, key=len).removeprefix("--")
        value: Any = parameter.get_default(command.make_context("serve", ["x"]))
        if parameter.multiple:
            value = ["a=24h"]
        elif parameter.is_flag:
            value = True
        elif value is None or "Sentinel" in type(value).__name__:
            value = 7 if "integer" in parameter.type.name else str(tmp_path / "x")
        text = f"{long} = {json.dumps(value)}\n"
        assert tomllib.loads(text)
        words = [f"--{long}"] if parameter.is_flag else [f"--{long}={v}" for v in (value if parameter.multiple else [value])]
        by_words = command.make_context("serve", ["x", *words]).params
        for name in (text, text.replace(long, long.replace("-", "_"), 1)):
            by_file = read_options(command, _file(tmp_path, name), PLACES)
            assert command.make_context("serve", ["x"], default_map=by_file).params == by_words, long


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prot = 1", "Did you mean port?"),
        ("config = 'x'", "isn't an option"),
        ("port = '1'", "a whole number"),
        ("port = true", "a whole number"),
        ("port = 1.5", "a whole number"),
        ("port = 99999", "99999"),
        ("max-seconds = 'x'", "a number"),
        ("log-level = 'loud'", "loud"),
        ("host = 1", "a text"),
        ("log-requests = 1", "true or"),
        ("history = 'a=1'", "list of texts"),
        ("history = [1]", "list of texts"),
        ("[history]\na = 1.5", "list of texts"),
        ("[port]\na = 1", "a whole number"),
        ("port 1", "can't be read"),
        ("port = 1\nport = 2", "can't be read"),
        ("\x00", "can't be read"),
    ],
)
def test_what_doesnt_fit_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(MillpondError) as refused:
        read_options(command, _file(tmp_path, text), PLACES)
    assert refused.value.condition == "INVALID_CONFIG"
    assert reason in str(refused.value)
    assert "millpond.toml" in refused.value.message


def test_a_file_that_isnt_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MillpondError) as refused:
        command.make_context("serve", ["--config", str(tmp_path / "none.toml")])
    assert refused.value.condition == "FILE_MISSING"
    assert "serve" in main.list_commands(click.Context(main))


def test_a_server_is_started_by_its_file_and_the_command_line_goes_before_it(serve: Any, tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "data" / "job")
    job.plan([("a", 1)], snapshot=False)
    job.commit()
    text = 'max-rows = 7\nmax-seconds = 3\n[ponds]\nx = "data/job"\n[history]\n"x/job.aggregate_0" = "24h"\n'
    path = _file(tmp_path, text)
    with serve(f"--config={path}", "--max-rows", "5") as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        assert client.get("/tables/x%2Fjob.aggregate_0/changes").status_code == 200
        refused = client.get("/tables/job.aggregate_0/rows?_limit=6").json()["error"]
        assert (refused["condition"], "5" in refused["hint"]) == ("INVALID_LIMIT", True)
