"""Spark's order of values."""

from __future__ import annotations

from typing import Any


def compare(left: Any, right: Any) -> int:
    """Two values of one type: NULL first, text by its UTF-8 bytes, structs and arrays member by member."""
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, tuple | list):
        for a, b in zip(left, right, strict=False):
            if found := compare(a, b):
                return found
        return (len(left) > len(right)) - (len(left) < len(right))
    return (left > right) - (left < right)
