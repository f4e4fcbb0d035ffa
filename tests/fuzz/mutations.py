"""Ways to damage a file: each takes bytes and a seeded random source, and returns other bytes.

`inside` damages the content of a compressed stream and packs it again, so that the damage reaches the decoder.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import cramjam
import lz4.block
import xxhash
import zstandard

from millpond.checkpoint.files.codecs import decompress

_VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**31, 2**63, 10**30, 1.5, 1e308, float("inf"), float("nan"), "", "x", "v9", "../../x", "\x00", "\ud800",
    "/etc/passwd", "file:///", "s3://x", "a" * 300, [], [1], [None], [[]], {}, {"a": 1}, "decimal(99,5)", "struct", "long",
)  # fmt: skip

Mutate = Callable[[bytes, Random], bytes]

_EXTREMES = (
    0,
    1,
    2,
    3,
    5,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_WORDS = (
    b"null",
    b"-1",
    b"[]",
    b"{}",
    b'""',
    b"1e999",
    b"9" * 30,
    b"9" * 5000,
    b"[" * 3000,
    b"\x00",
    b"\xff",
    b"\\u0000",
    b"../../x",
    b"true",
)


def flip_a_bit(data: bytes, random: Random) -> bytes:
    """Flip a bit: the only damage that every checksum must find."""
    if not data:
        return b"\x01"
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def set_bytes(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data) + 1)
    size = random.choice((1, 1, 2, 4, 16))
    return data[:place] + random.randbytes(size) + data[place + size :]


def truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def extend(data: bytes, random: Random) -> bytes:
    more = random.choice((b"\x00", data[: random.randrange(1, 64)], random.randbytes(random.randrange(1, 64))))
    return data + more


def splice(data: bytes, random: Random) -> bytes:
    """Copy a piece of the file over another one."""
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    target = random.randrange(len(data) + 1)
    return data[:target] + data[begin : min(end, begin + 4096)] + data[target + random.choice((0, end - begin)) :]


def duplicate(data: bytes, random: Random) -> bytes:
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[begin : min(end, begin + 65536)] * random.choice((1, 1, 2, 8)) + data[end:]


def cut_out(data: bytes, random: Random) -> bytes:
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:begin] + data[end:]


def set_a_length(data: bytes, random: Random) -> bytes:
    """Put an extreme whole number of 2, 4 or 8 bytes where one may be."""
    code = random.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(code)
    place = random.randrange(max(1, len(data) - size + 1))
    value = random.choice(_EXTREMES) & ((1 << 8 * size) - 1)
    return data[:place] + struct.pack(code, value) + data[place + size :]


def put_a_word(data: bytes, random: Random) -> bytes:
    """Put a word in place of a value: words of JSON, and texts that break paths or numbers."""
    place = random.randrange(len(data) + 1)
    begins = [i for i in range(place, min(len(data), place + 200)) if data[i : i + 1] in b':,["']
    begin = (begins[0] + 1) if begins else place
    end = next((i for i in range(begin + 1, min(len(data), begin + 200)) if data[i : i + 1] in b',}]"'), begin)
    return data[:begin] + random.choice(_WORDS) + data[end:]


MUTATIONS: tuple[Mutate, ...] = (
    flip_a_bit, flip_a_bit, set_bytes, truncate, extend, splice, duplicate, cut_out, set_a_length, set_a_length, put_a_word,
)  # fmt: skip


def change_a_value(data: bytes, random: Random) -> bytes:
    """Change a value somewhere in one line's JSON.  JSON inside a text stays as it is."""
    lines = data.split(b"\n")
    places = [i for i, line in enumerate(lines) if line[:1] in (b"{", b"[")]
    if not places:
        return put_a_word(data, random)
    place = random.choice(places)
    whole = data.startswith(b"{\n")
    tree = json.loads(data if whole else lines[place])
    root: Any = [tree]
    node, key = root, 0
    while isinstance(node[key], dict | list) and node[key] and random.random() < 0.85:
        node = node[key]
        key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
    if isinstance(node, dict) and random.random() < 0.15:
        del node[key]
    else:
        node[key] = random.choice(_VALUES)
    return (
        json.dumps(root[0]).encode() if whole else b"\n".join([*lines[:place], json.dumps(root[0]).encode(), *lines[place + 1 :]])
    )


