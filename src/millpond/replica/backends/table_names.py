"""The names of a replica's tables: of its stores, their expired rows, their indexes, and those that all stores share."""

from __future__ import annotations

from millpond.replica.history.keeper import SHARED_TABLES, closed_table
from millpond.replica.record import StoresRecord


def index_table(table: str, number: int) -> str:
    """The index of a table, by its number among those of the store."""
    return f"index/{number}/{table}"


def table_names(stores: StoresRecord) -> list[str]:
    """Every table of a replica of these stores."""
    ids = [store.id for store in stores.stores]
    indexes = [
        index_table(table, number)
        for store, records in stores.indexes.items()
        for number in range(len(records))
        for table in (store, closed_table(store))
    ]
    return [*ids, *map(closed_table, ids), *SHARED_TABLES, *indexes]
