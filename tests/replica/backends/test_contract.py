"""The backends that come with Millpond keep what a backend promises."""

from __future__ import annotations

from pathlib import Path

from millpond.backends import Backend
from millpond.replica.backends.lmdb import open_backend
from millpond.replica.backends.memory import MemoryBackend
from millpond.testing import BackendContract


class TestLmdb(BackendContract):
    def open(self, path: Path) -> Backend:
        return open_backend(path, self.settings)


class TestMemory(BackendContract):
    def open(self, path: Path) -> Backend:
        return MemoryBackend()

    test_it_has_a_name_a_folder_and_a_size = None  # type: ignore[assignment]
    # It ends with its process.
    test_what_was_written_is_there_when_it_is_opened_again = None  # type: ignore[assignment]
    test_its_folder_may_be_removed_while_it_is_open = None  # type: ignore[assignment]
