"""A pond reads a definition again when its file has changed, and only then."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

import millpond
from millpond import catalogue
from millpond.catalogue import KnownEntries, create_job, open_jobs
from spark_files.seen_pond import make_pond


def _age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at))


def _rename_column(path: Path, name: str) -> None:
    """Another definition in place of the file, of the same length and the same time."""
    before = path.stat()
    definition = json.loads(path.read_text())
    definition["values"][0]["name"] = name
    other = path.with_suffix(".new")
    other.write_text(json.dumps(definition, indent=1))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    assert path.stat().st_size == before.st_size


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was left alone for a moment is known."""
    monkeypatch.setattr(catalogue, "_SETTLED_NS", 50_000_000)


def _let_settle() -> None:
    time.sleep(0.08)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_definition_is_the_files_own_however_it_was_written(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    seen = make_pond(tmp_path / "pond", samples=1)
    path = tmp_path / "pond/jobs/page_views/tables/page_views.json"
    definition, known, again = json.loads(path.read_text()), KnownEntries(), 0
    for _ in range(60):
        number = draw.randrange(10)
        data = json.dumps({**definition, "operator": number}).encode()
        if draw.random() < 0.5:
            path.with_suffix(".new").write_bytes(data)
            path.with_suffix(".new").replace(path)
        else:
            path.write_bytes(data)  # the same file, with the same number
        if draw.random() < 0.7:
            at = draw.choice([1_600_000_000, 1_700_000_000])
            os.utime(path, (at, at))
        before = None
        for _ in range(draw.randrange(1, 4)):
            if draw.random() < 0.5:
                _let_settle()
            known = KnownEntries(known)
            ((entry,), broken) = seen.job.read_entries(known)
            assert (entry.operator, broken) == (number, {})
            again += entry is before
            before = entry
    assert again > 10


def test_a_definition_that_was_replaced_counts_at_once(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    path = tmp_path / "pond/jobs/page_views/tables/page_views.json"
    _age(path, 100)
    _let_settle()
    with millpond.open(seen.place, replica_dir=tmp_path / "home") as pond:
        for name in ("hits", "clix", "hots"):
            if name != "hits":
                _rename_column(path, name)
            assert pond.tables() == ["page_views"]
            assert list(pond["page_views"].get(page="/")) == ["page", name]
        path.unlink()
        assert "page_views" not in pond.tables()


def test_a_definition_that_broke_is_told_and_one_that_is_mended_counts(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    path = tmp_path / "pond/jobs/page_views/tables/page_views.json"
    whole = path.read_bytes()
    with millpond.open(seen.place, replica_dir=tmp_path / "home") as pond:
        for content, columns in ((whole, ["page", "hits"]), (b"{", None), (whole, ["page", "hits"])):
            path.write_bytes(content)
            _age(path, 100)
            pond.tables()
            try:
                found = list(pond["page_views"].get(page="/"))
            except millpond.MillpondError as error:
                assert error.condition == "CORRUPT_FILE"
                found = None
            assert found == columns


def test_only_a_file_that_was_left_alone_for_a_while_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    (folder,) = open_jobs(seen.place)
    path = tmp_path / "pond/jobs/page_views/tables/page_views.json"

    def same(known: KnownEntries) -> tuple[bool, KnownEntries]:
        first = KnownEntries(known)
        ((one,), _), ((two,), _) = folder.read_entries(first), folder.read_entries(again := KnownEntries(first))
        return one is two, again

    monkeypatch.setattr(catalogue, "_SETTLED_NS", 3600 * 10**9)
    assert same(KnownEntries())[0] is False
    monkeypatch.setattr(catalogue, "_SETTLED_NS", 50_000_000)
    _age(path, 100)
    _let_settle()
    is_known, known = same(KnownEntries())
    assert is_known
    _age(path, -100)  # by a clock that was ahead
    assert same(known)[0] is False


def test_the_entries_of_two_jobs_are_kept_apart(tmp_path: Path) -> None:
    seen = make_pond(tmp_path / "pond", samples=1)
    other = create_job(seen.place, "other")
    text = json.loads((tmp_path / "pond/jobs/page_views/tables/page_views.json").read_text())
    (tmp_path / "pond/jobs/other/tables").mkdir()
    path = tmp_path / "pond/jobs/other/tables/page_views.json"
    path.write_text(json.dumps({**text, "derived": False}))
    for each in (path, tmp_path / "pond/jobs/page_views/tables/page_views.json"):
        _age(each, 100)
    _let_settle()
    known = KnownEntries()
    for _ in range(2):
        known = KnownEntries(known)
        ((one,), _), ((two,), _) = seen.job.read_entries(known), other.read_entries(known)
        assert (one.derived, two.derived) == (True, False)  # type: ignore[union-attr]
