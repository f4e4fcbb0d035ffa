"""ONNX models of a few operators, written by hand: a test can compute their results without onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def linear(weights: list[float], intercept: float) -> bytes:
    """A matrix in; the weighted sum of its columns out."""
    return _model(
        [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Add", ["s", "b"], ["y"])],
        [_matrix("x", len(weights))],
        {"w": np.array(weights, np.float32).reshape(-1, 1), "b": np.array([intercept], np.float32)},
    )


def by_name(first: str, second: str) -> bytes:
    """Two columns in, by their names; their product out."""
    return _model([helper.make_node("Mul", [first, second], ["y"])], [_matrix(first, 1), _matrix(second, 1)], {})


def logarithm() -> bytes:
    """One column in; its logarithm out, which is NaN below zero."""
    return _model([helper.make_node("Log", ["x"], ["y"])], [_matrix("x", 1)], {})


def doubled(name: str, taken: str) -> bytes:
    """One column of whole numbers in, int64 or int32; twice as much out."""
    kind = {"int64": TensorProto.INT64, "int32": TensorProto.INT32}[taken]
    graph = helper.make_graph(
        [helper.make_node("Add", [name, name], ["y"])],
        "small",
        [helper.make_tensor_value_info(name, kind, [None, 1])],
        [helper.make_tensor_value_info("y", kind, [None, 1])],
    )
    return _serialized(graph)


def two_numbers() -> bytes:
    """A matrix of two columns, unchanged: not one number for each row."""
    return _model([helper.make_node("Identity", ["x"], ["y"])], [_matrix("x", 2)], {}, width=2)


def _matrix(name: str, width: int) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, width])


def _model(nodes: list[Any], inputs: list[Any], constants: dict[str, Any], width: int = 1) -> bytes:
    graph = helper.make_graph(
        nodes,
        "small",
        inputs,
        [_matrix("y", width)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return _serialized(graph)


def _serialized(graph: Any) -> bytes:
    found: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    return found
