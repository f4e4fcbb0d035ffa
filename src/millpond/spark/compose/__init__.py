"""Aggregates over the changes of a table."""

from __future__ import annotations

from millpond.spark.compose.aggregate import aggregate_changes, signed_rows
from millpond.spark.compose.values import Top, top

__all__ = ["Top", "aggregate_changes", "signed_rows", "top"]
