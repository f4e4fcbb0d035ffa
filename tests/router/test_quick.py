"""The router's quick way says what its slow way says, byte for byte, and leaves to it what it can't answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.types import Receive, Scope, Send

import millpond
from millpond.client.transport import Waiting
from millpond.router.door import RouterDoor
from millpond.router.pond import ShardedPond
from millpond.router.quick.asking import QuickServers
from millpond.router.quick.lookups import QuickLookups
from millpond.router.servers import Server
from millpond.serve.access.access import Access
from millpond.serve.access.gate import gate
from millpond.serve.access.tokens import add_token
from millpond.serve.metrics.counts import Meter
from millpond.settings import RouterSettings, ServeSettings
from servers.shards import ShardServer, shard_servers
from spark_files.golden import TYPES
from suite.sizes import examples
from suite.waiting import wait_until_async

pytestmark = pytest.mark.long

# Only the slow way reads this header, and it changes nothing.
SLOW = {"if-none-match": '"none"'}
PACKED_BYTES = 600
AGE = re.compile(rb'"(age_seconds|event_lag_seconds|behind_seconds)":[0-9.e+-]+')


@dataclass
class Routed:
    """A router in this process, whose quick way has much patience.

    slow:  how many requests the slow way has answered
    """

    client: httpx.AsyncClient
    access: Access
    pond: ShardedPond
    slow: int = 0


@contextlib.asynccontextmanager
async def routed(urls: list[str], settings: ServeSettings) -> AsyncIterator[Routed]:
    """A router of these servers."""
    with millpond.connect_shards(urls) as pond:
        quick, access, meter = (
            QuickServers(pond.settings, asyncio.get_running_loop(), patience_seconds=30),
            Access(settings),
            Meter(),
        )
        door = RouterDoor(pond, settings, access, meter, quick)
        application = door.application()

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            found.slow += 1
            await application(scope, receive, send)

        app = gate(QuickLookups(counted, door, quick), access, meter)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60) as client:
            found = Routed(client, access, pond)
            yield found
        quick.close()
        door.statements.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    """On a loop of its own."""
    asyncio.run(work())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def servers(types_pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardServer]]:
    with shard_servers(types_pond, ["0-9", "10-31"], tmp_path_factory.mktemp("quick"), copies=2) as started:
        yield started


class Drawn:
    """Random questions for the row of a key, most of them good ones."""

    def __init__(self, draw: random.Random, keys: dict[str, list[Any]]) -> None:
        self._draw = draw
        self._keys = keys

    def value(self, name: str) -> Any:
        draw = self._draw
        other = draw.choice([None, True, 5, -1, 1.5, "", "a", "2020-01-01", [], {}, 10**30])
        return draw.choice(self._keys[name]) if draw.random() < 0.92 else other

    def request(self) -> tuple[str, str, bytes | None, dict[str, str]]:
        """Method, path, body and headers."""
        draw = self._draw
        name = draw.choice(list(self._keys))
        headers = dict(
            draw.choices(
                [
                    (),
                    (("accept", "application/json"),),
                    (("accept", "text/csv"),),
                    (("accept", "nothing/there"),),
                    (("accept-encoding", "gzip"),),
                    (("accept-encoding", "identity"),),
                    (("host", "localhost:1"), ("x", "y")),
                ],
                [12, 6, 1, 1, 6, 6, 1],
            )[0]
        )
        table = name if draw.random() < 0.97 else draw.choice(["nothing", "a%2Fb", "%6Cong", ""])
        if draw.random() < 0.5:
            value = self.value(name)
            text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
            written = quote(text.encode("utf-8", "surrogateescape"), safe=draw.choice(["", ":+,"]))
            query = draw.choices(
                [
                    "k={}",
                    "k={}&_limit=1",
                    "k={}&_min_batch=0",
                    "k={}&k={}",
                    "{}=1",
                    "k__isnull=1",
                    "n={}",
                    "k={}&",
                    "%6B={}",
                    "_x={}",
                    "",
                ],
                [30, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1],
            )[0]
            return "GET", f"/tables/{table}/rows?{query.replace('{}', written)}", None, headers
        keys = [{"k": self.value(name)} for _ in range(draw.choice([0, 1, 1, 1, 1, 2, 3]))]
        body: Any = {"keys": keys}
        match draw.randrange(30):
            case 0:
                body = keys
            case 1:
                body["bounds"] = {"min_batch": 0}
            case 2:
                body["closed"] = True
            case 3:
                body["x"] = 1
            case 4:
                body["keys"] = [*keys, {"k": 1, "n": 2}]
            case 5:
                body["keys"] = [*keys, {}]
            case 6:
                body["keys"] = keys * 200
            case 7:
                body["keys"] = 5
        text = json.dumps(body, ensure_ascii=draw.random() < 0.9)
        data = text.encode("utf-8", "surrogateescape") if draw.random() < 0.97 else draw.choice([b"", b"{", text.encode("utf-16")])
        return "POST", f"/tables/{table}/rows:get", data, headers


def same(quick: httpx.Response, slow: httpx.Response) -> bool:
    """Whether two answers are the same but for ages.

    An age may have a digit more a moment later, so that one of two answers of about `PACKED_BYTES` is packed and the other isn't.
    """
    either = any(abs(len(answer.content) - PACKED_BYTES) < 100 for answer in (quick, slow))
    left_out = {b"content-length", *([b"content-encoding"] if either else [])}

    def plain(answer: httpx.Response) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        headers = [(n, AGE.sub(b"age", v)) for n, v in answer.headers.raw if n not in left_out]
        return answer.status_code, AGE.sub(b"age", answer.content), headers

    return plain(quick) == plain(slow)


def test_both_ways_say_the_same_of_random_questions(servers: list[ShardServer]) -> None:
    async def ask() -> None:
        draw = random.Random("quick")
        # Answers of a few rows are packed; those of a thousand bytes are too large.
        settings = ServeSettings(gzip_bytes=PACKED_BYTES, max_answer_bytes=1000, max_keys=500)
        async with (
            routed([server.url for server in servers], settings) as router,
            routed([s.url for s in servers], ServeSettings()) as all_rows,
        ):
            keys: dict[str, list[Any]] = {}
            for name in TYPES:
                answer = await all_rows.client.get(f"/tables/{name}/rows")
                if answer.status_code == 200 and "k" in answer.json()["rows"][0]:
                    keys[name] = [row["k"] for row in answer.json()["rows"]]
            assert len(keys) > 10
            drawn, by_quick = Drawn(draw, keys), 0
            for _ in range(examples(1600, one_of=10)):
                method, path, body, headers = drawn.request()
                before = router.slow
                short = await router.client.request(method, path, content=body, headers=headers)
                by_quick += router.slow == before
                slow = await router.client.request(method, path, content=body, headers={**headers, **SLOW})
                assert same(short, slow), (method, path, body, headers, short.content, slow.content)
            assert by_quick > examples(1600, one_of=10) / 5

    run(ask)


def test_a_reader_reads_only_what_it_may_as_often_as_it_may(servers: list[ShardServer], tmp_path: Path) -> None:
    async def ask() -> None:
        tokens = tmp_path / "tokens.json"
        one, two = ({"authorization": f"Bearer {add_token(tokens, name, tables=['long'])}"} for name in ("one", "two"))
        async with routed([server.url for server in servers], ServeSettings(tokens=tokens)) as router:

            async def status(table: str, headers: dict[str, str]) -> int:
                answer = await router.client.post(f"/tables/{table}/rows:get", headers=headers, content=b'{"keys": [{"k": 5}]}')
                return answer.status_code

            for table in ("long", "integer"):
                router.pond[table].get(k=5)
            assert [await status("long", one), router.slow] == [200, 0]
            assert [await status("integer", one), await status("long", {})] == [403, 401]
            router.access.use(ServeSettings(tokens=tokens, requests_per_second=0.01))  # one at first
            assert [await status("long", one) for _ in range(3)] == [200, 429, 429]
            assert [await status("long", two) for _ in range(2)] == [200, 429]

    run(ask)


def test_copies_that_hang_or_end_or_come_back_change_no_answer(servers: list[ShardServer]) -> None:
    """No lookup is left to the slow way while a copy answers."""

    async def ask() -> None:
        draw = random.Random("copies")
        urls = [server.url for server in servers]
        async with routed(urls, ServeSettings()) as router:
            rows = [row for row in (await router.client.get("/tables/long/rows")).json()["rows"] if row["k"] is not None]
            router.slow = 0

            async def look() -> None:
                some = draw.choices(rows, k=20)
                answers = await asyncio.gather(*(router.client.get(f"/tables/long/rows?k={row['k']}") for row in some))
                assert [answer.json()["rows"] for answer in answers] == [[row] for row in some]

            await look()
            for _ in range(examples(12, 3)):
                server = draw.choice(servers)
                if draw.random() < 0.5:
                    assert server.process is not None
                    server.process.send_signal(signal.SIGSTOP)
                    await look()
                    await look()
                    server.process.send_signal(signal.SIGCONT)
                else:
                    server.kill()
                    await look()
                    await asyncio.to_thread(server.start)
                await look()
            assert router.slow == 0

    run(ask)


class BadServer:
    """Answers each request with its path as the body, and often badly."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._talks: set[asyncio.Task[Any]] = set()

    async def end(self) -> None:
        """End all connections."""
        for task in list(self._talks):
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if size := re.search(rb"content-length: (\d+)", head):
                    await reader.readexactly(int(size[1]))
                await self._answer(writer, head.split()[1])
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._talks.discard(task)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        draw = self._draw
        good = b"HTTP/1.1 200 OK\r\nMillpond-Definition: d\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        other = good.replace(body, body[::-1])
        match draw.choice(
            ["good", "good", "pieces", "chunks", "two", "half", "noise", "early", "error", "close", "end", "gone", "hang"]
        ):
            case "good":
                writer.write(good)
            case "pieces":
                for place in range(0, len(good), 40):
                    writer.write(good[place : place + 40])
                    await asyncio.sleep(draw.random() / 500)
            case "chunks":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            case "two":
                writer.write(good + draw.choice([other, other[:20], b"x"]))
            case "half":
                writer.write(good[: draw.randrange(len(good))])
                raise OSError
            case "noise":
                writer.write(draw.choice([draw.randbytes(200), b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"\r\n" * 9]))
            case "early":
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" + good)
            case "error":
                writer.write(other.replace(b"200 OK", b"503 No", 1))
            case "close":
                writer.write(good.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                raise OSError
            case "end":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
                raise OSError
            case "gone":
                raise OSError
            case "hang":
                await asyncio.sleep(0.5)
                writer.write(good)
        await writer.drain()


@pytest.mark.parametrize("seed", range(examples(8, 2)))
def test_no_bad_server_makes_an_answer_of_another_question(seed: int) -> None:
    async def ask() -> None:
        bad, found = [BadServer(seed), BadServer(seed + 1000)], Counter[str]()
        listeners = [await asyncio.start_server(server.talk, "127.0.0.1", 0) for server in bad]
        settings = RouterSettings(hedge_seconds=0.02, rest_seconds=0.01)
        servers = [
            Server(Waiting(f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}", None, False, settings.client))
            for each in listeners
        ]
        quick = QuickServers(settings, asyncio.get_running_loop(), patience_seconds=0.2)

        async def one(number: int) -> None:
            path = f"/tables/t{number}x".encode()
            answer = await quick.try_ask(servers[: 1 + number % 2], path, b"{}" if number % 3 else None)
            assert answer is None or answer.body == path
            assert all(len(quick.lines(server)) <= 64 for server in servers)
            found["none" if answer is None else "answered"] += 1

        for begin in range(0, 1500, 300):
            await asyncio.gather(*(one(number) for number in range(begin, begin + 300)))
        numbers = itertools.count(1500)

        async def enough() -> bool:
            """A busy machine answers few of so many in their time: ask fewer at once."""
            if min(found["none"], found["answered"]) > 100:
                return True
            await asyncio.gather(*(one(next(numbers)) for _ in range(10)))
            return False

        await wait_until_async(enough, "enough of both kinds of answers")
        quick.close()
        for listener, server, each in zip(listeners, servers, bad, strict=True):
            listener.close()
            server.transport.close()
            await each.end()

    run(ask)
