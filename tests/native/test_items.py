"""The compiled library merges and reads sketches of frequent items as Python does, and refuses those that Python refuses."""

from __future__ import annotations

import random
import struct
from collections import Counter
from typing import Any

import pytest

from millpond.errors import MillpondError
from millpond.native import items, library
from millpond.schema.definition.expression import Expression
from millpond.schema.types import atomic
from millpond.tables.finish.buffers.items import _LEAST_LG, TopItems, _Sketch
from suite.sizes import a_few, examples

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")

WHOLE = {"byte": 8, "short": 16, "integer": 32, "date": 32, "long": 64, "timestamp": 64, "timestamp_ntz": 64}
LETTERS = "aé€𝄞\0\x7f\u0080\ud7ff\ue000\U0010ffff"
FLOATS = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, -2.5]


def make_item(draw: random.Random, of: str) -> Any:
    if of in WHOLE:
        bits = WHOLE[of]
        return draw.choice([draw.randrange(-(1 << bits - 1), 1 << bits - 1), draw.randrange(-9, 9)])
    if of == "double":
        return draw.choice([*FLOATS, draw.gauss(0, 9), draw.gauss(0, 9)])
    if of == "float":
        return draw.choice([*FLOATS, *struct.unpack("<f", struct.pack("<f", draw.gauss(0, 9)))])
    return draw.choice(["", f"h{draw.randrange(9999)}", "".join(draw.choices(LETTERS, k=draw.randrange(9)))])


def make_sketch(draw: random.Random, top: TopItems, of: str, lg_most: int) -> bytes:
    sketch = _Sketch(lg_most, _LEAST_LG, top._hash)
    pool = [make_item(draw, of) for _ in range(draw.choice((0, 1, 6, 30, 400)))]
    for _ in range(draw.choice((1, 3, 50)) if pool else 0):
        for item in draw.sample(pool, draw.randint(1, len(pool))):
            sketch.update(item, draw.choice((1, 1, 1, 2, 50)))
    return top._write(sketch, draw.choice((0, 0, 3, 700)))


def damaged(draw: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(min(len(out), draw.choice((8, 40, 10_000))))
        out[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    return bytes(out[: draw.choice((len(out), len(out), draw.randrange(len(out) + 1)))])


def answer(top: TopItems, sketches: list[bytes]) -> Any:
    """The union's bytes, and what is frequent in it and in the first sketch; the condition if there is none."""
    try:
        (merged,) = top.merge([[data] for data in sketches])
        return merged, repr(top.counted(merged)), repr(top.counted(sketches[0]))
    except MillpondError as error:
        return error.condition


@pytest.mark.parametrize("of", a_few([*WHOLE, "float", "double", "string"], 4))
def test_unions_of_frequent_items_are_pythons_byte_for_byte(of: str) -> None:
    draw, seen = random.Random(of), Counter[str]()
    for _ in range(examples(160)):
        k, lg_most = draw.choice((0, 1, 5, 2000)), draw.choice((3, 4, 5, 8))
        top = TopItems(Expression("aggregate", atomic("binary"), options={"of": atomic(of).to_json(), "k": k}))
        sketches = [make_sketch(draw, top, of, lg_most) for _ in range(draw.choice((1, 2, 2, 5, 30)))]
        if draw.random() < 0.5:
            at = draw.randrange(len(sketches))
            sketches[at] = damaged(draw, sketches[at])
        with library.switched_off():
            expected = answer(top, sketches)
        assert answer(top, sketches) == expected
        found = items.merge_items(sketches, items.KINDS[of])
        seen["by the library"] += found is not None
        seen["refused by both"] += found is None and isinstance(expected, str)
        assert found is None or not isinstance(expected, str)
    assert min(seen["by the library"], seen["refused by both"]) > examples(160) // 16


def test_texts_that_no_jvm_writes_and_other_nans_are_pythons() -> None:
    """Java hashes neither: bytes that aren't UTF-8, a NaN with other bits."""
    head = struct.pack("<BBBBBB2xI4xqqq", 4, 1, 10, 4, 3, 0, 1, 5, 0, 5)
    texts = [b"\x80", b"\xc1\x81", b"\xc3", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xf0\x90\x80"]
    strange = [("string", struct.pack("<i", len(text)) + text) for text in texts]
    strange += [("double", struct.pack("<Q", 0x7FF8000000000001)), ("float", b"\x06" + struct.pack("<I", 0x7FC00001))]
    for of, item in strange:
        sketch = head + item + bytes(8)
        assert items.merge_items([sketch, sketch], items.KINDS[of]) is None
        assert items.top_items(sketch, items.KINDS[of], 5) is None
        top = TopItems(Expression("aggregate", atomic("binary"), options={"of": atomic(of).to_json(), "k": 5}))
        assert [(found.least, found.most) for found in top.counted(top.merge([[sketch], [sketch]])[0])] == [(10, 10)]
