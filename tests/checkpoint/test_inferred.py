"""Spark 3.5 doesn't write what an operator is.  Millpond infers it from the schema, or leaves it open; it never guesses."""

from __future__ import annotations

import json

import pytest

from millpond.checkpoint.infer_operator import infer_operator
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.schemas import FamilySchema, parse_schema
from millpond.errors import CheckpointError
from millpond.schema.types import Field, atomic, struct_of
from millpond.storage import open_storage
from spark_files.golden import GOLDEN

# Spark 4's checkpoints have one file of metadata and one schema; a join has four stores.
WITH_METADATA = sorted(p for p in GOLDEN.rglob("state/*/_metadata/metadata") if (p.parents[1] / "0/_metadata/schema").exists())
LONG, TIMESTAMP, TEXT = atomic("long"), atomic("timestamp"), atomic("string")


def test_it_says_what_the_metadata_of_newer_versions_says() -> None:
    seen = set()
    for path in WITH_METADATA:
        metadata = json.loads(path.read_text().partition("\n")[2])
        (schema,) = parse_schema((path.parents[1] / "0/_metadata/schema").read_bytes())
        conf = json.loads((path.parents[3] / "offsets/0").read_text().split("\n")[1])["conf"]
        apply_format = int(conf["spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"])
        if apply_format == 1:
            with pytest.raises(CheckpointError) as refused:
                infer_operator(schema, apply_format=1)
            assert refused.value.condition == "UNSUPPORTED"
            seen.add("refused")
            continue
        name, prefix = infer_operator(schema, apply_format=apply_format)
        assert (name, prefix) == (metadata["operatorInfo"]["operatorName"], metadata["stateStoreInfo"][0]["numColsPrefixKey"]), path
        seen.add(name)
    assert len(seen) == 7


def test_a_checkpoint_of_spark_4_without_metadata_is_one_that_isnt_whole(golden) -> None:  # type: ignore[no-untyped-def]
    copy = golden("spark-4.3/dedupe-hdfs")
    (copy.checkpoint / "state/0/_metadata/metadata").unlink()
    with pytest.raises(CheckpointError) as refused:
        read_stores(open_storage(copy.checkpoint), Batch(copy.last))
    assert refused.value.condition == "FILE_GONE"


@pytest.mark.parametrize(
    "value", [(Field("count", LONG),), (Field("user", TEXT), Field("sessionStartTime", TIMESTAMP), Field("count", LONG))]
)
def test_a_user_column_that_is_called_as_a_sessions_start_is_not_guessed_at(value: tuple[Field, ...]) -> None:
    key = (Field("user", TEXT), Field("sessionStartTime", TIMESTAMP))
    with pytest.raises(CheckpointError) as refused:
        infer_operator(FamilySchema(name="", key=key, value=value), apply_format=2)
    assert refused.value.condition == "UNSUPPORTED"
    window = struct_of((Field("start", TIMESTAMP), Field("end", TIMESTAMP)))
    sessions = (Field("user", TEXT), Field("session_window", window), Field("count", LONG))
    assert infer_operator(FamilySchema(name="", key=key, value=sessions), apply_format=2) == ("sessionWindowStateStoreSaveExec", 1)


COUNT, PAGE, USER, VALUE = Field("count", LONG), Field("page", TEXT), Field("user", TEXT), Field("mine", LONG)


@pytest.mark.parametrize(
    ("key", "value", "aggregation_format", "operator"),
    [
        ((PAGE,), (COUNT,), 2, "stateStoreSave"),
        ((PAGE,), (PAGE, COUNT), 1, "stateStoreSave"),
        ((PAGE,), (USER, PAGE), 2, "dedupe"),
        ((PAGE,), (USER, PAGE), 1, "dedupe"),
        ((PAGE,), (PAGE, USER), 2, "dedupe"),
        ((PAGE, USER), (USER, COUNT, PAGE), 2, "dedupe"),
        ((), (COUNT,), 2, "stateStoreSave"),
        ((COUNT,), (COUNT,), 2, None),  # groupBy("count").count(), or dropDuplicates(["count"])
        ((PAGE,), (PAGE,), 1, None),
        ((PAGE,), (PAGE, VALUE), 1, None),  # an aggregate function of somebody's own names its buffers
        ((PAGE,), (VALUE,), 2, "stateStoreSave"),
    ],
)
def test_all_columns_of_the_input_are_those_of_an_old_drop_duplicates(
    key: tuple[Field, ...], value: tuple[Field, ...], aggregation_format: int, operator: str | None
) -> None:
    schema = FamilySchema(name="", key=key, value=value)
    if operator is not None:
        assert infer_operator(schema, apply_format=2, aggregation_format=aggregation_format) == (operator, 0)
        return
    with pytest.raises(CheckpointError, match="may be that of an aggregation or of dropDuplicates"):
        infer_operator(schema, apply_format=2, aggregation_format=aggregation_format)
