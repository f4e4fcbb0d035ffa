"""Models served as state: one stream brings models, another the records that they score; a model is swapped while the job runs.

    serve_models     records and models -> records with their result, and who gave it
    read_models      the model stream of a folder
    (model_records: publish_model, remove_model, roll_back_model    a record for that folder)

The models that run are broadcast state (see `broadcast`): every shard has them, each with a version, the batch and time since when
it runs, and what it replaced.  Their bytes lie in the pond, once; the state has their hashes.
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
    """A stream of the records, each with what the model of its type makes of it.

    Columns behind the records' own: result (NULL where there is none), model (its name), model_version, duration_seconds (its share
    of the call that scored it), error (why there is no result: an error is a row, not the end of the job).

    models:     `type` and what is to be done: `name`, `description`, `format` (onnx), and either `content` (bytes) or `uri` (of a
                file) to serve a model from now on; `action` remove, or rollback with a `version`.  Other columns but `order` aren't
                needed.  A model is checked before it replaces another: it loads, takes the inputs, scores a sample, has
                at most `max_bytes`.  One that doesn't goes to the table of errors, and the old one stays.
    pond:       where the models' bytes are kept, once, by their hash
    allow:      places where files that a `uri` names may lie, beside the pond and the folder of a record's own file
    inputs:     the records' columns that models take, numbers, in this order
    order:      the models' column by which those of one batch are put in order: see `broadcast`
    type_column: the records' column (text) that says which model scores a record: that whose `type` is the same; None: all are
                scored by the model of type `all`
    by:         columns of the records: equal ones meet in one shard, and one of the models that share a type; by default all,
                and for the latter all inputs
    sample:     values of the inputs that a model must give a finite result for; by default zeros, and any result
    formats:    further formats by name; pickle and what is built on it is refused, since it runs code on loading
    shards, partitions, keep_versions:  see `broadcast`
    Tables:     `<table>_models` (what runs), `<table>_versions`, `<table>_model_errors`, `<table>_statistics`
    Raises:     INVALID_REQUEST, SPARK_CONNECT.  The job ends with MODEL_LOST, before a record is taken, where a model that it
                serves isn't in the pond any more or was altered.
    """
    for df in (records, models):
        require_classic(df, "_jdf")
    known = {**FORMATS, **(formats or {})}
    if RUNS_CODE & known.keys():
        named = ", ".join(sorted(RUNS_CODE & known.keys()))
        raise _invalid(f"formats names {named}, which runs code of the file's on loading", "Convert such models to ONNX.")
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
    """The stream of what is published into a folder, for `serve_models`."""
    schema = f"{PUBLISHED}, {CORRUPT} string"
    return (
        spark.readStream.schema(schema)
        .option("columnNameOfCorruptRecord", CORRUPT)
        .json(f"{hadoop_uri(open_storage(folder).uri)}/*.json")
    )


def _all_columns(models: DataFrame, order: str) -> DataFrame:
    """The model stream with all columns of a record, those that it lacks as NULL."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if "type" not in models.columns or order not in models.columns:
        raise _invalid(
            f"the model stream has {', '.join(models.columns)}", f"It needs type and {order}, and name, and content or uri."
        )
    columns: list[Column] = [
        F.col(f.name).cast(f.dataType).alias(f.name) if f.name in models.columns else F.lit(None).cast(f.dataType).alias(f.name)
        for f in StructType.fromDDL(_TOLD).fields
    ]
    corrupt = F.col(CORRUPT) if has_corrupt(models.schema) else F.lit(None).cast("string")
    file = file_column(models)
    nothing = F.lit(None).cast("string")
    named = [corrupt.alias(CORRUPT), (nothing if file is None else file).alias(FILE)]
    # By Spark's own word: a column of the records could name any folder.
    own = read_from(models)
    named.append((nothing if own is None else own).alias(RECORD_URI))
    return models.select(*columns, order_number(models, order, MODELS).alias("order"), *named)


def _check_split(records: DataFrame, by: Sequence[str]) -> None:
    for name in by:
        type_ = records.schema[name].dataType if name in records.columns else None
        if type_ is not None and type_.typeName() in ("array", "struct"):
            raise _invalid(f"by names {name}, of type {type_.simpleString()}", "Name columns of one value each.")


def _check_records(records: DataFrame, inputs: Sequence[str], type_column: str | None, sample: Sequence[float] | None) -> None:
    if isinstance(inputs, str) or not inputs:
        raise _invalid(f"inputs is {inputs!r}", "Name the columns that models take, in their order.")
    if len(set(inputs)) < len(inputs):
        raise _invalid(f"inputs names a column twice: {', '.join(inputs)}", "Give the model a copy of it: withColumn.")
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
        raise _invalid(f"the records have a column {', '.join(sorted(taken))}", "Call it otherwise: withColumnRenamed.")
    if sample is not None and len(sample) != len(inputs):
        raise _invalid(f"the sample has {len(sample)} values for {len(inputs)} inputs", "Give one for each input.")


def _invalid(found: str, hint: str) -> RequestError:
    return invalid(found, hint, MODELS)
