"""Log lines: events with facts, in one style for all of Millpond, as text or as JSON.

    2026-03-01T12:00:00.123Z warning follower.failed condition=CORRUPT_FILE checkpoint=file:///data/cp message="…"
    {"time":"2026-03-01T12:00:00.123Z","level":"warning","event":"follower.failed","condition":"CORRUPT_FILE",…}

They go through the standard library's logging, since programs that open ponds, and a server's
libraries, have handlers of their own.  (Rejected: structlog.  It would only add the form of a line,
which takes a few lines below.)  Only a server calls `write_logs`; elsewhere the program decides.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import time
from typing import Any, TextIO

from millpond.errors import PASSING, MillpondError

# Lasting trouble is logged again after so long.
_AGAIN_SECONDS = 60.0
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+%@,*")


class Event:
    """What happened: a name such as `follower.failed`, and facts.

    `str` gives the text form without time and level.
    """

    __slots__ = ("facts", "name")

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        self.name = name
        self.facts = facts

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{name}={_word(fact)}" for name, fact in self.facts.items())))


class EventLog:
    """Writes events: `log = EventLog(__name__)`, then `log.warning("follower.failed", condition=…)`."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    def debug(self, event: str, *, raised: BaseException | None = None, **facts: Any) -> None:
        """For those who look for a bug in Millpond; `raised` adds its traceback."""
        self._write(logging.DEBUG, event, facts, raised)

    def info(self, event: str, **facts: Any) -> None:
        """A fact that an operator may want to know later."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """A fact that isn't as it should be."""
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, *, raised: BaseException | None = None, **facts: Any) -> None:
        """A fact that needs somebody to act; `raised` adds its traceback."""
        self._write(logging.ERROR, event, facts, raised)

    def _write(self, level: int, event: str, facts: dict[str, Any], raised: BaseException | None = None) -> None:
        if self._log.isEnabledFor(level):
            self._log.log(level, Event(event, facts), exc_info=raised, stacklevel=3)


class Trouble:
    """A failure that repeats in the background.

    It is logged when it begins, when it changes, from time to time, and when it is over.
    """

    def __init__(self, log: EventLog, name: str, **facts: Any) -> None:
        self._log = log
        self._name = name
        self._facts = facts
        self._last: tuple[str, str] | None = None
        self._times = 0
        self._said_at = 0.0

    def met(self, error: BaseException, *, expected: bool = False) -> None:
        """The work has failed.

        expected:  whether that is normal for now, so that `info` is enough
        """
        reason = {"message": repr(error)}
        if isinstance(error, MillpondError):
            reason = {"condition": error.condition, "message": error.message, "hint": error.hint}
        condition = reason.get("condition", "")
        found = condition, reason["message"]
        self._times += 1
        if found == self._last and time.monotonic() - self._said_at < _AGAIN_SECONDS:
            return
        self._last, self._said_at = found, time.monotonic()
        facts = {**self._facts, **reason, "times": self._times}
        if expected:
            self._log.info(f"{self._name}.waits", **facts)
        elif condition in PASSING:
            self._log.warning(f"{self._name}.failed", **facts)
        else:
            self._log.error(f"{self._name}.failed", raised=None if condition else error, **facts)

    def over(self) -> None:
        """The work went well."""
        if self._last is not None:
            self._log.info(f"{self._name}.recovered", **self._facts, times=self._times)
            self._last, self._times = None, 0


class EventFormatter(logging.Formatter):
    """One line for each event; lines of other libraries are events named after their logger."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._is_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg if isinstance(record.msg, Event) else Event(record.name, {"message": record.getMessage()})
        when = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = record.levelname.lower()
        traceback = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None
        if self._is_json:
            line = {"time": when, "level": level, "event": event.name, **event.facts}
            return json.dumps(line if traceback is None else {**line, "traceback": traceback}, default=str)
        return f"{when} {level} {event}" + ("" if traceback is None else f"\n{traceback}")


def write_logs(level: str, form: str, *, to: TextIO | None = None) -> None:
    """Write this process's log lines to stderr.

    Millpond's are written from this level on, those of libraries from `warning` on.

    level:  one of LEVELS
    form:   one of FORMATS
    """
    handler = logging.StreamHandler(to or sys.stderr)
    handler.setFormatter(EventFormatter(form))
    logging.basicConfig(level=max(logging.WARNING, _number(level)), handlers=[handler], force=True)
    logging.getLogger("millpond").setLevel(_number(level))


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _word(fact: Any) -> str:
    """A fact as one word: spaces and control characters put it into quotes, with escapes."""
    if isinstance(fact, float):
        return f"{fact:.6g}"
    text = fact if isinstance(fact, str) else json.dumps(fact, default=str)
    if text and _PLAIN.issuperset(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
