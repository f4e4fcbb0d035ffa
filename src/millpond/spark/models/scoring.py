"""Scores records with the model of their type, and counts statistics.

Each shard has statistics of its own; readers see their sum:

    statistics   type, name, version -> description, since_ms, usage, errors, seconds, fastest, slowest

A record's time is its share of the time of its call: a model is called once for a chunk of records
of one type.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from millpond.errors import DefinitionError, MillpondError
from millpond.spark.broadcast.chunks import to_series
from millpond.spark.broadcast.control import Change, Control
from millpond.spark.broadcast.shard import TaskBatch, task_batch
from millpond.spark.models.formats import Array, Model, ModelFormat, first_line
from millpond.spark.models.publish import BESIDE
from millpond.spark.models.store import ModelStore
from millpond.storage import FileStamp

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

STATISTICS = "statistics"
_KEY = StructType([StructField("type", StringType()), StructField("name", StringType()), StructField("version", LongType())])
_VALUE = StructType(
    [
        StructField("description", StringType()),
        StructField("since_ms", LongType()),
        StructField("usage", LongType()),
        StructField("errors", LongType()),
        StructField("seconds", DoubleType()),
        StructField("fastest", DoubleType()),
        StructField("slowest", DoubleType()),
    ]
)
MERGED = {
    "description": "max",
    "since_ms": "min",
    "usage": "sum",
    "errors": "sum",
    "seconds": "sum",
    "fastest": "min",
    "slowest": "max",
}
"""How the parts of a row of statistics become one."""
COMPUTED = {"since": ["time", "since_ms"], "average": ["mean", "seconds", "usage"]}
"""Columns that are computed from others."""
_MOST_LOADED = 16
_loaded: dict[tuple[str, str, tuple[tuple[str, str], ...], str], Model] = {}
"""(pond, hash, inputs, format) -> the model that this worker has loaded, in order of last use"""
_read: dict[tuple[str, str], FileStamp] = {}
"""(pond, hash) -> the file whose bytes this worker has hashed"""
_checked: list[tuple[str, TaskBatch]] = []
"""The pond and batch whose models this worker checked last"""


@dataclass(slots=True)
class _Counted:
    usage: int = 0
    errors: int = 0
    seconds: float = 0.0
    fastest: float | None = None
    slowest: float | None = None

    def note(self, scored: int, errors: int, each: float) -> None:
        """Count a call with so many results and errors, and so many seconds for each record."""
        self.errors += errors
        if scored:
            self.usage += scored
            self.seconds += each * scored
            self.fastest = _best(min, self.fastest, each)
            self.slowest = _best(max, self.slowest, each)


class _Scores(NamedTuple):
    """For each record of one type: its score or NaN, its seconds, and why it has no score."""

    results: Array
    seconds: Array
    errors: Array


class _Scored(NamedTuple):
    """The scores of one type's records, and their model, None if there is none."""

    scores: _Scores
    name: str | None
    version: int | None


