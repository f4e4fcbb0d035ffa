"""Formats of models.  A format loads bytes as a model, which scores rows.

Formats whose loading runs code from the file (pickle and all that is built on it) are refused: with
them, anybody who may publish a model could do all that the job may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from millpond.errors import library_missing
from millpond.spark.broadcast.control import WHOLE

Array = np.ndarray[Any, Any]
RUNS_CODE = frozenset({"pickle", "joblib", "cloudpickle", "dill", "skops", "pt", "pth", "torch", "keras"})
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_WHOLE = {"tensor(int64)": WHOLE, "tensor(int32)": ("byte", "short", "integer")}
"""Types whose values these can hold; any other number would lose its fraction."""


class Model(Protocol):
    """A loaded model."""

    def score(self, columns: Sequence[Array]) -> Array:
        """One number a row, from the inputs' columns in their order, which have no NULL.

        Raises:  any error; the rows then become error rows.
        """


class ModelFormat(Protocol):
    """Loads models."""

    def load(self, content: bytes, inputs: Mapping[str, str]) -> Model:
        """A model for these inputs, in their order.

        inputs:  names, with Spark's names of their types, all numbers (`double`, `long`, …)
        Raises:  ValueError if it isn't of this format, or takes other inputs; any other error.
        """


class Onnx:
    """Models of ONNX, scored by onnxruntime on one processor, since Spark's tasks already run in parallel.

    Inputs: one matrix with a column for each input, or one column for each input under its own
    name.  The first output is the result, one number for each row.
    """

    def load(self, content: bytes, inputs: Mapping[str, str]) -> Model:
        try:
            import onnxruntime
        except ImportError as missing:
            raise library_missing("onnxruntime", "models") from missing
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised, and reported with the record
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return _OnnxModel(session, inputs)


class _OnnxModel:
    def __init__(self, session: Any, inputs: Mapping[str, str]) -> None:
        self._session = session
        taken = {i.name: i for i in session.get_inputs()}
        unknown = sorted({i.type for i in taken.values()} - _DTYPES.keys())
        if unknown:
            raise ValueError(f"an input is a {unknown[0]}; known are {', '.join(_DTYPES)}")
        self._names = [i for i in inputs if i in taken]
        self._matrix = None
        if len(taken) == 1 and (len(inputs) > 1 or not self._names):
            (self._matrix,) = taken.values()
            width = self._matrix.shape[1] if len(self._matrix.shape) == 2 else None
            if width != len(inputs):
                raise ValueError(f"it takes a matrix of shape {self._matrix.shape}, but the records have {len(inputs)} inputs")
        elif set(taken) != set(inputs):
            raise ValueError(f"it takes the inputs {sorted(taken)}, but the records have {sorted(inputs)}")
        for name, kind in inputs.items():
            wanted = (self._matrix or taken[name]).type
            if kind not in _WHOLE.get(wanted, (kind,)):
                raise ValueError(f"it takes {name} as a {wanted}, which can't hold every {kind}")
        self._dtypes = {name: _DTYPES[i.type] for name, i in taken.items()}
        self._output = session.get_outputs()[0].name

    def score(self, columns: Sequence[Array]) -> Array:
        if self._matrix is not None:
            matrix: Array = np.empty((len(columns[0]), len(columns)), self._dtypes[self._matrix.name])
            for place, column in enumerate(columns):
                matrix[:, place] = column
            given = {self._matrix.name: matrix}
        else:
            named = zip(self._names, columns, strict=True)
            given = {name: column.astype(self._dtypes[name]).reshape(-1, 1) for name, column in named}
        found = np.asarray(self._session.run([self._output], given)[0])
        rows = len(columns[0])
        if found.shape not in ((rows,), (rows, 1)) or found.dtype.kind not in "fiub":
            raise ValueError(f"its result is of shape {found.shape} and type {found.dtype}, but must be one number for each row")
        result: Array = found.reshape(rows).astype(np.float64)
        return result


def first_line(error: Exception) -> str:
    """The first line of an error of a model or its format, at most 300 characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


FORMATS: dict[str, ModelFormat] = {"onnx": Onnx()}
