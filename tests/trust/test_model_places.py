"""A model record names a file, and a stranger may have written the record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from inputs.small_models import linear
from millpond.spark.models.check import _GIVEN, RECORD_URI, ModelCheck
from millpond.spark.models.formats import FORMATS
from millpond.storage import uri_of
from millpond.storage.places import Places

pytest.importorskip("onnxruntime")
MODEL = linear([1.0, 2.0], 0.0)


def reason(root: Path, uri: str, *allow: str | Path, record_uri: str | None = None) -> Any:
    """Why a file's model is refused; None if it is admitted."""
    pond = uri_of(root / "pond")
    inputs = {"a": "double", "b": "double"}
    check = ModelCheck(pond=pond, places=Places.of((pond, *allow)), inputs=inputs, sample=None, formats=FORMATS, max_bytes=1 << 20)
    record = dict.fromkeys((*_GIVEN, "content", RECORD_URI)) | {
        "type": "all",
        "name": "m",
        "uri": uri,
        RECORD_URI: record_uri,
        "order": 1,
    }
    checked: Iterator[pd.DataFrame] = check(iter([pd.DataFrame([record], dtype=object)]))
    return next(iter(checked)).reason[0]


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MODEL)
    return path


@pytest.mark.parametrize("folder", ["models", "a%20b", "a b"])
def test_a_record_names_files_where_it_may(tmp_path: Path, folder: str) -> None:
    for path in (put(tmp_path / "pond" / folder / "m.onnx"), put(tmp_path / "records" / folder / "m.onnx")):
        record = (tmp_path / "records" / "1.json").as_uri()
        for uri in (str(path), path.as_uri(), f"file:{path.as_uri()[7:]}"):
            assert reason(tmp_path, uri, record_uri=record) is None, uri
            assert (reason(tmp_path, uri) is None) == ("pond" in path.parts[:-2]), uri
    record = (tmp_path / "records" / folder / "1.json").as_uri()
    assert reason(tmp_path, str(path), record_uri=record) is None
    assert "PLACE_NOT_ALLOWED" in reason(tmp_path, str(put(tmp_path / "records/m.onnx")), record_uri=record)


def test_a_file_elsewhere_is_read_only_where_that_is_allowed(tmp_path: Path) -> None:
    path = put(tmp_path / "elsewhere/m.onnx")
    for uri in (str(path), path.as_uri(), os.path.relpath(path), f"{tmp_path}/pond/../elsewhere/m.onnx", "/proc/self/environ"):
        assert "PLACE_NOT_ALLOWED" in reason(tmp_path, uri), uri
    for place in (path.parent, path, path.parent.as_uri()):
        assert reason(tmp_path, str(path), place) is None
    assert "PLACE_NOT_ALLOWED" in reason(tmp_path, str(path), tmp_path / "else")


def test_a_link_leads_nowhere_else(tmp_path: Path) -> None:
    path, link = put(tmp_path / "elsewhere/m.onnx"), tmp_path / "pond/models/m.onnx"
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    assert "nobody has allowed" in reason(tmp_path, str(link))
    assert reason(tmp_path, str(link), path.parent) is None
    (tmp_path / "pond/folder").symlink_to(path.parent)
    assert "nobody has allowed" in reason(tmp_path, f"{tmp_path}/pond/folder/m.onnx")


@pytest.mark.parametrize(
    "uri", ["s3://somebody-elses/m.onnx", "s3://", "hdfs://n/x", "http://169.254.169.254/x", "\0", "a\ud800", "", "/"]
)
def test_nobody_is_asked_for_what_isnt_allowed(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.storage.object_store.ObjectStorage", None)
    assert reason(tmp_path, uri)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pond").mkdir()
    os.mkfifo(tmp_path / "pond/m.onnx")
    for uri in (tmp_path / "pond/m.onnx", tmp_path / "pond", f"{tmp_path}/pond/\0", f"{tmp_path}/pond/a\ud800"):
        assert reason(tmp_path, str(uri)), uri
