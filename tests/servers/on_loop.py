"""A pond whose reads are awaited, for tests that call them as those of a pond whose reads block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from millpond.router.awaited import AsyncShardedPond, AsyncShardedTable


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, awaited: Any) -> Any:
        """The result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result(120)

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class OnLoop:
    """A pond or a table: each read is awaited on the loop."""

    def __init__(self, loop: Loop, awaited: AsyncShardedPond | AsyncShardedTable) -> None:
        self._loop, self._awaited = loop, awaited

    def __getattr__(self, name: str) -> Any:
        of_definition = {"definition": lambda known: known.definition, "key_order": lambda known: known.keys.order}
        of_definition["columns"] = lambda known: known.definition.columns
        if name in of_definition:
            return of_definition[name](self._loop.run(self._awaited.load()))  # type: ignore[union-attr]
        if name == "job":
            return self._loop.run(self._awaited.get_all(())).cut.job  # type: ignore[union-attr]
        read = getattr(self._awaited, name)

        def ask(*words: Any, **more: Any) -> Any:
            found = read(*words, **more)
            if asyncio.iscoroutine(found):
                found = self._loop.run(found)
            return OnLoop(self._loop, found) if isinstance(found, AsyncShardedTable) else found

        return ask

    def __getitem__(self, name: str) -> OnLoop:
        assert isinstance(self._awaited, AsyncShardedPond)
        table = self._awaited[name]
        self._loop.run(table.load())  # a pond that blocks says at once whether there is such a table
        return OnLoop(self._loop, table)

    def __iter__(self) -> Iterator[str]:
        async def every() -> list[str]:
            return [name async for name in self._awaited]  # type: ignore[union-attr]

        return iter(self._loop.run(every()))


@contextlib.contextmanager
def on_loop(pond: AsyncShardedPond) -> Iterator[Any]:
    """Within this context its reads are called without `await`; it is closed in the end."""
    loop = Loop()
    try:
        loop.run(pond.__aenter__())
        yield OnLoop(loop, pond)
        loop.run(pond.__aexit__(None, None, None))
    finally:
        loop.stop()
