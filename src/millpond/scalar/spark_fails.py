"""The error of a value on which Spark fails too: only such a value is NULL in a try_ function."""

from __future__ import annotations

from millpond.errors import RequestError


class SparkFails(RequestError):
    """Spark's own error of a value; a value that merely isn't known here has another error."""
