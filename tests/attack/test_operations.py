"""A client with the right to make savepoints that begins as many as it can: the bound holds, and others get their answers."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import httpx

from attack.conftest import TABLE, Attacked
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.verify import verify_savepoint
from millpond.serve.access.tokens import add_token
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import PATIENCE_SECONDS, wait_until

CLIENTS, EACH = 12, 10


def test_a_flood_of_operations_runs_a_few_at_a_time(attacked: Attacked, job: WrittenCheckpoint, tmp_path: Path) -> None:
    token = add_token(tmp_path / "readers.json", "deploys", tables=["*"], savepoints="create")
    victim = attacked("--tokens", str(tmp_path / "readers.json"), "--max-operations", "2", "--kept-operations", "5", token=token)
    options = {"base_url": victim.address, "headers": {"authorization": f"Bearer {token}"}, "timeout": PATIENCE_SECONDS}
    answers: Counter[tuple[int, str]] = Counter()
    begun: list[str] = []
    running: list[int] = []

    def flood(number: int) -> None:
        with httpx.Client(**options) as client:
            for n in range(EACH):
                answer = client.post("/savepoints", json={"name": f"s{number}_{n}", "count": False})
                error = answer.json().get("error")
                answers[answer.status_code, "" if error is None else error["condition"]] += 1
                if error is None:
                    begun.append(answer.json()["operation"])
                running.append(len(client.get("/savepoints").json()["incomplete"]))

    with victim.watched(mib=60):
        threads = [threading.Thread(target=flood, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        with httpx.Client(**options) as honest:
            while any(thread.is_alive() for thread in threads):
                assert honest.get(f"/tables/{TABLE}/count").status_code == 200
        for thread in threads:
            thread.join()
        with httpx.Client(**options) as client:

            def states() -> list[str]:
                asked = [client.get(f"/operations/{operation}") for operation in begun]
                return [answer.json()["state"] for answer in asked if answer.status_code == 200]

            wait_until(lambda: "running" not in states(), "the end of all operations")
            known = states()
            assert client.get("/savepoints").json()["incomplete"] == []
    assert set(answers) == {(200, ""), (429, "TOO_MANY_OPERATIONS")}
    assert answers[200, ""] == len(begun)
    assert max(running) <= 1  # one savepoint of a job at a time
    assert 1 <= len(known) <= 6
    found = list_savepoints(job.path)
    assert (len(found.found), found.incomplete, found.broken) == (len(begun), [], {})
    assert all(verify_savepoint(savepoint).is_whole for savepoint in found.found)
