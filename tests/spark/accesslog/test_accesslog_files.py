"""Positions in logs: batches cover every line once; files grow, and are replaced."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.errors import MillpondError
from millpond.spark.accesslog import files as accesslog_files
from millpond.spark.accesslog.files import (
    START,
    Place,
    advance,
    check_place,
    find_logs,
    open_text,
    parse_place,
    read_line,
    resume_byte,
)
from millpond.spark.accesslog.lines import MAX_LINE_BYTES


@pytest.fixture(autouse=True)
def _own_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))


def lines_from(path: Path, place: Place, end: Place) -> list[bytes]:
    with open_text(str(path)) as file:
        file.seek(resume_byte(file, place))
        return [read_line(file)[0] for _ in range(end.line - place.line)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"") + b"\n"), max_size=40),
    st.integers(1, 9),
    st.integers(1, 60),
    st.booleans(),
)
def test_any_batch_size_covers_every_line_exactly_once(
    tmp_path: Path, lines: list[bytes], step: int, chunk: int, packed: bool
) -> None:
    log = tmp_path / f"log{time.monotonic_ns()}"
    text = b"".join(lines)
    log.write_bytes(gzip.compress(text) if packed or text.startswith(b"\x1f\x8b") else text)
    accesslog_files._CHUNK_BYTES, before = chunk, accesslog_files._CHUNK_BYTES
    try:
        place, seen = START, []
        while True:
            with open_text(str(log)) as file:
                check_place(file, place, str(log))
                end = advance(file, place, max_lines=step)
            if end == place:
                break
            assert end.line - place.line <= step
            seen += lines_from(log, place, end)
            place = parse_place(end.to_json())
        assert seen == lines
        assert (place.line, place.byte) == (len(lines), len(text))
        with open_text(str(log)) as file:
            assert advance(file, START) == place
    finally:
        accesslog_files._CHUNK_BYTES = before


def test_a_last_line_waits_for_its_line_end_unless_the_input_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo")
    with open_text(str(log)) as file:
        assert advance(file, START).line == 1
        complete = advance(file, START, complete=True)
    assert (complete.line, complete.byte) == (2, 7)

    with log.open("ab") as more:
        more.write(b"\nthree\n")
    with open_text(str(log)) as file:
        check_place(file, complete, str(log))
        end = advance(file, complete)
    assert end.line == 3
    assert lines_from(log, complete, end) == [b"three\n"]


def test_nothing_beyond_the_given_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthree\n")
    with open_text(str(log)) as file:
        assert advance(file, START, end_byte=8).line == 2
        assert advance(file, START, end_byte=10).line == 2
        complete = advance(file, START, end_byte=10, complete=True)
    assert (complete.line, complete.byte) == (3, 10)


@pytest.mark.parametrize("change", [b"", b"one\n", b"ONE\ntwo\nthree\n", b"zero\none\ntwo\nthree\n"])
def test_a_log_that_was_cut_or_replaced_is_refused(tmp_path: Path, change: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthree\n")
    with open_text(str(log)) as file:
        place = advance(file, START, max_lines=2)
    log.write_bytes(change)
    with open_text(str(log)) as file, pytest.raises(MillpondError) as refused:
        check_place(file, place, str(log))
    assert refused.value.condition == "LOG_REPLACED"
    assert refused.value.context["line"] == 2


def test_a_growing_log_is_the_same_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n")
    with open_text(str(log)) as file:
        place = advance(file, START)
    with log.open("ab") as more:
        more.write(b"three\n")
    with open_text(str(log)) as file:
        check_place(file, place, str(log))
        assert advance(file, place).line == 3


def test_an_endless_line_is_counted_once_and_not_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * (3 << 20) + b"\nnext\n")
    with open_text(str(log)) as file:
        text, length = read_line(file)
        assert (len(text), length) == (MAX_LINE_BYTES + 2, (3 << 20) + 1)
        assert read_line(file) == (b"next\n", 5)
        assert advance(file, START, max_lines=1).byte == length


def test_a_gzip_log_is_unpacked_once_for_all_its_batches(tmp_path: Path) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n"))
    with open_text(str(log)) as file:
        first = os.fstat(file.fileno()).st_ino
        assert advance(file, START).line == 3
    with open_text(str(log)) as file:
        assert os.fstat(file.fileno()).st_ino == first
    assert len(list((tmp_path / "home" / "spool").iterdir())) == 1


def test_spool_files_that_nobody_opened_for_a_day_are_removed(tmp_path: Path) -> None:
    for name in ("old.gz", "new.gz"):
        (tmp_path / name).write_bytes(gzip.compress(name.encode()))
    with open_text(str(tmp_path / "old.gz")):
        pass
    (old,) = (tmp_path / "home" / "spool").iterdir()
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    with open_text(str(tmp_path / "new.gz")) as file:
        assert file.read() == b"new.gz"
    assert not old.exists()


@pytest.mark.parametrize("damage", [slice(0, -4), slice(0, 20)])
def test_a_gzip_log_that_is_cut_off_is_a_typed_error(tmp_path: Path, damage: slice) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(os.urandom(5000))[damage])
    with pytest.raises(MillpondError) as refused, open_text(str(log)):
        pass
    assert refused.value.condition == "CORRUPT_FILE"
    assert list((tmp_path / "home" / "spool").iterdir()) == []


def test_logs_are_found_by_file_folder_and_glob(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", ".hidden", "c.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    assert find_logs(str(tmp_path / "b.log")) == [str(tmp_path / "b.log")]
    assert find_logs(str(tmp_path)) == [str(tmp_path / name) for name in ("a.log", "b.log", "c.txt")]
    assert find_logs(str(tmp_path / "*.log")) == [str(tmp_path / name) for name in ("a.log", "b.log")]
    assert find_logs(str(tmp_path / "*.none")) == []
    with pytest.raises(MillpondError) as refused:
        find_logs(str(tmp_path / "none.log"))
    assert refused.value.condition == "FILE_MISSING"