@dataclass(slots=True, kw_only=True)
class Scoring:
    """The work of a shard that serves models.

    inputs:       the columns that models take, with Spark's names of their types
    type_column:  the records' column that names their type; None if all records are of `only_type`
    split_by:     the records' columns that choose among the models of a type
    """

    pond: str
    inputs: Mapping[str, str]
    formats: Mapping[str, ModelFormat]
    type_column: str | None
    only_type: str
    split_by: tuple[str, ...]
    _table: Any = None

    def open(self, handle: StatefulProcessorHandle) -> None:
        """See `broadcast_shard.Work`."""
        self._table = handle.getMapState(STATISTICS, _KEY, _VALUE)

    def changed(self, changes: list[Change]) -> None:
        """Give each new version of a type a row in the statistics from the moment that it serves."""
        for change in changes:
            if change.row is not None:
                key = (change.key, change.row["name"], change.version)
                self._table.updateValue(key, (change.row["description"], change.since_ms, 0, 0, 0.0, None, None))

    def run(self, events: Iterable[pa.Table], control: Control) -> Iterator[pd.DataFrame]:
        """See `broadcast_shard.Work`.  Raises MODEL_LOST before the first record is scored."""
        self._check(control)
        counted: dict[str, _Counted] = {}
        for chunk in events:
            for type_, group in self._by_type(chunk):
                if type_ is None or BESIDE in type_:
                    why = "the record has no type" if type_ is None else f"a record's type can't have a {BESIDE!r}: {type_!r}"
                    yield _with_scores(group, _unscored(len(group), why))
                    continue
                beside = sorted(key for key in control if key.startswith(f"{type_}{BESIDE}"))
                for key in beside:
                    if control[key]["shadow"]:
                        self._score(group, key, control, counted)
                for key, some in self._split(group, type_, [key for key in beside if control[key]["share"]], control):
                    yield _with_scores(some, self._score(some, key, control, counted))
        for type_, count in counted.items():
            self._add(type_, control, count)

    def _check(self, control: Control) -> None:
        """Check the file of every model in use, once per batch in each worker."""
        now = self.pond, task_batch()
        if now in _checked:
            return
        store = ModelStore(self.pond)
        for row in control.values():
            known = (self.pond, row["sha256"])
            found = store.check(row["sha256"], row["size_bytes"], _read.get(known))
            if known in _read:
                _read[known] = found
        _checked[:] = [now]

    def _by_type(self, chunk: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
        if self.type_column is None:
            yield self.only_type, chunk
            return
        types = chunk.column(self.type_column).combine_chunks().dictionary_encode()
        for code, group in _groups(chunk, types.indices.fill_null(-1).to_numpy(zero_copy_only=False)):
            yield None if code < 0 else types.dictionary[code].as_py(), group

    def _split(self, group: pa.Table, type_: str, beside: list[str], control: Control) -> Iterator[tuple[str, pa.Table]]:
        """The records of a type by model: always the same one for equal values of `split_by`.

        Each further model has an interval between 0 and 1 as long as its share, in the order of
        names.  A hash of the record falls into one of these, or into the rest, which belongs to the
        type's own model.
        """
        if not beside:
            yield type_, group
            return
        places = row_hashes([to_series(group.column(name)) for name in self.split_by]) / 2.0**64
        ends = np.cumsum([control[key]["share"] for key in beside])
        owners = np.asarray(np.searchsorted(ends, places, side="right"))
        for number, some in _groups(group, owners):
            yield [*beside, type_][number], some

    def _score(self, records: pa.Table, type_: str, control: Control, counted: dict[str, _Counted]) -> _Scored:
        row = control.get(type_)
        if row is None:
            return _unscored(len(records), f"no model serves {type_!r}")
        name, version = row["name"], control.version_of(type_)
        try:
            model = _load(self.pond, row["sha256"], self.inputs, row["format"], self.formats)
        except MillpondError:
            raise
        except Exception as broken:  # a format may raise anything
            raise DefinitionError(
                "DEFINITION_CHANGED",
                f"The model {name!r}, version {version} of {type_!r}, no longer loads: {first_line(broken)}.",
                hint="Start the job with the inputs and formats with which the model was checked.",
                type=type_,
                version=version,
            ) from broken
        scores = _scores(model, {name: records.column(name) for name in self.inputs}, counted.setdefault(type_, _Counted()))
        return _Scored(scores, name, version)

    def _add(self, type_: str, control: Control, counted: _Counted) -> None:
        """Add the counts of a type's model to its row."""
        row = control[type_]
        key = (type_, row["name"], control.version_of(type_))
        description, since_ms, usage, errors, seconds, fastest, slowest = self._table.getValue(key)
        self._table.updateValue(
            key,
            (
                description,
                since_ms,
                usage + counted.usage,
                errors + counted.errors,
                seconds + counted.seconds,
                _best(min, fastest, counted.fastest),
                _best(max, slowest, counted.slowest),
            ),
        )


def _groups(records: pa.Table, codes: Array) -> Iterator[tuple[int, pa.Table]]:
    """The records of each code, in their order."""
    kinds = np.unique(codes)
    if len(kinds) == 1:
        yield int(kinds[0]), records
        return
    order = np.argsort(codes, kind="stable")
    sorted_ = records.take(order)
    begins = np.asarray(np.searchsorted(codes[order], kinds))
    for code, begin, end in zip(kinds, begins, [*begins[1:], len(order)], strict=True):
        yield int(code), sorted_.slice(begin, end - begin)


def _scores(model: Model, inputs: Mapping[str, pa.ChunkedArray], counted: _Counted) -> _Scores:
    """The scores of records by a model; a record that it can't score gets its own error."""
    rows = len(next(iter(inputs.values())))
    scores = _nothing(rows, None)
    usable: Array = np.ones(rows, bool)
    columns: list[Array] = []
    for name, column in inputs.items():
        values = column.combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
        for missing, what in ((column.is_null().to_numpy(), "NULL"), (np.isnan(values), "NaN")):
            scores.errors[missing & usable] = f"{name} is {what}"
            usable &= ~missing
        columns.append(values)
    places = np.flatnonzero(usable)
    if len(places):
        whole = [column if len(places) == rows else column[places] for column in columns]
        _call(model, whole, places, scores, counted)
    counted.errors += rows - len(places)
    return scores


def _call(model: Model, columns: list[Array], places: Array, scores: _Scores, counted: _Counted) -> None:
    """Call the model once for all records; if that fails, once for each, to find the faulty ones."""
    began = time.perf_counter()
    try:
        found = np.asarray(model.score(columns), np.float64)
        if found.shape != (len(places),):
            raise ValueError(f"the result for {len(places)} records has the shape {found.shape}")
    except Exception as broken:  # noqa: BLE001 a model may raise anything
        if len(places) > 1:
            for i, place in enumerate(places):
                _call(model, [column[i : i + 1] for column in columns], np.array([place]), scores, counted)
            return
        scores.errors[places] = first_line(broken)
        counted.errors += 1
        return
    seconds = time.perf_counter() - began
    finite = np.isfinite(found)
    scores.results[places[finite]] = found[finite]
    scores.seconds[places] = seconds / len(places)
    for place, value in zip(places[~finite], found[~finite], strict=True):
        scores.errors[place] = f"the result is {value}"
    counted.note(int(finite.sum()), int((~finite).sum()), seconds / len(places))


def row_hashes(columns: list[pd.Series]) -> Array:
    """A hash of each row that doesn't depend on its chunk: pandas changes the type of a column with NULLs."""
    from pandas.api.types import infer_dtype
    from pandas.util import hash_pandas_object

    found: Array = np.zeros(len(columns[0]), np.uint64)
    for series in columns:
        is_number = series.dtype.kind in "biuf" or infer_dtype(series, skipna=True) == "boolean"
        hashes = hash_pandas_object(series.astype(np.float64) if is_number else series, index=False).to_numpy()
        found = found * np.uint64(1_000_003) + np.where(series.isna(), np.uint64(0), hashes)
    return found


def _nothing(rows: int, error: str | None) -> _Scores:
    return _Scores(np.full(rows, np.nan), np.full(rows, np.nan), np.full(rows, error, object))


def _load(pond: str, digest: str, inputs: Mapping[str, str], name: str, formats: Mapping[str, ModelFormat]) -> Model:
    """A model, which this worker loads once for all batches.  Raises MODEL_LOST."""
    wanted = (pond, digest, tuple(inputs.items()), name)
    model = _loaded.pop(wanted, None)
    if model is None:
        store = ModelStore(pond)
        stamp = store.stamp(digest)  # taken first: if the file changes during the read, it is read again
        model = formats[name].load(store.read(digest), inputs)
        _read[pond, digest] = stamp
        if len(_loaded) >= _MOST_LOADED:
            del _loaded[next(iter(_loaded))]
    _loaded[wanted] = model  # the last used stands last
    return model


def _best(which: Any, before: float | None, now: float | None) -> float | None:
    return now if before is None else before if now is None else which(before, now)


def _unscored(rows: int, why: str) -> _Scored:
    return _Scored(_nothing(rows, why), None, None)


def _with_scores(records: pa.Table, scored: _Scored) -> pd.DataFrame:
    """The records unchanged, followed by the columns of their results."""
    import pandas as pd

    (scores, name, version), rows = scored, len(records)
    own = {name: _own(records.column(i)) for i, name in enumerate(records.column_names)}
    made = {
        "result": scores.results,
        "model": _text(name, rows),
        "model_version": _whole(version, rows),
        "duration_seconds": scores.seconds,
        "error": scores.errors if scores.errors.any() else _text(None, rows),
    }
    return pd.DataFrame({**own, **made})


def _own(column: pa.ChunkedArray) -> pd.Series:
    """A column of the records for Spark, with its values unchanged.

    It stays Arrow's: pandas would turn NaN into NULL, and would merge the two hours that a clock
    shows twice.  Spark takes nested values apart one by one, as Python objects.
    """
    import pandas as pd
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        return pd.Series(column.to_pylist(maps_as_pydicts="strict"), dtype=object)
    return pd.Series(pd.arrays.ArrowExtensionArray(column.combine_chunks()))  # Spark takes one chunk


def _text(value: str | None, rows: int) -> Any:
    """The same text for all rows, as Arrow's, which Spark takes unchanged."""
    import pandas as pd
    import pyarrow as pa

    return pd.arrays.ArrowExtensionArray(pa.repeat(pa.scalar(value, pa.string()), rows))


def _whole(value: int | None, rows: int) -> Any:
    import pandas as pd

    return pd.array([None] * rows, dtype="Int64") if value is None else np.full(rows, value, np.int64)
