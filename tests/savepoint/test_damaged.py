"""Damaged savepoints: what is wrong is said with its file, and nothing is restored from them."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import Savepoint, list_savepoints, open_savepoint
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.manifest import parse_manifest
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint


@pytest.fixture
def savepoint(golden) -> Savepoint:
    return plan_savepoint(golden("counts-rocksdb-changelog").checkpoint, "one").run()


def folder(savepoint: Savepoint) -> Path:
    path = savepoint.storage.local_path()
    assert path is not None
    return path


def place(savepoint: Savepoint) -> Path:
    return Path(savepoint.manifest.checkpoint.removeprefix("file://"))


def write_anew(path: Path, data: bytes) -> None:
    """In place of the file, which may be one with the job's."""
    path.unlink()
    path.write_bytes(data)


def test_each_damaged_file_is_named_and_nothing_is_restored(savepoint: Savepoint, tmp_path: Path) -> None:
    numbers = random.Random(3)
    for number, file in enumerate(savepoint.manifest.files):
        path = folder(savepoint) / "checkpoint" / file.path
        good = path.read_bytes()
        begin = numbers.randrange(len(good))
        for bad in (good[:begin] + bytes([good[begin] ^ 1]) + good[begin + 1 :], good[:begin], good + b"x", None):
            if bad is None:
                path.unlink()
            else:
                write_anew(path, bad)
            found = verify_savepoint(savepoint)
            assert any(problem.path.endswith(file.path) for problem in found.problems), (file.path, found)
            target = tmp_path / f"restored-{number}"
            if file.path == "metadata":  # a restore writes its own
                continue
            with pytest.raises(MillpondError) as caught:
                plan_restore(place(savepoint), "one", target).run()
            assert caught.value.condition in ("SAVEPOINT_DAMAGED", "FILE_GONE", "CORRUPT_FILE")
            assert not target.exists() or not any(target.iterdir())
        path.unlink(missing_ok=True)
        path.write_bytes(good)
    assert verify_savepoint(savepoint).is_whole


def test_a_file_that_is_too_many_is_named(savepoint: Savepoint) -> None:
    (folder(savepoint) / "checkpoint/state/0/0/99.changelog").write_bytes(b"")
    (problem,) = verify_savepoint(savepoint).problems
    assert problem.path == "checkpoint/state/0/0/99.changelog"


def test_a_manifest_that_somebody_changed_is_refused(savepoint: Savepoint) -> None:
    path = folder(savepoint) / "savepoint.json"
    good = path.read_text()
    data = json.loads(good)
    for text in (
        good.replace('"batch": 11', '"batch": 10'),
        good[:-40],
        "",
        "{}",
        "[]",
        "null",
        json.dumps({**data, "files": []}),
        json.dumps({**data, "format": "1"}),
    ):
        path.write_text(text)
        with pytest.raises(MillpondError) as caught:
            open_savepoint(place(savepoint), "one")
        assert caught.value.condition == "SAVEPOINT_DAMAGED"
        assert "savepoint.json" in str(caught.value)
        assert list(list_savepoints(place(savepoint)).broken) == ["one"]
    path.write_text(json.dumps({**data, "format": 2}))
    with pytest.raises(MillpondError) as caught:
        open_savepoint(place(savepoint), "one")
    assert caught.value.condition == "SAVEPOINT_TOO_NEW"


def test_no_manifest_leads_out_of_its_folder(savepoint: Savepoint) -> None:
    from dataclasses import replace

    for path in ("../../outside", "/etc/passwd", "state//x", "a/./b", "", "a\0b"):
        first = replace(savepoint.manifest.files[0], path=path)
        text = replace(savepoint.manifest, files=(first, *savepoint.manifest.files[1:])).to_bytes()
        with pytest.raises(MillpondError) as caught:
            parse_manifest(text, "savepoint.json")
        assert caught.value.condition == "SAVEPOINT_DAMAGED"


def test_a_savepoint_under_another_name_is_refused(savepoint: Savepoint) -> None:
    folder(savepoint).rename(folder(savepoint).with_name("two"))
    with pytest.raises(MillpondError) as caught:
        open_savepoint(place(savepoint), "two")
    assert caught.value.condition == "SAVEPOINT_DAMAGED"


def test_a_tar_file_that_isnt_whole_is_refused_and_leaves_nothing(savepoint: Savepoint, tmp_path: Path) -> None:
    export_savepoint(savepoint, tmp_path / "one.tar")
    good = (tmp_path / "one.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    assert members[0][0].name == "savepoint.json"

    def packed(some: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w|") as tar:
            for member, data in some:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return out.getvalue()

    link = tarfile.TarInfo(members[1][0].name)
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    bad = [
        b"",
        b"not a tar file" * 100,
        good[: len(good) // 2],
        good[:700],
        packed(members[1:]),
        packed(members[:-1]),
        packed([*members, members[-1]]),
        packed([members[0], *members[:0:-1]]),
        packed([*members[:3], (members[3][0], members[3][1] + b"x"), *members[4:]]),
        packed([*members[:3], (members[3][0], b"x" * len(members[3][1])), *members[4:]]),
        packed([members[0], (link, b""), *members[2:]]),
    ]
    for number, data in enumerate(bad):
        (tmp_path / "bad.tar").write_bytes(data)
        with pytest.raises(MillpondError) as caught:
            import_savepoint(tmp_path / "pond", tmp_path / "bad.tar")
        assert caught.value.condition == "SAVEPOINT_DAMAGED", number
        assert "bad.tar" in str(caught.value)
        assert not list((tmp_path / "pond").rglob("*.json")), number
    with pytest.raises(MillpondError) as caught:
        import_savepoint(tmp_path / "pond", tmp_path / "missing.tar")
    assert caught.value.condition == "FILE_MISSING"
    (tmp_path / "bad.tar").write_bytes(good)
    assert verify_savepoint(import_savepoint(tmp_path / "pond", tmp_path / "bad.tar", name="other")).is_whole
    with pytest.raises(MillpondError) as caught:
        import_savepoint(tmp_path / "pond", tmp_path / "bad.tar", name="other")
    assert caught.value.condition == "SAVEPOINT_EXISTS"
