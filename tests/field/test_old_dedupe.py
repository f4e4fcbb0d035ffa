"""dropDuplicates of an old Spark: its schema declares all columns of the input, its rows store one NULL.

Spark doesn't compare the two when it starts, so such a job goes on for years.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage


def declare_all_columns(schema: Path) -> None:
    """Make the declared value all columns of the input, as StreamingDeduplicateExec once did."""
    data = schema.read_bytes()
    marker = data.index(b'{"type":"struct"', data.index(b'{"type":"struct"') + 1)
    key = json.loads(data[data.index(b'{"type":"struct"') : data.index(b"]}", 0, marker) + 2])
    more = {"name": "more", "type": "double", "nullable": True, "metadata": {}}
    value = json.dumps({"type": "struct", "fields": [*key["fields"], more]}).encode()
    # v2: a list of Java's texts for the key, and one for the value.
    schema.write_bytes(data[: marker - 6] + (1).to_bytes(4, "big") + len(value).to_bytes(2, "big") + value)


# Those of Spark 3.5 have no metadata, which says what the operator is.
CELLS = [*(f"spark-4.3/dedupe-{form}" for form in ("hdfs", "rocksdb-changelog", "rocksdb-snapshots"))]
CELLS += ["spark-3.5/dedupe-hdfs", "spark-3.5/dedupe-rocksdb-changelog"]


@pytest.mark.parametrize("cell", CELLS)
def test_keys_are_served_and_both_agree(golden: Callable, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    with millpond.open(checkpoint, replica_dir="memory://") as pond:
        (name,) = pond.tables()
    expected = millpond.read_arrow(checkpoint, name)
    declare_all_columns(checkpoint / "state/0/0/_metadata/schema")
    assert millpond.read_arrow(checkpoint, name).to_pylist() == expected.to_pylist()
    assert expected.num_rows > 0
    with millpond.open(checkpoint, replica_dir="memory://") as pond:
        assert len(pond[name].scan(limit=100_000)) == expected.num_rows
        key = dict(pond[name].scan(limit=1)[0])
        assert pond[name].get({column.name: key[column.name] for column in pond[name].definition.key})
    assert diagnose(open_storage(checkpoint)).findings == ()
    assert verify_savepoint(millpond.plan_savepoint(checkpoint, "a").run()).is_whole
