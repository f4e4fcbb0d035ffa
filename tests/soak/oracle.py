"""Writes the job's input ahead of it, and notes what Spark planned for each batch before Spark's clean-up removes it."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

from soak.model import JobRun, parse_offsets, write_file

_AHEAD = 150
_POLL_SECONDS = 0.03


class Oracle:
    """Feeds the job and notes `offsets/N` of each run, both in a thread.  `begin` starts a new run."""

    def __init__(self, seed: int, folder: Path, checkpoint: Path) -> None:
        self.runs: list[JobRun] = []
        self._seed, self._folder, self._checkpoint = seed, folder, checkpoint
        self._written = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def input_of(self, run: int) -> Path:
        """The folder of a run's input."""
        return self._folder / f"in-{run}"

    def begin(self) -> int:
        """Delete the checkpoint, so that a new run of the job begins; returns the run's number."""
        self.note()
        with self._lock:
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            number = len(self.runs)
            self.input_of(number).mkdir()
            self._written = 0
            self.runs.append(JobRun(self._seed, number, time.time_ns() // 1_000_000))
            self._feed()
            return number

    def note(self) -> None:
        """Note the batches planned so far."""
        with self._lock:
            planned = self.runs[-1].planned if self.runs else {}
            folder = self._checkpoint / "offsets"
            names = [p.name for p in folder.iterdir()] if self.runs and folder.is_dir() else []
            for name in names:
                if name.isdigit() and int(name) not in planned:
                    try:
                        text = (folder / name).read_text()
                    except FileNotFoundError:
                        continue  # Spark has cleaned up this batch meanwhile
                    planned[int(name)] = parse_offsets(text)
            if self.runs:
                self._feed()

    def committed(self) -> int:
        """The newest committed batch, -1 if there is none."""
        folder = self._checkpoint / "commits"
        return max((int(p.name) for p in folder.iterdir() if p.name.isdigit()), default=-1) if folder.is_dir() else -1

    def end(self) -> None:
        """Stop watching."""
        self._ending.set()
        self._thread.join()

    def _feed(self) -> None:
        run = self.runs[-1]
        read = max((planned.ends[0] for planned in run.planned.values()), default=0)
        while self._written < read + _AHEAD:
            write_file(self.input_of(run.number), self._seed, run.number, self._written)
            self._written += 1

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_SECONDS):
            try:
                self.note()
            except Exception as error:  # noqa: BLE001 - told by the soak, which fails then
                self.failed = error
                return
