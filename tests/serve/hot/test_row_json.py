"""The compiled library writes rows as JSON like Python, byte for byte; it leaves all other rows to Python."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millpond.checkpoint.rows.unsaferow import encoder
from millpond.native import library
from millpond.replica.row_stamp import stamp, stamp_at_most, stamp_final
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.table import ValueColumn
from millpond.schema.types import Field, atomic
from millpond.serve.hot.row_json import RowWriter
from millpond.tables.scan.binding import Binding
from spark_files.random_rows import TEXTS, WHOLE, bound, value_of

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")


def both(binding: Binding, key: tuple[Any, ...], stored: bytes) -> tuple[bytes | None, bytes | None, bool]:
    """The JSON of both ways, which must be equal, and whether the library wrote it."""
    writer = RowWriter(binding)
    with library.switched_off():
        plain = RowWriter(binding).write(key, stored)
    assert writer._native is not None
    head = writer._first
    if len(key) == 1 and isinstance(key[0], str):
        text = key[0].encode("utf-8", "surrogateescape")
        assert writer.write_of_text(text, stored) == plain
        return writer.write(key, stored), plain, writer._native(stored, head, text) is not None
    return writer.write(key, stored), plain, writer._native(stored, b"{", None) is not None


def test_rows_of_plain_columns() -> None:
    random_ = random.Random("rows as JSON")
    alone = 0
    for _ in range(800):
        kinds = [random_.choice([*WHOLE, "float", "double", "boolean", "string"]) for _ in range(random_.randint(0, 70))]
        if random_.random() < 0.8:
            kinds = kinds[:6]
        fields = tuple(Field(f"c{i}", atomic(kind)) for i, kind in enumerate(kinds))
        key = (Field('k"', atomic(random_.choice(["string", "long"]))),)
        columns = tuple(ValueColumn(f.name, f.type, buffer_column(i, f.type)) for i, f in enumerate(fields))
        binding = bound(key, fields, tuple(random_.sample(columns, len(columns))))
        row = encoder(fields)(tuple(value_of(f.type, random_) for f in fields))
        batch = random_.randrange(1 << random_.randrange(1, 60))
        stored = row + random_.choice([stamp, stamp_at_most, stamp_final])(batch)
        of = value_of(key[0].type, random_)
        written, plain, by_itself = both(binding, (of,), stored)
        assert written == plain
        alone += by_itself
    assert alone > 250


def test_rows_of_aggregates() -> None:
    """Averages, and sketches of every precision and fill: with linear, corrected and raw estimates."""
    random_ = random.Random("aggregates as JSON")
    alone = 0
    for _ in range(400):
        precision = random_.choice([4, 5, 6, 7, 9, 10, 12, 14])
        words = -(-(1 << precision) // 10)
        long, double = atomic("long"), atomic("double")
        fields = (Field("sum", double), Field("count", long), *(Field(f"w{i}", long) for i in range(words)), Field("n", long))
        average = Expression("aggregate", double, options={"function": "avg", "buffers": [0, 1], "mode": "legacy"})
        options = {"function": "approx_count_distinct", "buffers": list(range(2, 2 + words)), "precision": precision}
        distinct = Expression("aggregate", long, options=options)
        count = Expression("aggregate", long, options={"function": "count", "buffers": [2 + words]})
        values = (ValueColumn("mean", double, average), ValueColumn("d", long, distinct), ValueColumn("n", long, count))
        registers = [0] * (10 * words)
        fill = random_.choice([0.0, 0.01, 0.3, 0.9, 1.0])
        most = random_.choice([3, 12, 40, 63])
        for register in range(1 << precision):
            if random_.random() < fill:
                registers[register] = min(most, int(random_.expovariate(0.5)) + 1)
        sketch = [sum(registers[10 * w + i] << 6 * i for i in range(10)) for w in range(words)]
        buffers = (random_.choice([None, 0.0, 10.0, 1e20, random_.random()]), random_.choice([None, 0, 3, 7]), *sketch, 5)
        stored = encoder(fields)(buffers) + stamp(3)
        binding = bound((Field("k", atomic("string")),), fields, values)
        written, plain, by_itself = both(binding, ("key",), stored)
        assert written == plain, (precision, fill, most)
        alone += by_itself
    assert alone > 250


def test_damaged_rows_are_left_to_python() -> None:
    """For damaged bytes, the library answers as Python does, or leaves them to Python, which refuses positions outside a row."""
    from millpond.errors import CheckpointError

    random_ = random.Random("damaged rows")
    fields = (Field("a", atomic("string")), Field("b", atomic("long")), Field("c", atomic("boolean")))
    columns = tuple(ValueColumn(f.name, f.type, buffer_column(i, f.type)) for i, f in enumerate(fields))
    binding = bound((Field("k", atomic("string")),), fields, columns)
    answered = refused = 0
    for _ in range(1500):
        row = bytearray(encoder(fields)((random_.choice(TEXTS), random_.randrange(1000), True)))
        for _ in range(random_.randint(1, 4)):
            row[random_.randrange(len(row))] = random_.choice([0, 1, 0x7F, 0xFF, random_.randrange(256)])
        stored = bytes(row[: random_.choice([len(row), random_.randint(0, len(row))])]) + stamp(9)
        try:
            with library.switched_off():
                plain = RowWriter(binding).write_of_text(b"k", stored)
        except CheckpointError:
            refused += 1
            with pytest.raises(CheckpointError):
                RowWriter(binding).write_of_text(b"k", stored)
            continue
        answered += 1
        assert RowWriter(binding).write_of_text(b"k", stored) == plain
    assert answered > 150 < refused
