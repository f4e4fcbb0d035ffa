"""A kind of job to kill: its input, its program, and the state that it must have."""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults.fed import Input
from faults.undisturbed import Model

if TYPE_CHECKING:
    from millpond.spark.job import Job


class Kind(ABC):
    """One kind; `faults/kinds/` has a subclass for each.

    inputs:  the inputs of its jobs
    jobs:    the model of each job
    kills:   the ways to kill it
    """

    inputs: list[Input]
    jobs: dict[str, Model]
    kills: tuple[str, ...] = ("commit", "worker", "job")

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.pond, self.chance = folder, folder / "pond", chance

    @abstractmethod
    def feed(self) -> None:
        """Give it the next piece of input."""

    @classmethod
    def settings(cls) -> dict[str, str]:
        """Settings of Spark that its jobs need besides."""
        return {}

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Job]:
        """Start its jobs, one after the other, in their own process."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """The program that runs its jobs."""
        return [sys.executable, "-m", "faults.job", type(self).__name__.lower(), str(self.folder)]

    def without_broker(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Kill the broker of its source, and start it again; `meanwhile` comes in between."""
        raise NotImplementedError

    def tried(self) -> bool:
        """Whether everything has happened that its jobs are meant to show."""
        return all(model.tried() for model in self.jobs.values())
