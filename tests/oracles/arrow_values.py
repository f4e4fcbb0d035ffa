"""Arrow tables as texts that tests compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


def shown(table: pyarrow.Table) -> list[str]:
    """The values of each column; if Python has no object for one, as Arrow prints them."""
    texts = []
    for column in table.columns:
        try:
            texts.append(repr(column.to_pylist()))
        except (OverflowError, ValueError):
            texts.append(column.to_string(window=1000))
    return texts
