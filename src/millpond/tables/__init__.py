"""What a store means to a reader: named, typed rows with final values, and the reads on them."""

from __future__ import annotations

from millpond.tables.answer import Count, Row, Rows
from millpond.tables.cold.table import read_arrow, read_row
from millpond.tables.job.bounds import Bounds
from millpond.tables.pond import Pond, open
from millpond.tables.table import Table

__all__ = ["Bounds", "Count", "Pond", "Row", "Rows", "Table", "open", "read_arrow", "read_row"]
