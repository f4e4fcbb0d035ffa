"""The rows beside state variables, held against those that Spark wrote."""

from __future__ import annotations

import pytest

from millpond.checkpoint.log import newest_committed, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.savepoint.rewrite.rewrite import open_state
from millpond.savepoint.rewrite.twins import family_beside, rows_beside
from millpond.storage import open_storage
from spark_files.golden import CELLS, GOLDEN

TRANSFORMS = [cell for cell in CELLS if "transform" in cell]


@pytest.mark.parametrize("cell", TRANSFORMS)
def test_what_stands_beside_a_variable_follows_from_its_rows(cell: str) -> None:
    storage = open_storage(GOLDEN / cell / "checkpoint")
    batch = read_batch(storage, newest_committed(storage))
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            state = open_state(storage, batch, store)
            codec = StoreCodec(store, batch.settings, state.numbers)
            for partition in range(batch.settings.partitions):
                found, made = set(), set()
                for row in state.iter_rows(partition):
                    family = codec.family_of(row[0])
                    if family_beside(family) != family:
                        found.add(row)
                    elif family in store.families and store.is_list(family) is not None:
                        of = codec.of(family)
                        made.update(rows_beside(codec, family, of.read_key(row[0]), of.read_value(row[1])))
                assert made == found
