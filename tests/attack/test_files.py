"""An attacker may write the files of some jobs of a pond.  The live server goes on answering for another job.

All attacks happen at once, while the server follows these jobs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from attack.conftest import commit
from attack.victim import Victim
from millpond.catalogue import create_job
from servers.serving import serving
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import PATIENCE_SECONDS, wait_until

SECRET = "the-secret-of-another-file"
EVIL = "evil\x1b[31m\x07\x9b2J\u202e\x7f"
HUGE_BYTES = 1 << 30
GOOD = "good.aggregate_0"
REFUSALS = ("PLACE_NOT_ALLOWED", "CORRUPT_FILE")
NAMES_GOOD = '{"format": 1, "job": "good", "checkpoint": "checkpoint"}'


def replaced(path: Path, make: Callable[[Path], None]) -> None:
    """Put something else there by a rename: a reader sees the old or the new."""
    new = path.with_name(f".{path.name}.new")
    make(new)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    new.rename(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


def newest(folder: Path) -> Path:
    return max((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def double(file: Path) -> None:
    """The first member of the first object, two times."""
    file.write_text(re.sub(r'("[^"]+"\s*:)', r"\1 null, \1", file.read_text(), count=1))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def job_json(job: Path, place: str) -> None:
    file = job / "job.json"
    file.write_text(json.dumps({"format": 1, "job": job.name, "checkpoint": place}))
    file.chmod(0o664)  # so that anybody in the group may have written it


def follow_up(job: Path, number: str) -> None:
    for folder in ("offsets", "commits"):
        shutil.copy(newest(job / "checkpoint" / folder), job / "checkpoint" / folder / number)


ATTACKS: dict[str, Callable[[Path, Path, str], object]] = {
    "fifo_heartbeat": lambda job, _o, _b: replaced(job / "heartbeat.json", os.mkfifo),
    "sparse_heartbeat": lambda job, _o, _b: replaced(job / "heartbeat.json", sparse),
    "sparse_offsets": lambda job, _o, _b: replaced(newest(job / "checkpoint/offsets"), sparse),
    "sparse_commit": lambda job, _o, _b: replaced(newest(job / "checkpoint/commits"), sparse),
    "sparse_job_json": lambda job, _o, _b: replaced(job / "job.json", sparse),
    "fifo_job_json": lambda job, _o, _b: replaced(job / "job.json", os.mkfifo),
    "fifo_commit": lambda job, _o, _b: os.mkfifo(job / f"checkpoint/commits/{int(newest(job / 'checkpoint/commits').name) + 1}"),
    "device": lambda job, _o, _b: replaced(job / "heartbeat.json", lambda p: p.symlink_to("/dev/zero")),
    "link_offsets": lambda job, out, _b: replaced(newest(job / "checkpoint/offsets"), lambda p: p.symlink_to(out / "secret")),
    "link_job_json": lambda job, out, _b: replaced(job / "job.json", lambda p: p.symlink_to(out / "secret")),
    "link_tables": lambda job, out, _b: (job / "tables").symlink_to(out),
    "link_checkpoint": lambda job, out, _b: replaced(job / "checkpoint", lambda p: p.symlink_to(out)),
    "other_path": lambda job, out, _b: job_json(job, str(out)),
    "other_job": lambda job, _o, _b: job_json(job, f"{job.parent}/good/checkpoint"),
    "proc": lambda job, _o, _b: job_json(job, "/proc/self/root"),
    "bucket": lambda job, _o, bucket: job_json(job, bucket),
    "commit_007": lambda job, _o, _b: follow_up(job, "007"),
    "commit_of_23_digits": lambda job, _o, _b: follow_up(job, "1" * 23),
    "twice_in_job_json": lambda job, _o, _b: double(job / "job.json"),
    "twice_in_offsets": lambda job, _o, _b: double(newest(job / "checkpoint/offsets")),
    "names_of_another": lambda job, _o, _b: (job / "job.json").write_text(NAMES_GOOD),
    EVIL: lambda job, _o, _b: write(job / f"tables/{EVIL}.json", EVIL),
}


@pytest.mark.long
def test_files_of_other_jobs_dont_reach_a_live_server(tmp_path: Path, metadata_service: tuple[str, list[str]]) -> None:
    pond, outside, (url, asked) = tmp_path / "pond", tmp_path / "outside", metadata_service
    outside.mkdir()
    (outside / "secret").write_text(f"root:{SECRET}\nv1\n")
    jobs = {}
    for name in ("good", *ATTACKS):
        create_job(pond, "x" if name == EVIL else name)
        if name == EVIL:  # none of our jobs has this name
            (pond / "jobs/x").rename(pond / "jobs" / EVIL)
            (pond / "jobs" / EVIL / "job.json").write_text(json.dumps({"job": EVIL, "checkpoint": "checkpoint"}))
        jobs[name] = WrittenCheckpoint(pond / "jobs" / name / "checkpoint")
        commit(jobs[name], a=1, b=2)
        (pond / "jobs" / name / "heartbeat.json").write_text(json.dumps({"state": "running", "at": time.time()}))
    environment = {"AWS_METADATA_ENDPOINT": url, "AWS_ENDPOINT_URL": url, "HOME": str(tmp_path), "MILLPOND_REQUEST_SECONDS": "5"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        environment[name] = ""
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr_file,
        serving(pond, home=tmp_path / "home", stderr=stderr_file, **environment) as (address, server),
    ):
        victim, client = Victim(address, server.pid), httpx.Client(base_url=address, timeout=PATIENCE_SECONDS)
        wait_until(lambda: client.get(f"/tables/{GOOD}/count").status_code == 200, f"the table {GOOD}")

        def followed() -> int:
            return sum("count" in t or "batch" in t for t in client.get("/tables").json()["tables"])

        wait_until(lambda: followed() >= len(ATTACKS), "the server to follow all of them before they turn", seconds=120)
        said: list[str] = []
        ending, problems = Event(), []

        def ask_for_others() -> None:
            while not ending.wait(0.05):
                try:
                    said.append(client.get("/tables").text)
                    said.append(client.get("/metrics").text)
                    said.append(client.get("/readyz").text)
                    for name in (*ATTACKS, EVIL):
                        said.append(client.get(f"/tables/{name if name != EVIL else 'evil'}.aggregate_0/rows").text)
                        said.append(client.get(f"/tables/{name if name != EVIL else 'evil'}.aggregate_0/rows?k=a").text)
                except Exception as problem:  # noqa: BLE001 - told below
                    problems.append(problem)

        asking = Thread(target=ask_for_others)
        asking.start()
        try:
            with victim.watched(mib=200):
                for name, attack in ATTACKS.items():
                    attack(pond / "jobs" / name, outside, "s3://somebody-elses/ck")
                for number in range(10):
                    wanted = commit(jobs["good"], a=number, c=-number)
                    answer = client.get(f"/tables/{GOOD}/rows?_min_batch={wanted}&_wait_seconds=20")
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["rows"] == [{"k": "a", "v": number}, {"k": "b", "v": 2}, {"k": "c", "v": -number}]
                    time.sleep(0.5)
                # The server read them, and refused them.
                wait_until(lambda: all(c in "".join(said) + log.read_text() for c in REFUSALS), "the server's refusals")
        finally:
            ending.set()
            asking.join()
        assert problems == []
        listed = {table["table"]: table for table in client.get("/tables").json()["tables"]}
        assert "error" not in listed[GOOD]
        server.terminate()
        assert server.wait(60) in (0, -15)
    assert not asked, asked
    everything = "".join(said) + log.read_text()
    assert SECRET not in everything
    assert "INTERNAL_ERROR" not in everything
    assert "FOLLOWER_FAILED" not in everything
    assert "Traceback" not in everything
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\x80-\x9f\u202e]", log.read_text())
