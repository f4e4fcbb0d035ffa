"""The job's side, and the only package that uses PySpark and the JVM."""

from __future__ import annotations

from millpond.spark.derive.definition import MillpondWarning, derive
from millpond.spark.java import find_java
from millpond.spark.job import Job, run_until_stopped
from millpond.spark.salted.stream import Salted, salted
from millpond.spark.session import session
from millpond.spark.start import define, publish, start

__all__ = [
    "Job",
    "MillpondWarning",
    "Salted",
    "define",
    "derive",
    "find_java",
    "publish",
    "run_until_stopped",
    "salted",
    "session",
    "start",
]
