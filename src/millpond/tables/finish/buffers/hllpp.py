"""HyperLogLog++: how many distinct values a sketch has seen, with Spark's constants and steps.

The surprising part: Spark counts linearly in two cases, below the paper's threshold, and if the raw
estimate is at most 2.5 times the number of registers.  The second is the rule of the older
HyperLogLog; it matters if there are few registers.

Source:  bytecode of org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper, Spark 4.3, whose
         thresholds differ from the paper's in one place; hllpp.json is written by
         tools/write_hllpp_tables.py.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

REGISTERS_PER_WORD = 10
_REGISTER_BITS = 6
# From this precision on there is no bias correction.
_CORRECTED_BELOW = 19
_PAIR_BITS = 2 * _REGISTER_BITS
_PAIR_MASK = (1 << _PAIR_BITS) - 1


class _Tables(NamedTuple):
    neighbours: int
    thresholds: list[float]
    estimates: list[list[float]]
    biases: list[list[float]]


@cache
def _tables() -> _Tables:
    data = json.loads(resources.files("millpond.tables.finish.buffers").joinpath("hllpp.json").read_text())
    return _Tables(data["neighbours"], data["thresholds"], data["estimates"], data["biases"])


# For two registers at once: the sum of their inverses, and how many are zero. Sums of these powers
# of two are exact in a double (up to about 2**44 values), so their order doesn't matter.
_PAIR_INVERSES = [2.0 ** -(pair & 63) + 2.0 ** -(pair >> _REGISTER_BITS) for pair in range(1 << _PAIR_BITS)]
_PAIR_ZEROS = [(pair & 63 == 0) + (pair >> _REGISTER_BITS == 0) for pair in range(1 << _PAIR_BITS)]


class Sketch(NamedTuple):
    """The constants of sketches of one precision.

    registers, words:  their numbers; the last word may have room for more registers
    threshold:         up to this estimate, values are counted linearly
    estimates, biases: measured estimates and how much too high they are; empty if none are
                       corrected
    """

    registers: int
    words: int
    alpha_m2: float
    threshold: float
    neighbours: int
    estimates: list[float]
    biases: list[float]

    def linear(self, zeros: int) -> float:
        """The linear count if so many registers are zero, at least one."""
        return self.registers * math.log(self.registers / float(zeros))


def sketch(precision: int) -> Sketch:
    """The sketch of precision p: 2**p registers of six bits, ten per 64-bit word, lowest bits first."""
    registers = 1 << precision
    alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(precision, 0.7213 / (1.0 + 1.079 / registers))
    corrected, place, tables = precision < _CORRECTED_BELOW, precision - 4, _tables()
    return Sketch(
        registers,
        -(-registers // REGISTERS_PER_WORD),
        alpha * registers * registers,
        tables.thresholds[place] if corrected else -math.inf,
        tables.neighbours,
        tables.estimates[place] if corrected else [],
        tables.biases[place] if corrected else [],
    )


def estimator(precision: int) -> Callable[[Sequence[int]], int]:
    """A function from the words of a sketch of this precision to the estimated number of distinct values."""
    facts = sketch(precision)
    registers, alpha_m2, threshold = facts.registers, facts.alpha_m2, facts.threshold
    # The last word may have room for registers beyond the sketch; they are zero and don't count.
    spare = facts.words * REGISTERS_PER_WORD - registers

    def estimate(words: Sequence[int]) -> int:
        # Most words of a small sketch are empty.
        empty = REGISTERS_PER_WORD * words.count(0) - spare
        inverses, zeros = float(empty), empty
        for word in filter(None, words):
            for _ in range(REGISTERS_PER_WORD // 2):
                pair = word & _PAIR_MASK
                inverses += _PAIR_INVERSES[pair]
                zeros += _PAIR_ZEROS[pair]
                word >>= _PAIR_BITS
        raw = alpha_m2 / inverses
        if zeros > 0:
            linear = facts.linear(zeros)
            if linear <= threshold or raw <= 2.5 * registers:
                return _round(linear)
        return _round(raw - bias(precision, raw) if facts.estimates and raw < 5.0 * registers else raw)

    return estimate


def bias(precision: int, estimate: float) -> float:
    """How much too high an estimate is: the mean bias of the measured estimates nearest to it."""
    tables = _tables()
    estimates, biases = tables.estimates[precision - 4], tables.biases[precision - 4]
    low = max(bisect_left(estimates, estimate) - tables.neighbours + 1, 0)
    high = min(low + tables.neighbours, len(estimates))
    while high < len(estimates) and (estimate - estimates[high]) ** 2 < (estimate - estimates[low]) ** 2:
        low += 1
        high += 1
    total = 0.0
    for index in range(low, high):
        total += biases[index]
    return total / (high - low)


def _round(value: float) -> int:
    """Java's Math.round: to the nearest whole number, halves upwards."""
    whole = math.floor(value)
    return whole + (value - whole >= 0.5)