def graft(data: bytes, random: Random) -> bytes:
    """Copy a value of the JSON over another one: right in itself, but in the wrong place."""
    lines = data.split(b"\n")
    places = [i for i, line in enumerate(lines) if line[:1] in (b"{", b"[")]
    if not places:
        return splice(data, random)
    place = random.choice(places)
    whole = data.startswith(b"{\n")
    root: Any = [json.loads(data if whole else lines[place])]
    nodes = [(node, key) for node in _nodes(root) for key in (list(node) if isinstance(node, dict) else range(len(node)))]
    (source, from_key), (target, to_key) = random.choice(nodes), random.choice(nodes)
    # Mostly members of the same name: a type for a type, an expression for an expression.
    alike = [(node, key) for node, key in nodes if key == from_key and isinstance(key, str)]
    if alike and random.random() < 0.8:
        target, to_key = random.choice(alike)
    target[to_key] = json.loads(json.dumps(source[from_key]))
    text = json.dumps(root[0]).encode()
    return text if whole else b"\n".join([*lines[:place], text, *lines[place + 1 :]])


def say_twice(data: bytes, random: Random) -> bytes:
    """Repeat a member of an object, with another value."""
    begins = [i for i in range(len(data) - 1) if data[i : i + 1] == b"{" and data[i + 1 : i + 2] == b'"']
    if not begins:
        return put_a_word(data, random)
    begin = random.choice(begins) + 1
    name = data[begin : data.index(b'"', begin + 1) + 1]
    return data[:begin] + name + b":" + json.dumps(random.choice(_VALUES)).encode() + b"," + data[begin:]


def _nodes(root: Any) -> list[Any]:
    found, level = [], [root]
    while level:
        found += level
        children = [v for node in level for v in (node.values() if isinstance(node, dict) else node)]
        level = [v for v in children if isinstance(v, dict | list) and v]
    return found


JSON_MUTATIONS: tuple[Mutate, ...] = (change_a_value, change_a_value, graft, graft, say_twice)


def inside_schema(mutate: Mutate) -> Mutate:
    """Damage one text of a state schema file of version 2 or 3, and correct the lengths."""

    def mutate_text(data: bytes, random: Random) -> bytes:
        texts = list(_texts(data))
        if not texts:
            return mutate(data, random)
        begin, end = random.choice(texts)
        text = mutate(data[begin + 6 : end], random)[:0xFFFF]
        return data[:begin] + struct.pack(">iH", 1, len(text)) + text + data[end:]

    return mutate_text


def _texts(data: bytes) -> Iterator[tuple[int, int]]:
    """The positions of JSON texts that are in one piece, with count and length before them."""
    for found in re.finditer(rb"\x00\x00\x00\x01(..)\{", data, re.DOTALL):
        end = found.start() + 6 + int.from_bytes(found[1], "big")
        if end <= len(data) and data[end - 1 : end] == b"}":
            yield found.start(), end


def repack(codec: str, data: bytes) -> bytes:
    """A state file of that content, as the codec's writer on the JVM would write it."""
    if codec == "lz4":
        blocks = [data[i : i + 32768] for i in range(0, len(data), 32768)]
        return b"".join(map(_lz4_block, blocks)) + b"LZ4Block" + struct.pack("<Biii", 0x15, 0, 0, 0)
    if codec == "zstd":
        return zstandard.compress(data)
    if codec == "snappy":
        packed = bytes(cramjam.snappy.compress_raw(data))
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(packed)) + packed
    assert codec == "lzf", codec
    chunks = [data[i : i + 0xFFFF] for i in range(0, len(data), 0xFFFF)]
    return b"".join(b"ZV\x00" + struct.pack(">H", len(c)) + c for c in chunks)


def _lz4_block(block: bytes) -> bytes:
    packed = lz4.block.compress(block, store_size=False)
    checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
    return b"LZ4Block" + struct.pack("<Biii", 0x25, len(packed), len(block), checksum) + packed


def inside(codec: str, mutate: Mutate) -> Mutate:
    """Do the same damage inside the compressed stream."""

    def mutate_inside(data: bytes, random: Random) -> bytes:
        return repack(codec, mutate(decompress(codec, data), random))

    return mutate_inside
