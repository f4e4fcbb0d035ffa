"""LMDB's environments: one per file and process, whoever still closes another one."""

from __future__ import annotations

import threading
from pathlib import Path

import lmdb
import pytest

from millpond.errors import ReplicaError
from millpond.replica.backends import lmdb as ours
from millpond.replica.backends.lmdb import open_backend
from millpond.settings import ReplicaSettings


def test_an_environment_that_another_thread_closes_is_waited_for(tmp_path: Path) -> None:
    closing = lmdb.open(str(tmp_path))
    closer = threading.Timer(0.3, closing.close)
    closer.start()
    assert open_backend(tmp_path, ReplicaSettings()).stores() is None
    closer.join()


def test_one_of_a_new_file_with_the_inode_of_an_old_one_is_waited_for(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    closing = lmdb.open(str(before))
    before.rename(after)  # the same inodes in a folder of another name
    closer = threading.Timer(0.3, closing.close)
    closer.start()
    assert open_backend(after, ReplicaSettings()).stores() is None
    closer.join()


def test_an_environment_that_stays_open_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_CLOSING_SECONDS", 0.1)
    with lmdb.open(str(tmp_path)), pytest.raises(ReplicaError) as refused:
        open_backend(tmp_path, ReplicaSettings())
    assert refused.value.condition == "REPLICA_NOT_WRITABLE"
    assert "already open" in refused.value.message
