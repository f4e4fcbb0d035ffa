"""The processes for statements: started when they are needed, replaced when they have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millpond.errors import library_missing
from millpond.serve.sql import messages as say
from millpond.serve.sql.process import CountStatement, SqlProcess, SqlSession
from millpond.settings import ServeSettings
from millpond.tables.sql.reading.opened import Opening

Begun = tuple[SqlSession, Callable[[], None]]
"""a session, and a function that ends it and gives its process back"""


class SqlPool:
    """Idle processes, and sessions that run.

    count:  see `SqlSession`
    """

    def __init__(self, count: CountStatement | None = None) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._idle: list[SqlProcess] = []
        self._running: set[SqlSession] = set()
        self._number = 0
        self._is_closed = False

    def begin(
        self,
        ask: Callable[[int], say.Ask],
        opening: Opening,
        settings: ServeSettings,
        catalog: Callable[[], str] | None = None,
    ) -> Begun:
        """Begin a statement.

        ask:     makes the question with a number for it
        catalog: see `SqlSession`
        Raises:  LIBRARY_MISSING.
        """
        check_library()
        with self._lock:
            self._number += 1
            number = self._number
        asked = ask(number)  # before a process is taken, which would be lost with an error
        with self._lock:
            usable = [each for each in self._idle if each.is_there and each.memory_bytes == settings.sql_memory_bytes]
            spare = [each for each in self._idle if each not in usable]
            process = usable.pop() if usable else None
            self._idle = usable
        for each in spare:
            each.kill()
        process = process or SqlProcess(settings.sql_memory_bytes)
        session = SqlSession(process, asked, opening, catalog, self._count)
        with self._lock:
            self._running.add(session)

        def close() -> None:
            try:
                session.close()
            finally:
                self._give_back(session, process)

        return session, close

    def close(self) -> None:
        """End all processes, at the end of the server."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            running = list(self._running)
        for session in running:
            session.end()
        for process in idle:
            process.kill()

    def _give_back(self, session: SqlSession, process: SqlProcess) -> None:
        with self._lock:
            if session not in self._running:
                return  # it was given back: nobody takes it twice
            self._running.remove(session)
            stays = process.is_well and not self._is_closed
            if stays:
                self._idle.append(process)
        if not stays:
            process.kill()


def check_library() -> None:
    """Raise LIBRARY_MISSING without `millpond[sql]`."""
    if not has_library():
        raise library_missing("duckdb", "sql")


def has_library() -> bool:
    """Whether `millpond[sql]` is installed."""
    from importlib.util import find_spec

    return find_spec("duckdb") is not None and find_spec("pyarrow") is not None
