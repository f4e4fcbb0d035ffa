"""A wrong record is refused before anything is written; a right one returns its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import RequestError
from millpond.storage import open_storage


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": None},
        {"type": 3},
        {"type": ""},
        {"type": "red/"},
        {"type": "/new"},
        {"type": "red/new"},
        {"type": "red/new", "share": 0.5, "shadow": True},
        {"share": 0.5},
        {"shadow": True},
        {"type": "red/new", "share": "0.1"},
        {"type": "red/new", "share": 1.5},
        {"type": "red/new", "share": 0},
        {"type": "red/new", "share": float("nan")},
        {"type": "red/new", "share": True},
        {"type": "red/new", "shadow": "yes"},
        {"name": None},
        {"name": ""},
        {"description": None},
        {"format": 1},
        {"content": "nobody.onnx"},
        {"content": Path("nobody.onnx")},
        {"content": "a\0b"},
        {"content": b""},
        {"content": 17},
        {"content": None},
        {"content": ["bytes"]},
    ],
)
def test_a_record_that_the_job_would_refuse_isnt_written(tmp_path: Path, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"content": b"bytes", "name": "forest", **wrong}
    with pytest.raises(RequestError) as refused:
        millpond.publish_model(tmp_path, given.pop("content"), **given)
    assert refused.value.condition == "INVALID_REQUEST"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["3", None, 0, -1, 1.5, True, 1 << 63])
def test_a_rollback_names_a_version(tmp_path: Path, version: Any) -> None:
    with pytest.raises(RequestError) as refused:
        millpond.roll_back_model(tmp_path, version)
    assert refused.value.condition == "INVALID_REQUEST"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("type_", [None, "", "red/", 3])
def test_what_is_removed_or_rolled_back_has_a_type(tmp_path: Path, type_: Any) -> None:
    for publish in (lambda: millpond.remove_model(tmp_path, type=type_), lambda: millpond.roll_back_model(tmp_path, 1, type=type_)):
        with pytest.raises(RequestError) as refused:
            publish()
        assert refused.value.condition == "INVALID_REQUEST"
    assert list(tmp_path.iterdir()) == []


def read(uri: str) -> Any:
    folder, _, name = uri.rpartition("/")
    return json.loads(open_storage(folder).read(name, 1 << 20))


def test_a_model_is_published_as_bytes_or_by_its_file_and_says_where(tmp_path: Path) -> None:
    file, folder = tmp_path / "model.onnx", tmp_path / "published"
    file.write_bytes(b"a model")
    ways: list[Any] = [b"a model", bytearray(b"a model"), memoryview(b"a model"), file, str(file)]
    for content in ways:
        published = millpond.publish_model(folder, content, name="forest")
        record = read(published.record)
        assert open_storage(folder).read(f"models/{published.sha256}", 1 << 20) == b"a model"
        assert record["uri"].endswith(f"/models/{published.sha256}")
    for done, action in ((millpond.remove_model(folder), "remove"), (millpond.roll_back_model(folder, 3), "rollback")):
        assert read(done.record)["action"] == action
        assert done.sha256 is None
    assert len(list((folder / "models").iterdir())) == 1
