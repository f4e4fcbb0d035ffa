"""Looks at a server's console as a browser does, without one: `python -m chaos.visitor URL LOG SEED`.

The page and its files must be those of the package. What the pages ask for, jobs, savepoints, alerts and rows, goes to the log.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from millpond.serve.console.files import FILES, PAGE
from soak.orphans import end_with_parent
from soak.reader import TABLE, Log

_SECONDS = 5.0
_PAGE_ROWS = 10


class Visitor:
    """One browser."""

    def __init__(self, url: str, log: Log, chance: random.Random) -> None:
        self._http = httpx.Client(base_url=url, timeout=_SECONDS)
        self._log, self._chance = log, chance

    def look(self) -> None:
        """Look at one page."""
        try:
            self._chance.choice([self._page, self._file, self._jobs, self._savepoints, self._alerts, self._rows, self._rows])()
        except httpx.TransportError as broken:
            self._log.write(op="error", condition="SERVER_UNAVAILABLE", message=str(broken))

    def _page(self) -> None:
        answer = self._http.get("/", headers={"accept": "text/html"})
        self._log.write(op="page", path="/", is_ours=answer.content == PAGE.content)

    def _file(self) -> None:
        name = self._chance.choice(list(FILES))
        answer = self._http.get(f"/console/{name}")
        self._log.write(op="page", path=name, is_ours=answer.content == FILES[name].content)

    def _jobs(self) -> None:
        for job in (self._asked("GET", "/jobs") or {"jobs": []})["jobs"]:
            if job["batch"] is not None:
                self._log.write(op="job", batch=job["batch"])

    def _savepoints(self) -> None:
        for each in (self._asked("GET", "/savepoints") or {"savepoints": []})["savepoints"]:
            self._log.write(op="saved", batch=each["batch"], offsets=each["offsets"], rows=each["rows"])

    def _alerts(self) -> None:
        for alert in (self._asked("GET", "/alerts") or {"alerts": []})["alerts"]:
            self._log.write(op="page", path=f"alert {alert['rule']} of {alert['job']}", is_ours=alert["job"] == TABLE)

    def _rows(self) -> None:
        """All pages of the table, from the first on."""
        rows: list[dict[str, Any]] = []
        first: dict[str, Any] | None = None
        token = None
        while first is None or token is not None:
            question = {"limit": _PAGE_ROWS, **({} if token is None else {"token": token})}
            answer = self._asked("POST", f"/tables/{TABLE}/rows:scan", json=question)
            if answer is None:
                return
            position, final = answer["position"], set(answer.get("final") or ())
            place = {
                "batch": answer["batch"],
                "offsets": position["offsets"],
                "watermark_ms": position["watermark_ms"],
                "started_ms": position["batch_started_ms"],
            }
            first = first or place
            if place != first:
                self._log.write(op="wrong", what=f"a page of {place}, after one of {first}")
            for number, row in enumerate(answer["rows"]):
                start = round(dt.datetime.fromisoformat(row["start"]).timestamp() * 1000)
                rows.append({**row, "start": start, "final": number in final})
            token = answer.get("token") if answer.get("more") else None
        self._log.write(op="scan", page=None, reverse=False, rows=rows, **first)

    def _asked(self, method: str, path: str, **given: Any) -> Any:
        """The answer; None after an error, which is written down."""
        answer = self._http.request(method, path, **given)
        body = answer.json()
        if answer.status_code == 200:
            return body
        self._log.write(op="error", condition=body["error"]["condition"], message=body["error"]["message"])
        return None


def main(url: str, path: str, seed: str) -> None:
    """Look until a signal ends it."""
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    visitor = Visitor(url, Log(Path(path)), random.Random(f"{seed}/visitor/{os.getpid()}"))
    while not ending:
        visitor.look()
        time.sleep(0.15)


if __name__ == "__main__":
    end_with_parent(group=False)
    main(*sys.argv[1:])
