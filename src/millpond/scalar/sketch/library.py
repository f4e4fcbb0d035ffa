"""HLL and theta sketches, read and merged by the library `datasketches`, the C++ of their own project.

This is the only module that imports it.  Each read checks the size that the bytes claim before the
library sees them.

Source:  HllSketchAgg, ThetaSketchAgg and ThetaUnionAgg of Spark 4.3, which use Java's
         DataSketches 6.2; the bytes are the same in both languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from millpond.errors import RequestError
from millpond.scalar.sketch.damage import damaged, sketches_differ

_STANDARD_DEVIATIONS = 2
CONFIDENCE = 0.954
"""How sure the bounds of a count are: two standard deviations."""
_HLL_FAMILY, _THETA_FAMILY = 7, 3
_LEAST_BYTES, _LG_K_AT, _FAMILY_AT = 8, 3, 2


class Distinct(NamedTuple):
    """A number of distinct values, and between which numbers it lies with `CONFIDENCE`."""

    value: float
    lower: float
    upper: float


@cache
def _library() -> ModuleType | None:
    try:
        import datasketches
    except ModuleNotFoundError:
        return None
    found: ModuleType = datasketches
    return found


def _datasketches() -> Any:
    """The library.  Raises SKETCHES_LIBRARY_MISSING."""
    found = _library()
    if found is None:
        raise RequestError(
            "SKETCHES_LIBRARY_MISSING",
            "This value is in a sketch, and datasketches, which reads it, isn't installed.",
            hint="Run: pip install 'millpond[sketches]'",
        )
    return found


# ---------------------------------------------------------------- HLL


def hll_estimate(data: bytes) -> Distinct:
    """The estimate of an HLL sketch.  Raises CORRUPT_FILE, SKETCHES_LIBRARY_MISSING."""
    return _estimate(_hll(data))


def merge_hll(parts: Sequence[bytes]) -> bytes:
    """The union of HLL sketches.

    Raises:  SKETCHES_DIFFER if they have several sizes, as Spark does; CORRUPT_FILE, SKETCHES_LIBRARY_MISSING.
    """
    if len(parts) == 1:
        return parts[0]
    each = [_hll(data) for data in parts]
    sizes = {sketch.lg_config_k for sketch in each}
    if len(sizes) > 1:
        raise sketches_differ("HLL", sizes)
    library = _datasketches()
    union = library.hll_union(sizes.pop())
    for sketch in each:
        union.update(sketch)
    merged: bytes = union.get_result(library.tgt_hll_type.HLL_8).serialize_updatable()
    return merged


def _hll(data: bytes) -> Any:
    if len(data) < _LEAST_BYTES or data[_FAMILY_AT] != _HLL_FAMILY:
        raise damaged("HLL", data, "it has no such header")
    try:
        return _datasketches().hll_sketch.deserialize(bytes(data))
    except _DAMAGE as broken:
        raise damaged("HLL", data, f"{broken!s:.200}") from broken


# ---------------------------------------------------------------- theta


def theta_estimate(data: bytes) -> Distinct:
    """The estimate of a theta sketch.  Raises as `hll_estimate`."""
    return _estimate(_theta(data))


def merge_theta(parts: Sequence[bytes], lg_k: int) -> bytes:
    """The union of theta sketches.

    lg_k:    the size of the union
    Raises:  CORRUPT_FILE, SKETCHES_LIBRARY_MISSING.
    """
    if len(parts) == 1:
        return parts[0]
    union = _datasketches().theta_union(lg_k)
    for data in parts:
        union.update(_theta(data))
    merged: bytes = union.get_result().serialize()
    return merged


def _theta(data: bytes) -> Any:
    if len(data) < _LEAST_BYTES or data[_FAMILY_AT] != _THETA_FAMILY:
        raise damaged("theta", data, "it has no such header")
    try:
        return _datasketches().compact_theta_sketch.deserialize(bytes(data))
    except _DAMAGE as broken:
        raise damaged("theta", data, f"{broken!s:.200}") from broken


_DAMAGE = (ValueError, RuntimeError, IndexError, MemoryError, OverflowError)


def _estimate(sketch: Any) -> Distinct:
    bounds = sketch.get_lower_bound(_STANDARD_DEVIATIONS), sketch.get_upper_bound(_STANDARD_DEVIATIONS)
    return Distinct(sketch.get_estimate(), *bounds)
