"""A copy takes a checkpoint's place, or nothing changes; and a journal can't make it delete anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.catalogue import JobFolder, create_job, reopen
from millpond.errors import MillpondError
from millpond.ownership.take_over import JOURNAL, begin, finish
from oracles.ends import condition_of


@pytest.fixture(params=["exchange", "names"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A job whose checkpoint has one file; on a file system that can exchange two names, and on one that can't."""
    if request.param == "names":
        monkeypatch.setattr("millpond.ownership.take_over.try_exchange", lambda _one, _other: False)
    found = create_job(tmp_path / "pond", "counts")
    found.open_checkpoint().write("metadata", b"old")
    return found


def content(folder: JobFolder) -> bytes:
    return reopen(folder).open_checkpoint().read("metadata", 100)


def test_the_copy_takes_over_and_the_old_one_stays(folder: JobFolder) -> None:
    over = begin(folder, "rescale")
    over.copy.write("metadata", b"new")
    assert content(folder) == b"old"
    taken = over.take()
    assert (content(folder), taken.checkpoint) == (b"new", over.place)
    assert folder.storage.folder(over.kept).read("metadata", 100) == b"old"
    assert finish(folder) is None
    assert not [name for name in folder.storage.names() if name.startswith("take-over")]


def test_what_another_command_has_discarded_cant_take_over_any_more(folder: JobFolder) -> None:
    """As a command finds out that was stopped just before the last step, and wakes."""
    over = begin(folder, "rescale")
    over.copy.write("metadata", b"new")
    assert finish(folder) is not None
    with pytest.raises((MillpondError, OSError)):
        over.take()
    assert content(folder) == b"old"
    other = begin(folder, "rollback")
    other.copy.write("metadata", b"newer")
    over.discard()
    assert finish(folder, over.id) is None
    other.take()
    assert content(folder) == b"newer"


@pytest.mark.parametrize(
    "change",
    [
        {"new": "tables"},
        {"old": "../counts"},
        {"kept": "/etc"},
        {"id": "../x"},
        {"sink": {"log": "/home/me", "kept": "/home/me.before-rollback-1"}},
        {"sink": {"log": "/out/_spark_metadata", "kept": "/home/me"}},
        {"sink": {"log": "/out/_spark_metadata", "kept": "/out/_spark_metadata.before-x/../../me"}},
        {"sink": []},
        {"format": 2},
    ],
)
def test_a_journal_of_a_stranger_deletes_nothing(folder: JobFolder, change: dict[str, object]) -> None:
    begin(folder, "rescale")
    text = json.loads(folder.storage.read(JOURNAL, 10_000))
    folder.storage.write(JOURNAL, json.dumps({**text, **change}).encode())
    assert condition_of(lambda: finish(folder)) == "CORRUPT_FILE"
    assert content(folder) == b"old"
