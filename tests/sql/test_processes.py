"""The processes for statements: what isn't a statement's fault is said as it is, and no process is lost by it."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millpond.errors import MillpondError
from millpond.serve.sql import messages as say
from millpond.serve.sql.pool import SqlPool
from millpond.settings import ServeSettings
from millpond.tables.sql.reading.opened import OpenedTables
from suite.sizes import examples

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def pool() -> Iterator[SqlPool]:
    made = SqlPool()
    yield made
    made.close()


def nothing(_names: list[Any], *, is_dry: bool) -> OpenedTables:
    return OpenedTables()


def asked(question: str) -> Callable[[int], say.Ask]:
    return lambda number: say.Ask(number, question, "json", 10, 10**6, 30.0, None)


def answer(pool: SqlPool, question: str, before: Callable[[int], object] = lambda _: None) -> tuple[int, bytes]:
    """The id of the process, and its answer."""
    session, close = pool.begin(asked(question), nothing, ServeSettings())
    try:
        before(session.pid)
        return session.pid, b"".join(iter(session.next, None))
    finally:
        close()


ONE = '["SELECT 1 AS one", null]'


def test_a_mistake_of_ours_is_said_to_be_one_and_ends_its_process(pool: SqlPool, caplog: pytest.LogCaptureFixture) -> None:
    first, said = answer(pool, ONE)
    assert said == b'{"one":1}'
    with pytest.raises(MillpondError) as wrong:
        answer(pool, "no JSON")
    assert (wrong.value.condition, wrong.value.context) == ("INTERNAL_ERROR", {})
    assert "JSONDecodeError" in wrong.value.message
    assert "memory" not in str(wrong.value)
    (logged,) = [record for record in caplog.records if "sql.mistake" in record.getMessage()]
    assert "Traceback" in logged.getMessage()
    second, said = answer(pool, ONE)
    assert (first != second, said) == (True, b'{"one":1}')


def test_a_question_that_cant_be_made_costs_no_process(pool: SqlPool) -> None:
    first, _ = answer(pool, ONE)

    def broken(_number: int) -> say.Ask:
        raise ValueError("no question")

    for _ in range(3):
        with pytest.raises(ValueError, match="no question"):
            pool.begin(broken, nothing, ServeSettings())
    assert answer(pool, ONE)[0] == first


@pytest.mark.parametrize(("number", "says_memory"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_how_a_process_ended_is_said(pool: SqlPool, number: int, says_memory: bool) -> None:
    with pytest.raises(MillpondError) as ended:
        answer(pool, ONE, lambda pid: os.kill(pid, number))
    assert ended.value.condition == "SQL_ENDED"
    assert signal.Signals(number).name in ended.value.message
    assert ("memory" in ended.value.message) is says_memory


def test_a_statement_that_was_closed_before_its_turn_disturbs_no_other_one(pool: SqlPool) -> None:
    """A client leaves while the thread that would ask for it still waits: by then the process answers somebody else."""
    answer(pool, ONE)
    late, close_late = pool.begin(asked('["SELECT 1 AS late", null]'), nothing, ServeSettings())
    close_late()
    other, close_other = pool.begin(asked('["SELECT 2 AS other", null]'), nothing, ServeSettings())
    assert other.pid == late.pid
    with pytest.raises(MillpondError) as ended:
        late.next()
    assert ended.value.condition == "READ_TOO_LONG"
    assert b"".join(iter(other.next, None)) == b'{"other":2}'
    close_other()
    close_late()  # again, which gives no process back twice
    close_other()
    first, _ = pool.begin(asked(ONE), nothing, ServeSettings())
    second, _ = pool.begin(asked(ONE), nothing, ServeSettings())
    assert first.pid != second.pid


@pytest.mark.long
def test_statements_of_clients_that_leave_at_any_moment_give_no_answer_to_others(pool: SqlPool) -> None:
    """Threads ask for numbers; each statement is closed by another thread, sooner or later."""
    wrong: list[object] = []

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        for number in range(examples(60)):
            wanted = seed * 1000 + number
            session, close = pool.begin(asked(f'["SELECT {wanted} AS n", null]'), nothing, ServeSettings())
            leaving = threading.Timer(draw.choice([0, 0, 0.001, 0.005, 30]), close)
            leaving.start()
            try:
                found = b"".join(iter(session.next, None))
                if found not in (b"", b'{"n":%d}' % wanted):
                    wrong.append((wanted, found))
            except MillpondError as error:
                if error.condition != "READ_TOO_LONG":
                    wrong.append(error)
            finally:
                leaving.cancel()
                close()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert wrong == []
    assert not any(each.is_alive() for each in threads)
