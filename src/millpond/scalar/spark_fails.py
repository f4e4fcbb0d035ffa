"""The error of a value that Spark fails on as well: only such a one is NULL in a try_ function."""

from __future__ import annotations

from millpond.errors import RequestError


class SparkFails(RequestError):
    """Spark's own error of a value.  Where a value only isn't known here, it's another."""
