"""Signals that ask a command to end may come at any moment, and several at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from millpond.signals import SignalEvent
from suite.programs import started
from suite.waiting import PATIENCE_SECONDS

# A signal comes before each line of Python that the wait, the handler and the event are made of.
_EVERYWHERE = """
import signal, sys
from millpond.signals import stop_signals

def interrupt(frame, kind, _):
    signal.raise_signal(signal.SIGINT)
    return interrupt

for wait in (lambda event: event.wait(0.01), lambda event: event.is_set(), lambda event: event.set()):
    with stop_signals() as ending:
        sys.settrace(interrupt)
        wait(ending)
        sys.settrace(None)
        assert ending.wait(1) and ending.is_set()
print("ended")
"""
_IN_A_ROW = """
from millpond.signals import stop_signals

while True:
    with stop_signals() as ending:
        print("waits", flush=True)
        while not ending.wait(0.2):
            pass
        print("ends", flush=True)
        input()  # within: the second signal may come late
"""


def test_a_signal_may_come_at_any_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EVERYWHERE], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stdout == "ended\n", done.stderr


def test_signals_in_a_row_end_a_wait() -> None:
    with started([sys.executable, "-c", _IN_A_ROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdin is not None
        assert waiting.stdout is not None
        timer = threading.Timer(PATIENCE_SECONDS, waiting.kill)
        timer.daemon = True
        timer.start()
        for _ in range(50):
            assert waiting.stdout.readline() == "waits\n"
            waiting.send_signal(signal.SIGINT)
            waiting.send_signal(signal.SIGINT)
            assert waiting.stdout.readline() == "ends\n", "it waits for ever"
            waiting.stdin.write("\n")
            waiting.stdin.flush()
        timer.cancel()
        waiting.kill()


def test_an_event_wakes_all_that_wait() -> None:
    event = SignalEvent()
    assert not event.wait(0.01)
    found: list[bool] = []
    waiting = [threading.Thread(target=lambda: found.append(event.wait(PATIENCE_SECONDS))) for _ in range(3)]
    for each in waiting:
        each.start()
    event.set()
    for each in waiting:
        each.join(PATIENCE_SECONDS)
    assert found == [True, True, True]
    assert event.is_set()
    assert event.wait(0)
