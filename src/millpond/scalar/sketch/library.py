"""HLL and theta sketches, read and merged by the library `datasketches`, the C++ of their own project.

This is the only module that imports it.

The surprising part: the library trusts the bytes of an HLL sketch, and damaged ones end the whole
process.  So they are checked first, as far as it relies on them.

    HLL   u8 ints of preamble, version, family 7, u8 logarithm of its size, u8 that of its table, u8 flags, u8 items of a list,
          u8 mode: 8 a list, 9 a set, 10 registers; all as Spark makes them, for registers of 8 bits
    list  items of 4 bytes, 0 if there is none;  set: u32 how many, and such items
    registers  f64 x 3, u32 x 2, and a byte for each

Source:  HllSketchAgg, ThetaSketchAgg and ThetaUnionAgg of Spark 4.3, which use Java's
         DataSketches 6.2; the bytes are the same in both languages.
"""

from __future__ import annotations

import math
import struct
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
_LG_KS = range(4, 22)
_LG_TABLE_AT, _COUNT_AT, _MODE_AT = 4, 6, 7
_LIST, _SET, _REGISTERS = 8, 9, 10
_LIST_INTS, _SET_INTS, _REGISTER_INTS = 2, 3, 10
_REGISTER_MOST = 63
# What the library raises on bytes that are no sketch.
_DAMAGE = (ValueError, RuntimeError, IndexError, MemoryError, OverflowError)


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
    for data, sketch in zip(parts, each, strict=True):
        try:
            union.update(sketch)
        except _DAMAGE as broken:
            raise damaged("HLL", data, f"{broken!s:.200}") from broken
    merged: bytes = union.get_result(library.tgt_hll_type.HLL_8).serialize_updatable()
    return merged


def _hll(data: bytes) -> Any:
    if len(data) < _LEAST_BYTES or data[_FAMILY_AT] != _HLL_FAMILY or data[_LG_K_AT] not in _LG_KS:
        raise damaged("HLL", data, "it has no such header")
    if not _is_whole(data):
        raise damaged("HLL", data, "its items don't fit its header")
    try:
        return _datasketches().hll_sketch.deserialize(bytes(data))
    except _DAMAGE as broken:
        raise damaged("HLL", data, f"{broken!s:.200}") from broken


def _is_whole(data: bytes) -> bool:
    ints, lg_k, lg_table, mode = data[0], data[_LG_K_AT], data[_LG_TABLE_AT], data[_MODE_AT]
    items = data[4 * ints :]
    if mode == _REGISTERS:
        sums = struct.unpack_from("<3d", data, _LEAST_BYTES) if len(data) >= 4 * _REGISTER_INTS else (math.nan,)
        is_positive = all(0.0 <= number < math.inf for number in sums)
        return ints == _REGISTER_INTS and len(items) == 1 << lg_k and not _exceed(items) and is_positive
    if mode == _LIST:
        is_right, count = ints == _LIST_INTS and lg_table <= 3, data[_COUNT_AT]
    elif mode == _SET and len(data) >= 4 * _SET_INTS:
        # A table without a free place would be searched for ever.
        (count,) = struct.unpack_from("<I", data, _LEAST_BYTES)
        is_right = ints == _SET_INTS and lg_table < lg_k and count < 1 << lg_table
    else:
        return False
    if not is_right or len(items) != 4 << lg_table:
        return False
    there = [item for (item,) in struct.iter_unpack("<I", items) if item]
    return len(there) == count == len(set(there))


def _exceed(registers: bytes) -> bool:
    """Whether one exceeds `_REGISTER_MOST`: all at once, as one number."""
    return bool(int.from_bytes(registers, "little") & _too_large(len(registers)))


@cache
def _too_large(count: int) -> int:
    return int.from_bytes(bytes([255 - _REGISTER_MOST]) * count, "little")


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
        try:
            union.update(_theta(data))
        except _DAMAGE as broken:
            raise damaged("theta", data, f"{broken!s:.200}") from broken
    merged: bytes = union.get_result().serialize()
    return merged


def _theta(data: bytes) -> Any:
    if len(data) < _LEAST_BYTES or data[_FAMILY_AT] != _THETA_FAMILY:
        raise damaged("theta", data, "it has no such header")
    try:
        return _datasketches().compact_theta_sketch.deserialize(bytes(data))
    except _DAMAGE as broken:
        raise damaged("theta", data, f"{broken!s:.200}") from broken


def _estimate(sketch: Any) -> Distinct:
    bounds = sketch.get_lower_bound(_STANDARD_DEVIATIONS), sketch.get_upper_bound(_STANDARD_DEVIATIONS)
    return Distinct(sketch.get_estimate(), *bounds)
