"""Requests that wait share one watch of the batches, whose pages are read once for all."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from millpond.serve.waiting import waits
from millpond.serve.waiting.waits import Watch
from suite.waiting import wait_until_async


class Numbers:
    """Batches that a test commits; a look takes some seconds."""

    def __init__(self, look_seconds: float = 0.0) -> None:
        self.batch = 0
        self.threads: set[int] = set()
        self._look_seconds = look_seconds

    def look(self, last: int | None) -> tuple[int | None, str]:
        """As `BatchSource.look`."""
        self.threads.add(threading.get_ident())
        time.sleep(self._look_seconds)
        return self.batch, ""

    def pause(self) -> None:
        """As `BatchSource.pause`."""
        time.sleep(0.005)


def test_a_page_is_read_once_until_the_next_batch_and_again_after_an_error() -> None:
    made: list[str] = []

    async def run() -> None:
        watch = Watch(Numbers())

        async def make(text: str, *, fails: bool = False) -> str:
            made.append(text)
            await asyncio.sleep(0.01)
            if fails:
                raise OSError(text)
            return text

        assert await asyncio.gather(*(watch.once("key", lambda: make("one")) for _ in range(5))) == ["one"] * 5
        assert await watch.once("key", lambda: make("two")) == "one"
        watch.forget("key")
        assert await watch.once("key", lambda: make("three")) == "three"
        for _ in range(2):
            with pytest.raises(OSError, match="broken"):
                await watch.once("other", lambda: make("broken", fails=True))
        assert await watch.once("other", lambda: make("mended")) == "mended"

    asyncio.run(run())
    assert made == ["one", "three", "broken", "broken", "mended"]


def test_a_watch_goes_on_while_somebody_waits_however_long_a_look_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_QUIET_SECONDS", 0.05)
    source = Numbers(look_seconds=0.1)

    async def run() -> None:
        watch = Watch(source)
        await watch.beyond(0, 60)
        assert (watch.count, watch.batch) == (1, 0)
        await watch.beyond(1, 0.5)
        assert (watch.count, watch.batch) == (1, 0), "nothing has happened"
        source.batch = 1
        await watch.beyond(1, 60)
        assert (watch.count, watch.batch) == (2, 1)
        assert len(source.threads) == 1
        await wait_until_async(lambda: not watch.is_used, "nobody who waits")
        assert watch.batch is None

    asyncio.run(run())
