"""Which batch read a line of a log; the oracle is what the source itself reads in each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.spark.accesslog.source import AccessLogStream, parse_options
from millpond.tables.job.bounds import Bounds
from spark_files.checkpoint import WrittenCheckpoint

LINE = 'h{n} - - [01/Aug/1995:00:00:{n:02} -0400] "GET /{n}.html HTTP/1.0" 200 {n}\n'


def open_after(job: WrittenCheckpoint, batches: int) -> millpond.Pond:
    """A pond that has followed all batches."""
    pond: millpond.Pond | None = None
    while job.next_batch < batches:
        job.plan([("a", job.next_batch)], snapshot=False)
        job.commit()
        pond = pond or millpond.open(job.path, replica_dir=job.path.parent / "home")
    assert pond is not None
    pond.catch_up(60)
    return pond


def refusal(ask: Any) -> str:
    with pytest.raises(MillpondError) as refused:
        ask()
    return refused.value.condition


def test_a_line_is_in_the_batch_in_which_the_source_reads_it(tmp_path: Path) -> None:
    logs = tmp_path / "my logs %20"
    logs.mkdir()
    (logs / "a.log").write_text("".join(LINE.format(n=n) for n in range(25)))
    (logs / "b.log").write_text("".join(LINE.format(n=n) for n in range(12)) + "begun, without its line end")
    source = AccessLogStream(parse_options({"path": str(logs), "rowsPerBatch": "7"}))
    ends, expected = [source.initialOffset()], {}
    while (end := source.latestOffset(ends[-1], source.getDefaultReadLimit())) != ends[-1]:
        for task in source.partitions(ends[-1], end):
            for rows in source.read(task):
                found = zip(rows["file"].to_pylist(), rows["line"].to_pylist(), strict=True)
                expected |= {(file, line): len(ends) for file, line in found}
        ends.append(end)
    assert len(expected) == 37
    job = WrittenCheckpoint(tmp_path / "ck", sources=lambda batch: [ends[batch]])
    with open_after(job, 1) as pond:  # nothing is read yet
        assert not pond["ck.aggregate_0"].find_event(file=logs / "a.log", line=1).applied
    with open_after(job, len(ends)) as pond:
        table = pond["ck.aggregate_0"]
        for (file, line), batch in expected.items():
            for spelled in (file, Path(file), "file://" + file.replace("%", "%25").replace(" ", "%20")):
                answer = table.find_event(file=spelled, line=line)
                assert (answer.batch_read, answer.applied) == (batch, True)
        for file, line in ((logs / "a.log", 26), (logs / "b.log", 13), (logs / "c.log", 1), (logs / "c.log", None)):
            answer = table.find_event(file=file, line=line)
            assert (answer.batch_read, answer.applied, answer.late) == (None, False, "unknown")
        assert refusal(lambda: table.find_event(file=logs / "a.log")) == "INVALID_BOUND"
        for wrong in (0, -1, True, "1", 1.5):
            assert refusal(lambda line=wrong: table.find_event(file=logs / "a.log", line=line)) == "INVALID_REQUEST"
        assert refusal(lambda: table.find_event(offset="a:0:1", line=1)) == "INVALID_REQUEST"


def test_a_line_of_a_file_that_is_read_whole_is_where_its_file_is(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "ck")
    for batch in range(3):
        job.write(f"sources/0/{batch}", b'v1\n{"path":"file:///in/%d.json","timestamp":1,"batchId":%d}' % (batch, batch))
    with open_after(job, 3) as pond:
        table = pond["ck.aggregate_0"]
        for batch in range(3):
            assert table.find_event(file=f"/in/{batch}.json", line=5).batch_read == batch
        assert not table.find_event(file="/in/3.json", line=5).applied


def test_of_two_sources_of_one_log_both_must_have_read_the_line(tmp_path: Path) -> None:
    def place(line: int) -> Any:
        return {"files": {"/a.log": {"line": line, "byte": 9, "tail": ""}}}

    job = WrittenCheckpoint(tmp_path / "ck", sources=lambda batch: [place(10 * batch), place(5 * batch), {"logOffset": -1}])
    with open_after(job, 5) as pond:
        table = pond["ck.aggregate_0"]
        assert [table.find_event(file="/a.log", line=line).batch_read for line in (1, 5, 6, 20, 21)] == [1, 1, 2, 4, None]
        assert refusal(lambda: pond["ck.aggregate_0"].scan(bounds=Bounds(contains_offset="a:0:1"))) == "INVALID_BOUND"
