"""What a connection of HTTP/2 counts: calls, bytes, and bodies that would unpack."""

from __future__ import annotations

import random
from typing import Any

import pytest

from suite.sizes import examples

pa = pytest.importorskip("pyarrow")
pytest.importorskip("google.protobuf")

from millpond.serve.flight.frames import BrokenProtocol, OpenCalls, check_message, is_compressed  # noqa: E402
from millpond.serve.flight.messages import plain  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, END = 0, 1, 3, 4, 1


def frame(kind: int, flags: int, stream: int, contents: bytes = b"") -> bytes:
    return len(contents).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + contents


def message(data: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(data).to_bytes(4) + data


def calls(most: int = 10_000) -> OpenCalls:
    return OpenCalls(most, lambda: 1.0)


def test_open_calls_are_counted_however_the_bytes_come() -> None:
    draw = random.Random(3)
    for _ in range(examples(200, 50)):
        found, sent, answered, expected = calls(), PREFACE + frame(SETTINGS, 0, 0), b"", set()
        unsent: set[int] = set()
        for stream in range(1, 2 * draw.randrange(2, 12), 2):
            is_whole = draw.random() < 0.5
            sent += frame(HEADERS, END if draw.random() < 0.2 else 0, stream, draw.randbytes(draw.randrange(30)))
            body = message(plain("FlightData", data_header=draw.randbytes(20)))
            cut = draw.randrange(len(body))
            sent += frame(DATA, 0, stream, body[:cut]) + frame(DATA, END if is_whole else 0, stream, body[cut:])
            end = draw.randrange(3)
            if end == 0:
                sent += frame(RESET, 0, stream, bytes(4))
            elif end == 1:
                answered += frame(HEADERS, 0, stream) + frame(DATA, 0, stream, b"x" * 50) + frame(HEADERS, END, stream)
            else:
                expected.add(stream)
        for data, take in ((sent, found.sent), (answered, found.answered)):
            place = 0
            while place < len(data):
                size = draw.choice((1, 2, 7, 100, 1000))
                take(data[place : place + size])
                place += size
        assert len(found) == len(expected)
        assert not found.is_partial
        assert not unsent


def test_a_call_that_isnt_sent_whole_is_known() -> None:
    found = calls()
    found.sent(PREFACE)
    assert found.since is None
    found.sent(frame(HEADERS, 0, 1))
    assert found.since == 1.0
    found.sent(frame(DATA, END, 1, message(b"")))
    assert found.since is None
    assert len(found) == 1
    found.sent(b"\0")
    assert found.is_partial


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "doesn't speak"),
        (PREFACE + frame(HEADERS, 0, 1) + frame(DATA, 0, 1, message(bytes(10), flag=1)), "compressed messages"),
        (PREFACE + frame(HEADERS, 0, 1) + frame(DATA, 8, 1, bytes(10)), "padded"),
        (PREFACE + frame(HEADERS, 0, 1) + frame(DATA, 0, 1, b"\0" + (20_000).to_bytes(4)), "a message has over"),
        (PREFACE + frame(HEADERS, 0, 1) + frame(DATA, 0, 1, message(b"\xff\xff")), "isn't one of Flight"),
        (PREFACE + b"".join(frame(HEADERS, 0, n) + frame(DATA, 0, n, message(b"")[:4] * 500) for n in range(1, 21, 2)), "over"),
    ],
)
def test_what_ends_a_connection(data: bytes, reason: str) -> None:
    with pytest.raises(BrokenProtocol, match=reason):
        calls().sent(data)


def test_noise_is_refused_or_counted() -> None:
    draw = random.Random(4)
    for _ in range(examples(500, 100)):
        found = calls()
        noise = PREFACE[: draw.choice((0, 5, 24))] + draw.randbytes(draw.randrange(200))
        try:
            found.sent(noise)
        except BrokenProtocol:
            continue


def headers_of(batch: Any, codec: str | None) -> list[bytes]:
    """The heads of the messages of a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [each.metadata.to_pybytes() for each in reader]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_a_compressed_batch_is_known_by_its_head(codec: str | None) -> None:
    draw = random.Random(5)
    for _ in range(examples(60, 20)):
        kinds = [pa.array([draw.randrange(9)]), pa.array(["x" * draw.randrange(2000)]), pa.array([[1, 2]]), pa.array([{"a": "b"}])]
        kinds.append(pa.array(["d" * draw.randrange(300)]).dictionary_encode())
        some = [draw.choice(kinds) for _ in range(draw.randrange(1, 6))]
        batch = pa.record_batch(some, [f"c{n}" for n in range(len(some))])
        schema, *rest = headers_of(batch, codec)
        assert not is_compressed(schema)
        assert rest
        for head in rest:
            assert is_compressed(head) == (codec is not None)
            data = plain("FlightData", data_header=head)
            if codec is None:
                check_message(data)
            else:
                with pytest.raises(BrokenProtocol, match="compressed record batches"):
                    check_message(data)
            noise = bytearray(head)
            for _ in range(draw.randrange(1, 5)):
                noise[draw.randrange(len(noise))] = draw.randrange(256)
            assert is_compressed(bytes(noise[: draw.randrange(len(noise))])) in (True, False)
