"""Aggregates and joins over the changes of tables."""

from __future__ import annotations

from millpond.spark.compose.aggregate import aggregate_changes, signed_rows
from millpond.spark.compose.join import join_changes
from millpond.spark.compose.values import Top, top

__all__ = ["Top", "aggregate_changes", "join_changes", "signed_rows", "top"]
