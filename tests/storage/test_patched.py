"""A folder as it would be with some files changed or gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.storage import open_storage
from millpond.storage.copying import copy_file
from millpond.storage.patched import PatchedStorage

MOST = 1000


@pytest.fixture
def view(tmp_path: Path) -> PatchedStorage:
    for name in ("a/one", "a/two", "a/b/three", "four"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
        os.utime(tmp_path / name, (1000, 1000))
    return PatchedStorage(open_storage(tmp_path))


def test_a_view_without_changes_is_the_folder(view: PatchedStorage) -> None:
    assert view.names() == ["a", "four"]
    assert view.sizes("a") == {"one": 5, "two": 5}
    assert view.read("a/b/three", MOST) == b"".join(view.iter_pieces("a/b/three", 2, MOST)) == b"a/b/three"
    assert view.read_ours("four", MOST)[0] == b"four"
    stamp = view.stamp("four")
    assert stamp is not None
    assert abs(stamp.modified_ns / 1e9 - time.time()) < 100


def test_changes_are_seen_in_the_view_alone(view: PatchedStorage, tmp_path: Path) -> None:
    view.write("a/one", b"other")
    view.write("new/file", b"new")
    view.write(".hidden", b"")
    view.delete("a/two")
    assert not view.create("a/one", b"no")
    assert view.create("a/two", b"again")
    assert not view.replace("a/two", b"other", b"no")
    assert view.replace("a/two", b"again", b"once more")
    assert not view.replace("missing", b"", b"no")
    view.delete("a/two")
    assert view.names() == ["a", "four", "new"]
    assert view.names("a") == ["b", "one"]
    assert view.sizes("a") == {"one": 5}
    assert view.sizes() == {"four": 4}
    assert view.read("a/one", MOST) == view.folder("a").read("one", MOST) == b"other"
    assert view.open_file("a/one", MOST) is None
    assert view.local_path("a/one") is None
    for storage, path in ((view, "a/two"), (view.folder("a"), "two"), (view.copy(), "a/two")):
        assert storage.stamp(path) is None
        with pytest.raises(MillpondError) as caught:
            storage.read(path, MOST)
        assert caught.value.condition == "FILE_GONE"
    assert dict(view.written) == {"a/one": b"other", "new/file": b"new", ".hidden": b""}
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "a/b/three",
        "a/one",
        "a/two",
        "four",
    ]
    assert (tmp_path / "a/one").read_bytes() == b"a/one"


def test_a_copy_of_a_view_changes_no_more_with_it(view: PatchedStorage) -> None:
    other = view.copy()
    view.delete("four")
    other.write("five", b"5")
    assert other.read("four", MOST) == b"four"
    assert view.stamp("five") is None


def test_a_whole_folder_is_left_out_and_files_are_copied_into_a_view(view: PatchedStorage, tmp_path: Path) -> None:
    view.delete_all("a")
    assert view.names("a/b") == [] == [*view.sizes("a")]
    copy_file(open_storage(tmp_path), "a/one", view, "a/again", most_bytes=MOST)
    view.sync()
    assert view.sizes("a") == {"again": 5}
