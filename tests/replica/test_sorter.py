"""The external sort, compared with a dict."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from millpond.checkpoint.rows.columns import span
from millpond.errors import ReplicaError
from millpond.native import library
from millpond.replica.external_sort import RowSorter
from suite.sizes import a_few

pytestmark = pytest.mark.skipif(library.library() is None, reason="the compiled library isn't built: python hatch_build.py")


def shapes(random_: random.Random) -> tuple[list[bytes], int]:
    """Keys to choose from, and the greatest length of a value."""
    front = random_.choice([b"", b"", b"\x01/page/", b"\x00" * 9])
    tails = [random_.randbytes(random_.randint(0, random_.choice([1, 3, 20]))) for _ in range(random_.randint(1, 300))]
    # Keys that end with zeros can be confused with shorter ones that are padded.
    return [front + tail for tail in tails] + [front, front + b"\x00", front + b"\x00\x00"], random_.choice([0, 3, 200, 40_000])


@pytest.mark.parametrize("seed", a_few(range(60), 20))
@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_come_out_in_order_the_newest_of_each_key(tmp_path: Path, seed: int, in_memory: bool) -> None:
    random_ = random.Random(seed)
    tables: dict[str, dict[bytes, bytes]] = {"a": {}, "b": {}}
    keys, longest = shapes(random_)
    with RowSorter(None if in_memory else tmp_path, random_.choice([1, 500, 20_000]), random_.randint(2, 5)) as sorter:
        for _ in range(random_.randint(1, 80)):
            name = random_.choice("aab")
            chosen = random_.choices(keys, k=random_.randint(0, 40))
            values = [random_.randbytes(random_.randint(0, longest)) for _ in chosen]
            gone = [random_.random() < 0.3 for _ in chosen]
            for key, value, is_gone in zip(chosen, values, gone, strict=True):
                if is_gone:
                    tables[name].pop(key, None)
                else:
                    tables[name][key] = value
            mask = np.array(gone, bool) if any(gone) or random_.random() < 0.5 else None
            sorter.add(name, span(chosen), span(values), mask)
        assert os.listdir(tmp_path) == []
        for name, rows in tables.items():
            chunks = [(k.tolist(), v.tolist()) for k, v in sorter.iter_rows(name)]
            found = [pair for chunk in chunks for pair in zip(*chunk, strict=True)]
            assert found == sorted(rows.items())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with RowSorter(tmp_path / "gone", held_bytes=1) as sorter, pytest.raises(ReplicaError) as raised:
        sorter.add("a", span([b"k"]), span([b"v"]), None)
    assert raised.value.condition == "REPLICA_NOT_WRITABLE"
