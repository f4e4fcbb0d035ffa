"""Models as state: one stream has models, another the records to score; models change while the job runs.

    serve_models     records and models -> records with their result and its model
    read_models      the model stream of a folder
    (publish: publish_model, remove_model, roll_back_model    write records into that folder)

The models in use are broadcast state (see `broadcast`): every shard has them, each with its
version, the batch and time since which it serves, and the version that it replaced.  The pond has
each model's bytes once; the state has their hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.spark.broadcast.check import MODELS, invalid
from millpond.spark.broadcast.control import CORRUPT, FILE, REALS, WHOLE, has_corrupt
from millpond.spark.broadcast.shard import Names
from millpond.spark.broadcast.stream import KEEP_VERSIONS, file_column, order_number, read_from, run_shards
from millpond.spark.derive.plan import require_classic
from millpond.spark.models.check import ADMITTED, RECORD_URI, ModelCheck
from millpond.spark.models.formats import FORMATS, RUNS_CODE, ModelFormat
from millpond.spark.models.publish import ONLY_TYPE, PUBLISHED, RECORD
from millpond.spark.models.scoring import COMPUTED, MERGED, STATISTICS, Scoring
from millpond.storage import open_storage
from millpond.storage.names import hadoop_uri
from millpond.storage.places import Places

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MAX_MODEL_BYTES = 100 << 20
_NAMES = Names("models", "versions", "model_errors")
_TOLD = f"{RECORD}, content binary, uri string"
_RESULTS = ("result double", "model string", "model_version long", "duration_seconds double", "error string")
_NUMBERS = frozenset({*WHOLE, *REALS})


def serve_models(
    records: DataFrame,
    models: DataFrame,
    *,
    pond: str | Path,
    inputs: Sequence[str],
    order: str = "published_ns",
    type_column: str | None = None,
    by: str | list[str] | None = None,
    sample: Sequence[float] | None = None,
    formats: Mapping[str, ModelFormat] | None = None,
    allow: Iterable[str | Path] = (),
    max_bytes: int = MAX_MODEL_BYTES,
    shards: int | None = None,
    partitions: int | None = None,
    keep_versions: int = KEEP_VERSIONS,
) -> DataFrame:
    """A stream of the records, each with the result of its type's model.

    Columns after the records' own: result (NULL if there is none), model (its name), model_version,
    duration_seconds (the record's share of the call's time), error (why there is no result).  An
    error is a row; it doesn't end the job.

    models:     a stream with `type` and the action: `name`, `description`, `format` (onnx), and
                either `content` (bytes) or `uri` (of a file) to serve a model from now on; or
                `action` remove, or rollback with a `version`.  Only `type` and the column named by
                `order` are required.  A model is checked before it replaces another: it loads,
                takes the inputs, scores a sample, has at most `max_bytes`.  If a check fails, the
                record goes to the table of errors, and the old model stays
    pond:       stores the models' bytes, once, by their hash
    allow:      places where files that a `uri` names may lie, besides the pond and the folder of a
                record's own file
    inputs:     the records' columns that models take, numbers, in this order
    order:      the models' column that orders the records of one batch: see `broadcast`
    type_column: the records' text column that names their type; None: the model of type `all`
                 scores all records
    by:         columns of the records: records with equal values go to one shard, and to one of the
                models of a type; by default all columns choose the shard, and all inputs choose the
                model
    sample:     values of the inputs for which a model must return a finite result; by default
                zeros, with any result
    formats:    further formats by name; pickle and formats built on it are refused, since loading
                them runs code
    shards, partitions, keep_versions:  see `broadcast`
    Tables:     `<table>_models` (the models in use), `<table>_versions`, `<table>_model_errors`,
                `<table>_statistics`
    Raises:     INVALID_REQUEST, SPARK_CONNECT.  If the file of a model in use is missing from the
                pond or was altered, the job ends with MODEL_LOST before it processes a record.
    """
    for df in (records, models):
        require_classic(df, "_jdf")
    known = {**FORMATS, **(formats or {})}
    if RUNS_CODE & known.keys():
        named = ", ".join(sorted(RUNS_CODE & known.keys()))
        raise _invalid(f"formats names {named}, whose loading runs code from the file", "Convert such models to ONNX.")
    _check_records(records, inputs, type_column, sample)
    split_by = tuple([by] if isinstance(by, str) else by or inputs)
    _check_split(records, split_by)
    if type(max_bytes) is not int or max_bytes < 1:
        raise _invalid(f"max_bytes is {max_bytes!r}", "Use a whole number of bytes from 1.")
    check = ModelCheck(
        pond=(kept := open_storage(pond).uri),
        places=Places.of((kept, *allow)),
        inputs={name: records.schema[name].dataType.typeName() for name in inputs},
        sample=None if sample is None else tuple(float(value) for value in sample),
        formats=known,
        max_bytes=max_bytes,
    )
    scoring = Scoring(
        pond=check.pond,
        inputs=check.inputs,
        formats=known,
        type_column=type_column,
        only_type=ONLY_TYPE,
        split_by=split_by,
    )
    from pyspark.sql.types import StructType

    output = StructType([*records.schema.fields, *StructType.fromDDL(", ".join(_RESULTS)).fields])
    return run_shards(
        records,
        _all_columns(models, order).mapInPandas(check, f"{ADMITTED}, order long, {CORRUPT} string, {FILE} string"),
        scoring,
        output=output,
        key="type",
        order="order",
        by=by,
        shards=shards,
        partitions=partitions,
        keep_versions=keep_versions,
        names=_NAMES,
        reason="reason",
        variables={STATISTICS: MERGED},
        fixed={"inputs": [f"{name} {kind}" for name, kind in check.inputs.items()]},
        computed={STATISTICS: COMPUTED},
        pond=check.pond,
        subject=MODELS,
    )


def read_models(spark: SparkSession, folder: str | Path) -> DataFrame:
    """The stream of records that are published into a folder, for `serve_models`."""
    schema = f"{PUBLISHED}, {CORRUPT} string"
    return (
        spark.readStream.schema(schema)
        .option("columnNameOfCorruptRecord", CORRUPT)
        .json(f"{hadoop_uri(open_storage(folder).uri)}/*.json")
    )


def _all_columns(models: DataFrame, order: str) -> DataFrame:
    """The model stream with all columns of a record; missing ones are NULL."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if "type" not in models.columns or order not in models.columns:
        raise _invalid(
            f"the model stream has only {', '.join(models.columns)}", f"It needs type, {order}, name, and content or uri."
        )
    columns: list[Column] = [
        F.col(f.name).cast(f.dataType).alias(f.name) if f.name in models.columns else F.lit(None).cast(f.dataType).alias(f.name)
        for f in StructType.fromDDL(_TOLD).fields
    ]
    corrupt = F.col(CORRUPT) if has_corrupt(models.schema) else F.lit(None).cast("string")
    file = file_column(models)
    nothing = F.lit(None).cast("string")
    named = [corrupt.alias(CORRUPT), (nothing if file is None else file).alias(FILE)]
    # From Spark's own metadata: a column of the records could name any folder.
    own = read_from(models)
    named.append((nothing if own is None else own).alias(RECORD_URI))
    return models.select(*columns, order_number(models, order, MODELS).alias("order"), *named)


