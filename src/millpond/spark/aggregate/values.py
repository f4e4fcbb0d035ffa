"""Values of aggregates by name: distinct counts, quantiles, the most frequent items.

Each is a column of Spark's own functions, so it can be used in any `agg`, and Spark shows the same
numbers.  Its buffer is a sketch that can be merged: buckets of time, and parts of a salted group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.errors import RequestError, importing_pyspark

if TYPE_CHECKING:
    from pyspark.sql import Column

_LEAST_LG_K, _MOST_LG_K = 4, 21
_LEAST_K, _MOST_K = 8, 65_535
_MOST_TRACKED = 1_000_000


def distinct(column: str | Column, *, rsd: float | None = None, exact: bool = False) -> Column:
    """How many different values a column has, not counting NULL.

    By an HLL sketch: about 4 KiB for a group with many values, less for one with few.  Exact, by
    the set of all values: its state grows with them.

    column:  an integer, text or binary; of any type that `collect_set` takes if exact
    rsd:     the relative standard deviation of the sketch, as of `approx_count_distinct`; None for
             Spark's default, which is 0.016
    exact:   keep all values
    Raises:  INVALID_REQUEST.
    """
    with importing_pyspark():
        from pyspark.sql import functions as sf

    if exact:
        if rsd is not None:
            raise _invalid("an exact count has no rsd", "Leave one of them out.")
        return sf.size(sf.collect_set(column)).cast("bigint")
    return sf.hll_sketch_estimate(sf.hll_sketch_agg(column, None if rsd is None else _lg_k(rsd)))


def quantile(column: str | Column, probability: float | Sequence[float], *, k: int | None = None) -> Column:
    """The value up to which this share of a column's values lies, not counting NULL; NULL without values.

    By a KLL sketch of doubles.  The rank of the answer differs from the one asked for by at most
    0.0133, to 99 %; with a greater `k` by less.

    column:       numbers, which become doubles
    probability:  from 0 to 1, or several of these for an array
    k:            the size of the sketch, from 8 to 65,535; None for Spark's default, 200
    Raises:       INVALID_REQUEST.
    """
    with importing_pyspark():
        from pyspark.sql import functions as sf

    several = not isinstance(probability, float | int)
    ranks = list(probability) if isinstance(probability, Sequence) else [probability]
    if not ranks or not all(isinstance(rank, float | int) and 0 <= rank <= 1 for rank in ranks):
        raise _invalid(f"{probability!r:.40} isn't a probability", "Give numbers from 0 to 1, such as 0.99.")
    if k is not None and not _LEAST_K <= k <= _MOST_K:
        raise _invalid(f"a quantile can't have k={k!r:.20}", f"Use {_LEAST_K} to {_MOST_K}.")
    sketch = sf.kll_sketch_agg_double(_named(column).cast("double"), k)
    wanted = sf.array(*(sf.lit(float(rank)) for rank in ranks)) if several else sf.lit(float(ranks[0]))
    # Spark fails on a sketch without values.
    return sf.when(sf.kll_sketch_get_n_double(sketch) > 0, sf.kll_sketch_get_quantile_double(sketch, wanted))


def top_k(column: str | Column, k: int = 5, *, max_items_tracked: int = 10_000) -> Column:
    """The most frequent values of a column and how often each came: an array of structs `item`, `count`.

    By a sketch of frequent items.  It is exact while a group has no more different values than are
    tracked.  NULL is an item too.

    column:             of any type that `approx_top_k` takes
    k:                  how many
    max_items_tracked:  how many the sketch remembers, up to 1,000,000
    Raises:             INVALID_REQUEST.
    """
    with importing_pyspark():
        from pyspark.sql import functions as sf

    if not 1 <= k <= max_items_tracked <= _MOST_TRACKED:
        found = f"top_k can't have k={k!r:.20} and max_items_tracked={max_items_tracked!r:.20}"
        raise _invalid(found, f"Track at least k items, and at most {_MOST_TRACKED}.")
    return sf.call_function("approx_top_k", _named(column), sf.lit(k), sf.lit(max_items_tracked))


def _lg_k(rsd: float) -> int:
    # Source: HyperLogLog's error 1.04 / sqrt(k), which merged sketches have.
    if not 0 < rsd < 1 or (lg_k := math.ceil(2 * math.log2(1.04 / rsd))) > _MOST_LG_K:
        raise _invalid(f"a distinct count can't have rsd={rsd!r:.20}", "Use 0.0008 to 0.25.")
    return max(lg_k, _LEAST_LG_K)


def _named(column: str | Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(column) if isinstance(column, str) else column


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The value can't be used: {found}.", hint=hint)
