"""Files of a storage under other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.storage import LocalStorage
from millpond.storage.renamed import RenamedStorage


@pytest.fixture
def renamed(tmp_path: Path) -> RenamedStorage:
    storage = LocalStorage(tmp_path)
    for name in ("1/a", "2/b", "2/hidden"):
        storage.write(name, name.encode())
    return RenamedStorage(storage, {"ck/offsets/1": "1/a", "ck/state/0/b": "2/b", "ck/gone": "3/gone"})


def test_its_files_have_their_new_names_alone(renamed: RenamedStorage, tmp_path: Path) -> None:
    assert renamed.names() == ["ck"]
    for folder in (renamed.folder("ck"), renamed.folder("").folder("ck"), renamed.folder("ck").folder("")):
        assert folder.names() == ["gone", "offsets", "state"]
        assert folder.names("state") == ["0"]
        assert folder.names("elsewhere") == []
        assert folder.sizes("state/0") == {"b": 3}
        assert folder.sizes("") == {}, "a file that was deleted"
        assert folder.read("offsets/1", 10) == b"1/a"
        assert b"".join(folder.iter_pieces("state/0/b", 2, 10)) == b"2/b"
        assert folder.stamp("offsets/1") == LocalStorage(tmp_path).stamp("1/a")
        assert folder.stamp("gone") is None
        assert folder.local_path("offsets/1") == tmp_path / "1/a"
        for missing in ("gone", "1/a", "2/hidden", "offsets"):
            with pytest.raises(MillpondError) as caught:
                folder.read(missing, 10)
            assert caught.value.condition == "FILE_GONE"


def test_nothing_can_be_written(renamed: RenamedStorage, tmp_path: Path) -> None:
    for write in (
        lambda: renamed.write("x", b""),
        lambda: renamed.create("x", b""),
        lambda: renamed.write_pieces("x", [b""]),
        lambda: renamed.take(LocalStorage(tmp_path), "1/a", "x", share=False),
        lambda: renamed.delete("ck/offsets/1"),
        lambda: renamed.delete_all("ck"),
    ):
        with pytest.raises(MillpondError) as caught:
            write()
        assert caught.value.condition == "NOT_WRITABLE"
    assert renamed.read("ck/offsets/1", 10) == b"1/a"
