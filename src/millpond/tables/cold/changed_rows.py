"""Which rows of one partition each of several batches changed, all rows at once.

1. Each key that the batches write gets a number.
2. Of the state before, the rows of these keys are found.
3. Batch by batch, the last record of a key counts: its old row is that of the state, and its new row becomes the state.  A row that
   is written again with the same bytes is no change.

A row is known by its place among all rows; -1 stands for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.rows.columns import Array, Spans, join_spans
from millpond.native import calls


class Writes(NamedTuple):
    """What a batch wrote, in order.

    gone:  mask of deletes, whose values mean nothing
    """

    keys: Spans
    values: Spans
    gone: Array


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows that a batch changed, in the order in which it first wrote them.

    keys:      key rows
    rows:      value rows, of other batches too; the other fields have places in it
    old, new:  -1 where there is no row
    last:      the row that the batch put last, even if it deleted it later; else the old row
    puts:      key rows and places of all that the batch put
    """

    keys: Spans
    rows: Spans
    old: Array
    new: Array
    last: Array
    puts: tuple[Spans, Array]


def iter_changed(pa: Any, writes: Sequence[Writes], state: Iterable[RowChunk]) -> Iterator[ChangedRows]:
    """The changes of consecutive batches, one after the other.

    state:  the rows before the first batch, each key once
    """
    import numpy as np

    keys = join_spans([_packed(each.keys) for each in writes])
    numbered = _binary(pa, keys).dictionary_encode()  # 1
    numbers, count = numbered.indices.to_numpy(), len(numbered.dictionary)
    values = [_packed(Spans(v.data, np.where(gone, 0, v.begin), np.where(gone, 0, v.size))) for _, v, gone in writes]
    now: Array = np.full(count, -1)
    known = len(keys.begin)
    for chunk in state:  # 2
        found, there = _find(pa, chunk.keys, numbered.dictionary)
        now[found] = np.arange(known, known + len(there))
        known += len(there)
        values.append(_packed(chunk.values.select(there)))
    rows, first = join_spans(values), 0
    for each in writes:  # 3
        size = len(each.gone)
        mine, places = numbers[first : first + size], np.arange(size)
        opened, ended, put = np.full(count, size), np.full(count, -1), np.full(count, -1)
        np.minimum.at(opened, mine, places)
        np.maximum.at(ended, mine, places)
        np.maximum.at(put, mine[~each.gone], places[~each.gone])
        order = np.flatnonzero(opened[mine] == places)
        touched = mine[order]
        old, last = now[touched], ended[touched]
        new = np.where(each.gone[last], -1, first + last)
        now[touched] = new
        changed = np.flatnonzero(_differ(pa, rows, old, new))
        touched, order, old, new = touched[changed], order[changed], old[changed], new[changed]
        last = np.where(put[touched] < 0, old, first + put[touched])
        written = first + places[~each.gone]
        yield ChangedRows(keys.select(first + order), rows, old, new, last, (keys.select(written), written))
        first += size


def _find(pa: Any, keys: Spans, dictionary: Any) -> tuple[Array, Array]:
    """The numbers of keys that have one, and their places."""
    import numpy as np
    from pyarrow import compute

    found = compute.fill_null(compute.index_in(_binary(pa, keys), value_set=dictionary), -1).to_numpy()
    there = np.flatnonzero(found >= 0)
    return found[there], there


def _differ(pa: Any, rows: Spans, old: Array, new: Array) -> Array:
    """A mask of the places whose two rows haven't the same bytes."""
    import numpy as np
    from pyarrow import compute

    both = (old >= 0) & (new >= 0)
    different = ~both & (old != new)
    maybe = np.flatnonzero(both)
    before, after = (_binary(pa, rows.select(side[maybe])) for side in (old, new))
    different[maybe] = compute.not_equal(before, after).to_numpy(zero_copy_only=False)
    return different


def _packed(rows: Spans) -> Spans:
    """The rows alone, one after the other in a buffer of their own."""
    import numpy as np

    data = calls.gather(*rows)
    return Spans(b"".join(rows.tolist()) if data is None else data, np.cumsum(rows.size) - rows.size, rows.size)


def _binary(pa: Any, rows: Spans) -> Any:
    """The rows as an Arrow array."""
    import numpy as np

    packed = _packed(rows)
    offsets: Array = np.zeros(len(packed.size) + 1, np.int64)
    np.cumsum(packed.size, out=offsets[1:])
    return pa.Array.from_buffers(pa.large_binary(), len(packed.size), [None, pa.py_buffer(offsets), pa.py_buffer(packed.data)])
