"""Log lines: one event a line, in two forms; a failure that repeats is logged once."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond import logs
from millpond.errors import MillpondError, ReplicaError
from millpond.logs import EventLog, Trouble, write_logs

log = EventLog("millpond.test")
WORDS = st.text() | st.integers() | st.booleans() | st.none() | st.floats() | st.lists(st.text(), max_size=2)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log as text; call `write_logs` again for the other form."""
    root, ours = logging.getLogger(), logging.getLogger("millpond")
    before = (root.handlers[:], root.level, ours.level)
    out = io.StringIO()
    write_logs("debug", "text", to=out)
    yield out
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


def test_an_event_is_a_line_with_time_level_name_and_facts(written: io.StringIO) -> None:
    log.warning("follower.failed", condition="CORRUPT_FILE", message='a "b"\nc', seconds=0.25, path="file:///x")
    time, level, rest = written.getvalue().rstrip("\n").split(" ", 2)
    assert (len(time), time[-1], level) == (24, "Z", "warning")
    assert rest == 'follower.failed condition=CORRUPT_FILE message="a \\"b\\"\\nc" seconds=0.25 path=file:///x'


def test_as_json_it_is_an_object_a_line_with_a_traceback_where_there_is_one(written: io.StringIO) -> None:
    write_logs("info", "json", to=written)
    log.debug("unseen")
    log.info("serve.ready", url="http://[::1]:1", workers=2)
    try:
        raise ValueError("x")
    except ValueError as wrong:
        log.error("it.failed", raised=wrong)
    first, second = map(json.loads, written.getvalue().splitlines())
    assert {**first, "time": ""} == {"time": "", "level": "info", "event": "serve.ready", "url": "http://[::1]:1", "workers": 2}
    assert (second["event"], second["level"]) == ("it.failed", "error")
    assert "ValueError: x" in second["traceback"]


def test_lines_of_libraries_have_the_same_style_from_warning_on(written: io.StringIO) -> None:
    logging.getLogger("some.library").info("unseen")
    logging.getLogger("some.library").error("%s is gone", "it")
    assert written.getvalue().endswith('error some.library message="it is gone"\n')
    assert written.getvalue().count("\n") == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["a", "b_c"]), WORDS), st.sampled_from(logs.FORMATS))
def test_whatever_the_facts_are_it_is_one_line_that_a_terminal_shows_as_it_is(facts: dict, form: str) -> None:
    out = io.StringIO()
    record = logging.LogRecord("millpond", logging.INFO, "", 0, logs.Event("e.f", facts), None, None)
    out.write(logs.EventFormatter(form).format(record))
    assert out.getvalue().isprintable()
    if form == "json":
        assert json.loads(out.getvalue()).keys() >= facts.keys()


def test_what_goes_on_failing_is_said_now_and_then(written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Trouble(log, "follower", checkpoint="c")
    trouble.over()
    for message in ("one", "one", "one", "two", "two"):
        trouble.met(ReplicaError("FILE_GONE", message, hint="h"))
    trouble.met(MillpondError("CORRUPT_FILE", "bad", hint="h"))
    monkeypatch.setattr(logs, "_AGAIN_SECONDS", 0)
    trouble.met(MillpondError("CORRUPT_FILE", "bad", hint="h"))
    trouble.met(ReplicaError("NO_CHECKPOINT", "none", hint="h"), expected=True)
    trouble.over()
    trouble.over()
    lines = [line.split(" ", 1)[1] for line in written.getvalue().splitlines()]
    assert lines == [
        "warning follower.failed checkpoint=c condition=FILE_GONE message=one hint=h times=1",
        "warning follower.failed checkpoint=c condition=FILE_GONE message=two hint=h times=4",
        "error follower.failed checkpoint=c condition=CORRUPT_FILE message=bad hint=h times=6",
        "error follower.failed checkpoint=c condition=CORRUPT_FILE message=bad hint=h times=7",
        "info follower.waits checkpoint=c condition=NO_CHECKPOINT message=none hint=h times=8",
        "info follower.recovered checkpoint=c times=8",
    ]


def test_what_nobody_expected_has_its_traceback(written: io.StringIO) -> None:
    try:
        raise KeyError("k")
    except KeyError as wrong:
        Trouble(log, "journal").met(wrong)
    assert "error journal.failed message=\"KeyError('k')\" times=1\nTraceback" in written.getvalue()
