"""Everybody asks at once what is measured of jobs: files are read a few requests at a time, and lookups go on."""

from __future__ import annotations

import threading
from collections import Counter

import httpx
import pytest

from attack.conftest import TABLE, Attacked

JOB = "/jobs/job"
ROUTES = ("/jobs", f"{JOB}/samples", f"{JOB}/partitions", f"{JOB}/hot-keys", f"{JOB}/advice", "/alerts", "/console/main.js", "/")
ASKING = 120
MIB = 150


@pytest.mark.long
def test_many_questions_about_jobs_stop_no_lookup(attacked: Attacked) -> None:
    victim = attacked("--max-large-answers", "2", "--max-seconds", "60")
    statuses: Counter[tuple[str, int]] = Counter()
    counting, enough = threading.Lock(), threading.Event()

    def ask(path: str) -> None:
        accept = {"accept": "text/html"} if path == "/" else {}
        with httpx.Client(base_url=victim.address, headers=accept, timeout=200, verify=False) as client:
            while True:  # so that each lookup goes on beside questions
                status = client.get(path).status_code
                with counting:
                    statuses[path, status] += 1
                if enough.wait(1):
                    break

    asking = [threading.Thread(target=ask, args=(ROUTES[number % len(ROUTES)],)) for number in range(ASKING)]
    with victim.watched(mib=MIB), httpx.Client(base_url=victim.address, timeout=60) as honest:
        for thread in asking:
            thread.start()
        for looked in range(30):
            key = f"key-{looked:05}-{'x' * 80}"
            assert honest.get(f"/tables/{TABLE}/rows", params={"k": key}).json()["rows"] == [{"k": key, "v": looked}]
        enough.set()
        for thread in asking:
            thread.join()
    assert set(statuses) == {(path, 200) for path in ROUTES}
    assert min(statuses.values()) >= ASKING // len(ROUTES)


def test_names_of_jobs_that_there_arent_cost_nothing_that_stays(attacked: Attacked) -> None:
    victim = attacked("--max-large-answers", "2", "--max-seconds", "60")
    with httpx.Client(base_url=victim.address, timeout=60) as client:
        for number in range(50):
            answer = client.get(f"/jobs/{'n' * 2000}{number}/partitions")
            assert answer.json()["error"]["condition"] == "INVALID_REQUEST"
        assert client.get(f"{JOB}/partitions").status_code == 200
