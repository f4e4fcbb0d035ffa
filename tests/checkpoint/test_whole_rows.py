"""Every row of every golden state, also those that only Spark needs, becomes columns and the same bytes again."""

from __future__ import annotations

import pytest

from millpond.checkpoint.log import committed_batches, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import CheckpointError
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.storage import open_storage
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import a_few


@pytest.mark.parametrize("cell", a_few(sorted(CELLS, key=lambda cell: "-avro" not in cell), 12))
def test_the_bytes_are_the_same_again(cell: str) -> None:
    storage = open_storage(GOLDEN / cell / "checkpoint")
    batch = read_batch(storage, committed_batches(storage)[-1])
    rows = others = 0
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            state = (HdfsState if batch.settings.provider == "hdfs" else RocksDbState)(storage, batch, store)
            codec = StoreCodec(store, batch.settings, state.numbers)
            for partition in partitions_of(batch, store.files):
                for key, value in state.iter_rows(partition):
                    name = codec.family_of(key)
                    if store.has_families and store.is_list(name) is None:  # a variable that the query has dropped
                        with pytest.raises(CheckpointError, match="No schema file"):
                            codec.of(name)
                        continue
                    family = codec.of(name)
                    assert family.write_key(family.read_key(key)) == key, family.schema
                    elements = family.read_value(value)
                    again = family.write_value(elements)
                    if "evolution-avro" in cell:  # rows of older schemas are written by the newest
                        assert repr(family.read_value(again)) == repr(elements)
                        again = family.write_value(family.read_value(again))
                        others += again != value
                    else:
                        assert again == value, family.schema
                    rows += 1
    assert rows > others
    assert (others > 0) == ("evolution-avro" in cell)