def _check_split(records: DataFrame, by: Sequence[str]) -> None:
    for name in by:
        type_ = records.schema[name].dataType if name in records.columns else None
        if type_ is not None and type_.typeName() in ("array", "struct"):
            raise _invalid(f"by names {name}, of type {type_.simpleString()}", "Name columns without nested values.")


def _check_records(records: DataFrame, inputs: Sequence[str], type_column: str | None, sample: Sequence[float] | None) -> None:
    if isinstance(inputs, str) or not inputs:
        raise _invalid(f"inputs is {inputs!r}", "Name the columns that models take, in their order.")
    if len(set(inputs)) < len(inputs):
        raise _invalid(f"inputs names a column twice: {', '.join(inputs)}", "Add a copy of it with withColumn.")
    kinds = {f.name: f.dataType.typeName() for f in records.schema.fields}
    for name in inputs:
        if kinds.get(name) not in _NUMBERS:
            raise _invalid(
                f"the input {name!r} is of type {kinds.get(name, 'none: there is no such column')}", "Cast it to double."
            )
    if type_column is not None and kinds.get(type_column) != "string":
        raise _invalid(f"type_column is {type_column!r}", f"Name a text column of {', '.join(records.columns)}.")
    taken = {column.split()[0] for column in _RESULTS} & set(records.columns)
    if taken:
        raise _invalid(f"the records have a column {', '.join(sorted(taken))}", "Rename it with withColumnRenamed.")
    if sample is not None and len(sample) != len(inputs):
        raise _invalid(f"the sample has {len(sample)} values for {len(inputs)} inputs", "Give one for each input.")


def _invalid(found: str, hint: str) -> RequestError:
    return invalid(found, hint, MODELS)
