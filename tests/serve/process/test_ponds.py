"""Several ponds behind one server; TLS; the limit on what replicas take."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.serve.access.tokens import add_token
from millpond.serve.kept_options import by_pond, check_names, parse_retention
from millpond.serve.ponds import check_room, name_places
from millpond.settings import Retention, RetentionWords
from servers.serving import wait_until_ready, write_certificate
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few


def _checkpoint(path: Path, value: int) -> Path:
    """A job whose folder is called `path`, with one row: k=a, v=value."""
    job = WrittenCheckpoint(path)
    job.plan([("a", value)], snapshot=False)
    job.commit()
    return job.path


def test_a_name_means_one_table_or_is_refused(serve: Any, tmp_path: Path) -> None:
    one, two = _checkpoint(tmp_path / "one" / "job", 1), _checkpoint(tmp_path / "two" / "job", 2)
    other = _checkpoint(tmp_path / "other", 3)
    with serve(f"x={one}", f"y={two}", str(other)) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        assert [t["table"] for t in client.get("/tables").json()["tables"]] == [
            "other.aggregate_0",
            "x/job.aggregate_0",
            "y/job.aggregate_0",
        ]
        for way in ({}, {"if-none-match": '"none"'}):
            refused = client.get("/tables/job.aggregate_0/rows?k=a", headers=way)
            assert (refused.status_code, refused.json()["error"]["condition"]) == (409, "AMBIGUOUS_TABLE")
            for name, value in (("x%2Fjob.aggregate_0", 1), ("y%2Fjob.aggregate_0", 2), ("other.aggregate_0", 3)):
                answer = client.get(f"/tables/{name}/rows?k=a", headers=way).json()
                assert answer["rows"] == [{"k": "a", "v": value}]
                assert answer["table"] == name.replace("%2F", "/")
        assert client.get("/tables/other%2Fother.aggregate_0/rows?k=a").json()["rows"][0]["v"] == 3
        unknown = client.get("/tables/x%2Fother.aggregate_0/rows?k=a")
        assert unknown.json()["error"]["condition"] == "UNKNOWN_TABLE"
        with millpond.connect(address) as server:
            assert server["y/job.aggregate_0"].get(k="a")["v"] == 2
            assert 'millpond_batch{job="y/job"}' in client.get("/metrics").text


def test_a_token_for_a_name_doesnt_open_a_table_that_it_may_not_mean(serve: Any, tmp_path: Path) -> None:
    one, two = _checkpoint(tmp_path / "one" / "job", 1), _checkpoint(tmp_path / "two" / "job", 2)
    other = _checkpoint(tmp_path / "other", 3)
    file = tmp_path / "readers.json"
    by_pond = {"authorization": f"Bearer {add_token(file, 'pond', tables=['x/*'])}"}
    by_name = {"authorization": f"Bearer {add_token(file, 'name', tables=['job.*', 'other.*'])}"}
    options = ("--tokens", str(file))
    with serve(f"x={one}", f"y={two}", str(other), *options) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        status = {}
        for name in ("x%2Fjob.aggregate_0", "y%2Fjob.aggregate_0", "other.aggregate_0", "other%2Fother.aggregate_0"):
            for title, headers in (("pond", by_pond), ("name", by_name)):
                status[title, name] = client.get(f"/tables/{name}/rows?k=a", headers=headers).status_code
        assert [n for (title, n), s in status.items() if title == "pond" and s == 200] == ["x%2Fjob.aggregate_0"]
        assert [n for (title, n), s in status.items() if title == "name" and s == 200] == [
            "other.aggregate_0",
            "other%2Fother.aggregate_0",
        ]
        assert set(status.values()) == {200, 403}


def test_places_are_named_by_their_folders_or_by_hand(tmp_path: Path) -> None:
    assert name_places(["/a/web", "shop=s3://bucket/x", "/b/c/"]) == {
        "web": "/a/web",
        "shop": "s3://bucket/x",
        "c": "/b/c/",
    }
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert name_places([str(odd)]) == {"a=b": str(odd)}
    with pytest.raises(MillpondError) as refused:
        name_places(["/a/x", "/b/x"])
    assert refused.value.condition == "INVALID_REQUEST"
    assert "OTHER=/b/x" in refused.value.hint


@pytest.mark.long
def test_replicas_that_wouldnt_fit_arent_built(types_pond: Path, tmp_path: Path) -> None:
    needed = check_room([str(types_pond)], 1 << 40)
    assert needed > 4096
    with pytest.raises(MillpondError) as refused:
        check_room([str(types_pond)], 3 * needed - 1)
    assert refused.value.condition == "REPLICA_TOO_LARGE"
    assert refused.value.context["needed_bytes"] == needed
    assert check_room([str(types_pond)], 3 * needed) == needed
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", "--max-bytes", "5000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 6
    assert done.stderr.startswith("[REPLICA_TOO_LARGE]")
    assert list(tmp_path.rglob("data.mdb")) == []


def test_what_is_kept_is_read_from_words() -> None:
    kept = parse_retention(["a=100", "b=24h", "c=forever"], ["a=no", "d=30m", "e=forever"])
    assert {table: words.over(Retention()) for table, words in kept.items()} == {
        "a": Retention(history_batches=100, closed_seconds=0.0),
        "b": Retention(history_batches=None, history_seconds=86_400.0),
        "c": Retention(history_batches=None, history_seconds=None),
        "d": Retention(closed_seconds=1800.0),
        "e": Retention(closed_seconds=None),
    }
    stored = Retention(closed_seconds=None, history_batches=7)
    assert kept["a"].over(stored) == Retention(history_batches=100, closed_seconds=0.0)
    assert kept["b"].over(stored) == Retention(closed_seconds=None, history_batches=None, history_seconds=86_400.0)
    assert kept["d"].over(stored) == Retention(closed_seconds=1800.0, history_batches=7)
    for history, closed in ((["a"], []), (["=1"], []), (["a=soon"], []), ([], ["a="]), ([], ["a=1"])):
        with pytest.raises(MillpondError) as refused:
            parse_retention(history, closed)
        assert refused.value.condition == "INVALID_REQUEST"


@pytest.mark.long
def test_what_is_kept_of_no_table_is_refused_or_told(tmp_path: Path) -> None:
    one, two = _checkpoint(tmp_path / "one" / "job", 1), _checkpoint(tmp_path / "two" / "other", 2)
    places = {"x": str(one), "y": str(two)}
    kept = RetentionWords(history="5")
    names = ("job.aggregate_0", "x/job.aggregate_0", "other.aggregate_0", "y/other.aggregate_0")
    assert check_names(dict.fromkeys(names, kept), places) == []
    for wrong in ("jab.aggregate_0", "y/job.aggregate_0", "z/job.aggregate_0"):
        with pytest.raises(MillpondError) as refused:
            check_names({names[0]: kept, wrong: kept}, places)
        assert (refused.value.condition, refused.value.context["table"]) == ("UNKNOWN_TABLE", wrong)
    assert "job.aggregate_0" in refused.value.hint
    started = tmp_path / "started"
    WrittenCheckpoint(started)
    (started / "offsets").mkdir()
    assert check_names({names[0]: kept, "started.aggregate_0": kept}, {**places, "z": str(started)}) == ["started.aggregate_0"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "pond.json").write_text('{"format": 1}')
    assert check_names({"page_views": kept}, {"z": str(tmp_path / "empty")}) == ["page_views"]
    assert by_pond({"a": kept, "x/b": kept, "x/a": RetentionWords(), "q/c": kept}, ("x", "y")) == {
        "x": {"a": RetentionWords(), "b": kept, "q/c": kept},
        "y": {"a": kept, "q/c": kept},
    }
    for option in ("--history=typo=10", "--keep-closed=typo=no"):
        command = [sys.executable, "-m", "millpond.cli", "serve", str(one), "--port", "0", option]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, "MILLPOND_HOME": str(tmp_path)}
        )
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("[UNKNOWN_TABLE]")


@pytest.mark.long
def test_history_is_kept_of_one_ponds_table(serve: Any, tmp_path: Path) -> None:
    one, two = _checkpoint(tmp_path / "one" / "job", 1), _checkpoint(tmp_path / "two" / "job", 2)
    options = ("--history", "x/job.aggregate_0=10")
    with serve(f"x={one}", f"y={two}", *options) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        answers = [client.get(f"/tables/{pond}%2Fjob.aggregate_0/changes") for pond in ("x", "y")]
        assert [answer.status_code for answer in answers] == [200, 410]


@pytest.mark.long
def test_history_of_a_job_that_has_ended_begins_with_the_server(serve: Any, tmp_path: Path) -> None:
    """The job's replica has no history, and no batch will come that could begin one."""
    place = _checkpoint(tmp_path / "one" / "job", 1)
    with serve(place) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        assert client.get("/tables/job.aggregate_0/changes").status_code == 410
    with serve(place, "--history", "job.aggregate_0=100") as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        answer = client.get("/tables/job.aggregate_0/changes").json()
        assert (answer["changes"], answer["more"]) == ([], False)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path)


@pytest.mark.parametrize("workers", a_few(["1", "2"], 1))
def test_answers_go_over_tls(workers: str, serve: Any, types_pond: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    trust = ssl.create_default_context(cafile=str(cert))
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--workers", workers)
    with serve(types_pond, *options) as (address, _), httpx.Client(base_url=address, timeout=30, verify=trust) as client:
        assert address.startswith("https://")
        wait_until_ready(client)
        with millpond.connect(address, verify=trust) as server:
            assert server["long"].get(k=2**53 - 1)["n"] == 2
        with millpond.connect(address, settings=millpond.settings.ClientSettings(tries=1)) as stranger:
            with pytest.raises(MillpondError) as refused:
                stranger.tables()
            assert refused.value.condition == "SERVER_UNAVAILABLE"


@pytest.mark.long
def test_a_certificate_that_isnt_one_is_named(types_pond: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("x")
    for options in (("--tls-cert", str(tmp_path / "x.pem")), ("--tls-cert", "x", "--tls-key", "y")):
        command = [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 6
        assert done.stderr.startswith("[INVALID_CERTIFICATE]")
