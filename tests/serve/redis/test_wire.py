"""Commands are parsed as Redis' own client library writes them, however they are cut; what is no command ends the connection."""

from __future__ import annotations

import random

import pytest

from millpond.serve.redis.wire import BrokenProtocol, Commands, Error, Lines, Simple, encode
from suite.sizes import examples

hiredis = pytest.importorskip("hiredis")


def test_commands_come_out_as_they_went_in() -> None:
    draw = random.Random(3)
    for _ in range(examples(400, 100)):
        sent = [[draw.randbytes(draw.choice((0, 1, 3, 100, 5000))) for _ in range(draw.randrange(1, 6))] for _ in range(5)]
        data = b"".join(hiredis.pack_command(tuple(words)) for words in sent)
        parser, found, at = Commands(1 << 20), list[list[bytes]](), 0
        while at < len(data):
            size = draw.choice((1, 2, 7, 1000, 100_000))
            parser.feed(data[at : at + size])
            at += size
            while (words := parser.next()) is not None:
                found.append(words)
        assert found == sent
        assert not parser.is_partial


def test_inline_commands_are_words() -> None:
    parser = Commands(100)
    parser.feed(b"PING\r\n\r\n  GET  a:b \n*1\r\n$4\r\nPING\r\n*0\r\n*-1\r\nECHO x")
    found = []
    while (words := parser.next()) is not None:
        found.append(words)
    assert found == [[b"PING"], [b"GET", b"a:b"], [b"PING"]]
    assert parser.is_partial


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*99999999\r\n", "invalid multibulk length"),
        (b"*99999999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$1001\r\n", "invalid bulk length"),
        (b"*2\r\n$600\r\n" + b"x" * 600 + b"\r\n$600\r\n", "invalid bulk length"),
        (b"x" * 70_000, "too big inline request"),
        (b"*1\r\n" + b"$" * 70_000, "too big inline request"),
    ],
)
def test_what_is_no_command_is_an_error(data: bytes, why: str) -> None:
    parser = Commands(1000)
    parser.feed(data)
    with pytest.raises(BrokenProtocol) as broken:
        list(iter(parser.next, None))
    assert str(broken.value) == why


@pytest.mark.parametrize("data", [b"*11\r\n", b"*1\r\n$16385\r\n"])
def test_a_stranger_may_send_little(data: bytes) -> None:
    parser = Commands(1 << 20)
    parser.is_stranger = True
    parser.feed(data)
    with pytest.raises(BrokenProtocol, match="unauthenticated"):
        parser.next()


def test_replies_are_read_by_redis_own_library() -> None:
    replies = [b"\x00\xff", b"", 7, -1, None, [b"a", [1, None]], [], Simple("OK"), Lines("two\nlines")]
    for protocol in (2, 3):
        reader = hiredis.Reader()
        for reply in replies:
            reader.feed(encode(reply, protocol))
            expected = reply.text.encode() if isinstance(reply, Simple | Lines) else reply
            assert reader.gets() == expected
        reader.feed(encode({b"a": 1, b"b": None}, protocol))
        assert reader.gets() == ({b"a": 1, b"b": None} if protocol == 3 else [b"a", 1, b"b", None])
        reader.feed(encode(Error("ERR a\r\nb"), protocol))
        assert str(reader.gets()) == "ERR a b"
