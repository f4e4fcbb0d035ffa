"""The network of the chaos, a process of its own: links to the servers of shards, and a proxy in front of S3.

`python -m chaos.weather S3 SEED PORT…`. It writes one line with the addresses, then takes lines of JSON, each with the weather from
then on, and answers each with what it has done so far.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from servers.network import Weather, network
from servers.proxy import proxy
from soak.orphans import end_with_parent
from soak.processes import python


@dataclass
class Sky:
    """The weather of all connections.

    links:     of each server: delay_seconds, cut, stall and is_down, as `servers.network.Weather` has them
    throttled, dropped, cut, hung: the probability of each, of a request to S3
    """

    links: list[dict[str, Any]]
    throttled: float = 0.0
    dropped: float = 0.0
    cut: float = 0.0
    hung: float = 0.0
    calm: dict[str, Any] = field(default_factory=lambda: {"delay_seconds": 0.0, "cut": 0.0, "stall": 0.0, "is_down": False})

    def clear(self) -> None:
        """No harm any more."""
        self.links = [dict(self.calm) for _ in self.links]
        self.throttled = self.dropped = self.cut = self.hung = 0.0

    def change(self, chance: random.Random) -> None:
        """Other weather; of each two copies one can always be reached."""
        self.clear()
        for copies in range(0, len(self.links), 2):
            link = self.links[copies + chance.randrange(2)]
            link["is_down"] = chance.random() < 0.15
        for link in self.links:
            link["delay_seconds"] = chance.choice([0.0, 0.0, 0.01, 0.1, 0.4])
            link["cut"], link["stall"] = chance.choice([0.0, 0.01, 0.05]), chance.choice([0.0, 0.0, 0.002])
        harm = chance.choice([0.0, 0.0, 0.02, 0.1, 0.3])
        self.throttled, self.dropped, self.cut = harm, harm / 10, harm / 20
        self.hung = chance.choice([0.0, 0.0, 0.003])

    def to_json(self) -> dict[str, Any]:
        """As the process takes it."""
        return {
            "links": self.links,
            "s3": [["throttled", self.throttled], ["drop", self.dropped], ["cut", self.cut], ["hang", self.hung]],
        }


class Network:
    """The process, from outside.

    links:  the address of each server through the network
    s3:     the address of S3
    done:   what has happened so far
    """

    def __init__(self, s3: str, seed: int, ports: list[int]) -> None:
        command = python("chaos.weather", s3, str(seed), *map(str, ports))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = json.loads(self._line())
        self.links: list[str] = said["links"]
        self.s3: str = said["s3"]
        self.done: dict[str, int] = {}

    def set(self, sky: Sky) -> None:
        """Let it be so."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(sky.to_json()) + "\n")
        self._process.stdin.flush()
        self.done = json.loads(self._line())

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main(s3: str, seed: str, *ports: str) -> None:
    """Until the parent is gone."""
    chance, done = random.Random(seed), Counter[str]()
    shares: list[tuple[str, float]] = []

    def before(method: str, path: str) -> int | str | None:
        drawn = chance.random()
        for what, share in shares:
            if drawn < share:
                done[f"s3 {what}"] += 1
                return 503 if what == "throttled" else what
            drawn -= share
        done["s3 passed"] += 1
        return None

    with contextlib.ExitStack() as stack:
        skies = [Weather() for _ in ports]
        links = [
            stack.enter_context(network(int(port), sky, number))
            for number, (port, sky) in enumerate(zip(ports, skies, strict=True))
        ]
        address, faults = stack.enter_context(proxy(s3))
        faults.before = before
        print(json.dumps({"links": links, "s3": address}), flush=True)
        for line in sys.stdin:
            given = json.loads(line)
            for sky, wanted in zip(skies, given["links"], strict=True):
                for name, value in wanted.items():
                    setattr(sky, name, value)
            shares[:] = [tuple(share) for share in given["s3"]]
            faults.seen.clear()
            links_done = sum((sky.done for sky in skies), Counter[str]())
            print(json.dumps({**done, **{f"link {what}": count for what, count in links_done.items()}}), flush=True)


if __name__ == "__main__":
    end_with_parent(group=False)
    main(*sys.argv[1:])
