"""What a store means to a reader: named, typed rows with final values, and the reads on them."""

from __future__ import annotations

from millpond.tables.answer import Row, Rows

__all__ = ["Row", "Rows"]
