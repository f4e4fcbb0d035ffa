"""If several files have a key, the newest row counts, for all sizes of keys."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millpond.checkpoint.bulk.partition import RowChunk, iter_newest
from millpond.checkpoint.rows.columns import join_spans, span

np: Any = pytest.importorskip("numpy")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("shape", ["one size", "whole words", "any size"])
@pytest.mark.parametrize("seed", range(8))
def test_the_newest_row_of_each_key_stays(seed: int, shape: str) -> None:
    random_ = random.Random(f"{seed}{shape}")
    sizes = {"one size": [16], "whole words": [0, 8, 16, 24, 32, 80], "any size": [0, 1, 7, 8, 9, 30]}[shape]
    keys = list({random_.randbytes(random_.choice(sizes)) for _ in range(60)})
    state: dict[bytes, bytes] = {}
    chunks = []
    for number in range(random_.randint(1, 6)):
        # Chunks have few sizes each, so that their largest differ.
        some = [key for key in keys if len(key) <= random_.choice(sizes)] or keys[:1]
        chosen = [random_.choice(some) for _ in range(random_.choice([0, 1, 5, 50]))]
        unique = number == 0 and random_.random() < 0.5
        chosen = list(dict.fromkeys(chosen)) if unique else chosen
        values = [random_.randbytes(8) for _ in chosen]
        gone = [not unique and random_.random() < 0.3 for _ in chosen]
        for key, value, deleted in zip(chosen, values, gone, strict=True):
            state.pop(key, None)
            if not deleted:
                state[key] = value
        chunks.append(
            RowChunk(
                keys=join_spans([span([b"gap"]), span(chosen)]).slice(1, len(chosen) + 1),
                values=span(values),
                gone=np.array(gone, bool) if any(gone) else None,
                unique=unique,
            )
        )
    rows = [pair for chunk in iter_newest(chunks) for pair in zip(chunk.keys.tolist(), chunk.values.tolist(), strict=True)]
    assert len(dict(rows)) == len(rows)
    assert dict(rows) == state
