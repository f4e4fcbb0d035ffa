"""A pond says where its jobs' checkpoints are, and a stranger may have written that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import millpond
from millpond.catalogue import create_beside, create_job, open_jobs, read_catalogue
from millpond.errors import MillpondError
from millpond.storage.places import Places
from spark_files.checkpoint import WrittenCheckpoint


def checkpoint(path: Path, value: int = 1) -> Path:
    made = WrittenCheckpoint(path)
    made.plan([("a", value)], snapshot=False)
    made.commit()
    return path


def say(pond: Path, job: str, place: str, mode: int = 0o664) -> Path:
    """Write a job.json that anybody in the group could have written."""
    (pond / "pond.json").parent.mkdir(parents=True, exist_ok=True)
    (pond / "pond.json").write_text('{"format": 1}')
    file = pond / "jobs" / job / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"format": 1, "job": job, "checkpoint": place}))
    file.chmod(mode)
    return file


def value(pond: Path, table: str, **options: Any) -> Any:
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60, **options) as opened:
        return opened[table].get(k="a")["v"]


def condition(pond: Path, job: str, *allow: str | Path) -> str | None:
    error = read_catalogue(pond, Places.of(allow)).broken.get(job)
    return None if error is None else error.condition


def test_a_place_that_somebody_else_may_have_named_is_read_only_where_it_is_allowed(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere/ck", 7)
    say(tmp_path / "pond", "far", str(elsewhere))
    with pytest.raises(MillpondError) as refused:
        open_jobs(tmp_path / "pond")
    assert refused.value.condition == "PLACE_NOT_ALLOWED"
    assert f"--allow file://{elsewhere}" in str(refused.value)
    for place in (elsewhere, f"file:{elsewhere}", elsewhere.parent, f"{elsewhere}/"):
        assert value(tmp_path / "pond", "far.aggregate_0", allow=[place]) == 7
    assert condition(tmp_path / "pond", "far", f"{elsewhere}-2", tmp_path / "else") == "PLACE_NOT_ALLOWED"


def test_what_this_user_published_is_read_without(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere/ck", 7)
    before = os.umask(0o002)  # as on many systems
    try:
        create_job(tmp_path / "pond", "far", str(elsewhere))
    finally:
        os.umask(before)
    assert value(tmp_path / "pond", "far.aggregate_0") == 7
    file = tmp_path / "pond/jobs/far/job.json"
    file.chmod(0o664)
    assert condition(tmp_path / "pond", "far") == "PLACE_NOT_ALLOWED"
    file.chmod(0o644)
    assert condition(tmp_path / "pond", "far") is None
    # Somebody made a second link to our file: its owner isn't the one who put it there.
    os.link(file, tmp_path / "pond/other")
    assert condition(tmp_path / "pond", "far") == "PLACE_NOT_ALLOWED"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_names_nothing(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "ck")
    os.chown(say(tmp_path / "pond", "far", str(elsewhere), 0o600), 12345, 12345)
    assert condition(tmp_path / "pond", "far") == "PLACE_NOT_ALLOWED"


@pytest.mark.parametrize(
    "place", ["../far", "x/../../../elsewhere/ck", "file:///{0}/pond/../elsewhere/ck", "{0}/pond/%2e%2e/elsewhere/ck"]
)
def test_dots_dont_lead_out_of_the_pond(tmp_path: Path, place: str) -> None:
    checkpoint(tmp_path / "elsewhere/ck")
    say(tmp_path / "pond", "far", place.format(tmp_path))
    with pytest.raises(MillpondError) as refused:
        value(tmp_path / "pond", "far.aggregate_0")
    assert refused.value.condition in ("PLACE_NOT_ALLOWED", "UNKNOWN_TABLE", "NO_CHECKPOINT")


def test_a_pond_may_name_what_lies_in_it(tmp_path: Path) -> None:
    inside = checkpoint(tmp_path / "pond/checkpoints/ck", 3)
    say(tmp_path / "pond", "near", str(inside))
    assert value(tmp_path / "pond", "near.aggregate_0") == 3


def test_a_link_in_a_pond_leads_out_only_where_that_is_allowed(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "large disk/ck", 9)
    create_job(tmp_path / "pond", "linked")
    (tmp_path / "pond/jobs/linked/checkpoint").symlink_to(elsewhere)
    with pytest.raises(MillpondError) as refused:
        value(tmp_path / "pond", "linked.aggregate_0")
    assert refused.value.condition == "PLACE_NOT_ALLOWED"
    assert value(tmp_path / "pond", "linked.aggregate_0", allow=[tmp_path / "large disk"]) == 9
    # A link that the operator names is allowed.
    (tmp_path / "link").symlink_to(tmp_path / "pond")
    assert value(tmp_path / "link", "linked.aggregate_0", allow=[elsewhere]) == 9
    (tmp_path / "to the checkpoint").symlink_to(elsewhere)
    assert value(tmp_path / "to the checkpoint", "to the checkpoint.aggregate_0") == 9


def test_a_link_inside_of_a_pond_is_followed(tmp_path: Path) -> None:
    inside = checkpoint(tmp_path / "pond/disk/ck", 4)
    create_job(tmp_path / "pond", "linked")
    (tmp_path / "pond/jobs/linked/checkpoint").symlink_to(inside)
    assert value(tmp_path / "pond", "linked.aggregate_0") == 4


@pytest.mark.parametrize("name", ["a%20b", "%2e%2e", "a?b#c", "100%"])
def test_a_place_is_taken_by_its_name_whatever_that_is(tmp_path: Path, name: str) -> None:
    for number, folder in enumerate((name, "a b", unquote(name).split("#")[0])):
        if not (tmp_path / folder / "ck").exists():
            checkpoint(tmp_path / folder / "ck", number)
    create_job(tmp_path / "pond", "far", str(tmp_path / name / "ck"))
    assert value(tmp_path / "pond", "far.aggregate_0") == 0
    say(tmp_path / "pond", "said", (tmp_path / name / "ck").as_uri())
    assert condition(tmp_path / "pond", "said", tmp_path / name) is None
    assert condition(tmp_path / "pond", "said", tmp_path / "a b") == "PLACE_NOT_ALLOWED"
    assert value(tmp_path / "pond", "said.aggregate_0", allow=[tmp_path / name]) == 0
    beside = checkpoint(tmp_path / "beside" / name, 5)
    create_beside(beside)
    assert (tmp_path / "beside" / f"{name}.millpond/job.json").exists()
    assert value(beside, f"{name}.aggregate_0") == 5


def test_a_moved_checkpoint_is_read_where_it_is(tmp_path: Path) -> None:
    create_beside(checkpoint(tmp_path / "old/ck", 1))
    (tmp_path / "old").rename(tmp_path / "new")
    checkpoint(tmp_path / "old/ck", 2)
    assert value(tmp_path / "new/ck", "ck.aggregate_0") == 1


def test_a_bucket_that_a_pond_names_is_asked_nothing_and_nobody_is_asked_for_credentials(
    tmp_path: Path, metadata_service: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    url, asked = metadata_service
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("HOME", str(tmp_path))
    say(tmp_path / "pond", "far", "s3://somebody-elses/ck")
    create_job(tmp_path / "pond", "good")
    checkpoint(tmp_path / "pond/jobs/good/checkpoint", 5)
    assert value(tmp_path / "pond", "good.aggregate_0") == 5
    assert condition(tmp_path / "pond", "far") == "PLACE_NOT_ALLOWED"
    assert condition(tmp_path / "pond", "far", "s3://somebody") == "PLACE_NOT_ALLOWED"
    assert condition(tmp_path / "pond", "far", "s3://somebody-elses/other/..") == "PLACE_NOT_ALLOWED"
    assert not asked
    assert condition(tmp_path / "pond", "far", "s3a://somebody-elses") is None


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"job": "far"}', '{"job": 1, "checkpoint": "checkpoint"}', '{"job": "", "checkpoint": "x"}']
)
def test_a_job_that_says_nothing_hides_nobody_else(tmp_path: Path, text: str) -> None:
    create_job(tmp_path / "pond", "good")
    checkpoint(tmp_path / "pond/jobs/good/checkpoint", 5)
    say(tmp_path / "pond", "far", "checkpoint").write_text(text)
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        assert pond["good.aggregate_0"].get(k="a")["v"] == 5
        assert pond.jobs() == ["far", "good"]
        assert {job: error.condition for job, error in pond.broken_jobs().items()} == {"far": "CORRUPT_FILE"}
        assert "far/job.json" in str(pond.broken_jobs()["far"])
        assert pond.statistics()["far"]["error"]["condition"] == "CORRUPT_FILE"
        assert pond.ready() == (False, pond.ready()[1])
        assert "far" in pond.ready()[1]
        with pytest.raises(MillpondError) as refused:
            pond["far"]
        assert refused.value.condition == "CORRUPT_FILE"


def test_a_job_cant_take_anothers_name(tmp_path: Path) -> None:
    create_job(tmp_path / "pond", "good")
    checkpoint(tmp_path / "pond/jobs/good/checkpoint", 5)
    checkpoint(tmp_path / "pond/jobs/zzz/checkpoint", 6)
    say_again = tmp_path / "pond/jobs/zzz/job.json"
    say_again.write_text(json.dumps({"format": 1, "job": "good", "checkpoint": "checkpoint"}))
    assert value(tmp_path / "pond", "good.aggregate_0") == 5
    assert condition(tmp_path / "pond", "zzz") == "CORRUPT_FILE"


def test_a_job_cant_take_anothers_table(tmp_path: Path) -> None:
    for job, number in (("good", 5), ("zzz", 6)):
        create_job(tmp_path / "pond", job)
        checkpoint(tmp_path / "pond/jobs" / job / "checkpoint", number)
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        taken = pond["good.aggregate_0"].definition
        other = open_jobs(tmp_path / "pond")[1]
        other.write_definition(taken)
        pond._refresh()
        with pytest.raises(MillpondError) as refused:
            pond["good.aggregate_0"]
        assert refused.value.condition == "AMBIGUOUS_TABLE"
        file = tmp_path / "pond/jobs/zzz/tables/good.aggregate_0.json"
        file.rename(file.with_name("mine.json"))
        pond._refresh()
        assert pond["good.aggregate_0"].get(k="a")["v"] == 5
        assert pond.tables() == ["good.aggregate_0", "mine", "zzz.aggregate_0"]
        with pytest.raises(MillpondError) as refused:
            pond["mine"]
        assert refused.value.condition == "DEFINITION_MISMATCH"
        assert "tables/mine.json" in str(refused.value)


@pytest.mark.parametrize("name", ["007", "1" * 23, "١", "-1", "1_0", "0x1", "1.0", "999999999999999999999"])
def test_a_commit_that_spark_didnt_write_is_none(tmp_path: Path, name: str) -> None:
    create_job(tmp_path / "pond", "good")
    path = checkpoint(tmp_path / "pond/jobs/good/checkpoint", 5)
    for folder in ("commits", "offsets"):
        (path / folder / name).write_bytes((path / folder / "0").read_bytes())
    (path / "state" / name).mkdir()
    (path / "state/0/0" / f"{name}.snapshot").write_bytes(b"")
    assert value(tmp_path / "pond", "good.aggregate_0") == 5
    assert millpond.read_arrow(tmp_path / "pond", "good.aggregate_0").num_rows == 1


def test_a_replica_is_for_its_user_alone(tmp_path: Path) -> None:
    create_job(tmp_path / "pond", "good")
    checkpoint(tmp_path / "pond/jobs/good/checkpoint", 5)
    home = tmp_path / "home"
    # An older version made it, with access for others.
    millpond.open(tmp_path / "pond", replica_dir=home, wait_seconds=60).close()
    (folder,) = (home / "replicas").iterdir()
    folder.chmod(0o755)
    script = (
        "import os, sys, millpond; os.umask(0); kept = millpond.Retention(closed_seconds=None); "
        "millpond.open(sys.argv[1], replica_dir=sys.argv[2], wait_seconds=60, retention=kept).close()"
    )
    for place in (home, tmp_path / "new"):
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "pond"), str(place)], check=True)
        below = sorted((place / "replicas").rglob("*"))
        assert len([p for p in below if p.is_file()]) > 4
        for path in (place / "replicas", *below):
            mode = path.stat().st_mode & 0o777
            assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))


@pytest.mark.long
def test_the_command_line_takes_allowed_places(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere/ck", 7)
    say(tmp_path / "pond", "far", str(elsewhere))
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millpond.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    pond = str(tmp_path / "pond")
    for words in (
        ("tables", pond),
        ("get", pond, "far.aggregate_0", "k=a"),
        ("get", "--cold", pond, "far.aggregate_0", "k=a"),
        ("inspect", pond),
    ):
        refused = run(*words)
        assert refused.returncode == 6, (words, refused)
        assert "PLACE_NOT_ALLOWED" in refused.stderr
        allowed = run(*words, "--allow", str(elsewhere))
        assert allowed.returncode == 0, (words, allowed)
        assert "far" in allowed.stdout + allowed.stderr
