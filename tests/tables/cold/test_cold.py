"""If several files have a key, the newest row counts, for all sizes of keys and both ways to compare keys."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.rows import columns
from millpond.checkpoint.rows.columns import hash_words, join_spans, span
from millpond.errors import CheckpointError
from millpond.tables.cold import table as cold

pa = pytest.importorskip("pyarrow")
np: Any = pytest.importorskip("numpy")


def content(parts: list[RowChunk]) -> dict[bytes, bytes]:
    rows = [pair for part in cold.iter_newest(pa, parts) for pair in zip(part.keys.tolist(), part.values.tolist(), strict=True)]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("hashed", ["well", "badly", "not at all"])
@pytest.mark.parametrize("shape", ["one size", "whole words", "any size"])
@pytest.mark.parametrize("seed", range(8))
def test_the_newest_row_of_each_key_stays(monkeypatch: pytest.MonkeyPatch, seed: int, shape: str, hashed: str) -> None:
    if hashed == "badly":
        monkeypatch.setattr(cold, "hash_words", lambda keys: keys.size.astype(np.uint64) & np.uint64(15))
    elif hashed == "not at all":
        monkeypatch.setattr(cold, "hash_words", lambda keys: None)
    random_ = random.Random(f"{seed}{shape}")
    sizes = {"one size": [16], "whole words": [0, 8, 16, 24, 32, 80], "any size": [0, 1, 7, 8, 9, 30]}[shape]
    keys = list({random_.randbytes(random_.choice(sizes)) for _ in range(60)})
    state: dict[bytes, bytes] = {}
    parts = []
    for number in range(random_.randint(1, 6)):
        # Parts have few sizes each, so that their largest differ.
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
        order = list(range(len(chosen)))
        sequence = None
        if number == 0 and not unique and random_.random() < 0.5:  # like SSTs: numbered, in any order
            random_.shuffle(order)
            sequence = np.array(order, np.uint64)
        parts.append(
            RowChunk(
                keys=join_spans([span([b"gap"]), span([chosen[i] for i in order])]).slice(1, len(order) + 1),
                values=span([values[i] for i in order]),
                gone=np.array([gone[i] for i in order], bool) if any(gone) else None,
                unique=unique,
                sequence=sequence,
            )
        )
    assert content(parts) == state


def test_a_number_doesnt_depend_on_the_pieces_beside() -> None:
    random_ = random.Random(5)
    pieces = [random_.randbytes(8 * words) for words in range(columns._HASHED_WORDS + 1)]
    together = hash_words(span(pieces))
    assert together is not None
    for place, piece in enumerate(pieces):
        alone = hash_words(span([piece]))
        assert alone is not None
        assert alone[0] == together[place]
    assert len(set(together.tolist())) == len(pieces)
    assert hash_words(span([b"1234567"])) is None


def test_two_versions_with_one_sequence_number_are_refused() -> None:
    part = RowChunk(keys=span([b"same key", b"same key"]), values=span([b"a", b"b"]), sequence=np.array([7, 7], np.uint64))
    with pytest.raises(CheckpointError) as refused:
        content([part])
    assert refused.value.condition == "CORRUPT_FILE"
