"""A network between a client and a server that delays, stalls and cuts connections: a TCP proxy."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Weather:
    """What the network does, drawn for each piece of bytes that passes.

    delay_seconds:  the longest delay
    cut, stall:     the probability that a piece is cut in two and the connection closed after the first half; and that
                    nothing comes through any more, while the connection stays open
    is_down:        no piece passes, and no connection is closed
    done:           how often each of these happened
    """

    delay_seconds: float = 0.0
    cut: float = 0.0
    stall: float = 0.0
    is_down: bool = False
    done: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def network(port: int, weather: Weather, seed: int) -> Iterator[str]:
    """The address of a server of this machine as it is reached through such a network."""
    loop = asyncio.new_event_loop()
    draw = random.Random(seed)
    tasks: set[asyncio.Task[None]] = set()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if weather.is_down or draw.random() < weather.stall:
                weather.done["stalled"] += 1
                await asyncio.Event().wait()
            if weather.delay_seconds:
                weather.done["delayed"] += 1
                await asyncio.sleep(draw.random() * weather.delay_seconds)
            if draw.random() < weather.cut:
                weather.done["cut"] += 1
                writer.write(piece[: draw.randrange(len(piece))])
                return
            writer.write(piece)
            await writer.drain()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        there: asyncio.StreamWriter | None = None
        ways: list[asyncio.Future[None]] = []
        try:
            back, there = await asyncio.open_connection("127.0.0.1", port)
            ways += [asyncio.ensure_future(way) for way in (passed(reader, there), passed(back, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # the server is gone, or the network ends: so does the connection
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            tasks.discard(task)
            for end in (writer, there):
                if end is not None:
                    end.close()

    async def ended() -> None:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(ended(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
