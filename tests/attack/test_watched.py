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

    def ask(path: str) -> None:
        accept = {"accept": "text/html"} if path == "/" else {}
        statuses[path, httpx.get(victim.address + path, headers=accept, timeout=200).status_code] += 1

    asking = [threading.Thread(target=ask, args=(ROUTES[number % len(ROUTES)],)) for number in range(ASKING)]
    with victim.watched(mib=MIB), httpx.Client(base_url=victim.address, timeout=60) as honest:
        for thread in asking:
            thread.start()
        looked = 0
        while any(thread.is_alive() for thread in asking):
            key = f"key-{looked:05}-{'x' * 80}"
            assert honest.get(f"/tables/{TABLE}/rows", params={"k": key}).json()["rows"] == [{"k": key, "v": looked}]
            looked += 1
        for thread in asking:
            thread.join()
    assert looked > 5
    assert statuses == {(path, 200): ASKING // len(ROUTES) for path in ROUTES}


def test_names_of_jobs_that_there_arent_cost_nothing_that_stays(attacked: Attacked) -> None:
    victim = attacked("--max-large-answers", "2", "--max-seconds", "60")
    with httpx.Client(base_url=victim.address, timeout=60) as client:
        for number in range(50):
            answer = client.get(f"/jobs/{'n' * 2000}{number}/partitions")
            assert answer.json()["error"]["condition"] == "INVALID_REQUEST"
        assert client.get(f"{JOB}/partitions").status_code == 200
