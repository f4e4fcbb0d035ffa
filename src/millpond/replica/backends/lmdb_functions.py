"""LMDB's own functions, as py-lmdb has loaded them, for compiled code that reads one key.

py-lmdb exports LMDB's functions, but not where its objects hold LMDB's.  Where a transaction holds
LMDB's is found once per process, with nothing followed that could lead nowhere: in an environment
that keeps ended transactions, it is the word of a transaction that the environment has after its
end, and the next transaction again.  Whoever has another py-lmdb, where that isn't so, reads
through py-lmdb alone.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import lmdb

# In the order of `Lmdb` in native/c/lookup.c.
NAMES = ("txn_env", "txn_begin", "txn_renew", "txn_reset", "txn_abort", "txn_id", "dbi_open", "get")
_WORD_BYTES = ctypes.sizeof(ctypes.c_void_p)
# The copies of LMDB in py-lmdb: the table of functions of each, and how its functions' names begin.
_COPIES = {"lmdb_api_v09": "mdb09_", "lmdb_api_v10": "mdb10_"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What py-lmdb has loaded.

    functions:      by the address of a copy's table: the addresses of the functions in NAMES
    table_place:    which word of a transaction is that address
    txn_place:      which word of it is LMDB's transaction
    """

    functions: dict[int, tuple[int, ...]]
    table_place: int
    txn_place: int

    def of(self, transaction: lmdb.Transaction) -> tuple[int, tuple[int, ...]] | None:
        """LMDB's transaction in one that is open, and the functions for it; None if they aren't known."""
        words = _words(transaction)
        functions = self.functions.get(words[self.table_place])
        return None if functions is None or not words[self.txn_place] else (words[self.txn_place], functions)


@cache
def loaded() -> Loaded | None:
    """Finds them; None if they can't be found, or if Python has no lock that the compiled code could rely on."""
    module: ModuleType | None = sys.modules.get("lmdb.cpython")
    if module is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        functions = _functions(ctypes.CDLL(str(module.__file__)))
        places = _places(set(functions)) if functions else None
    except (OSError, lmdb.Error, TypeError):
        return None
    return None if places is None else Loaded(functions, *places)


def _functions(library: ctypes.CDLL) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for table, prefix in _COPIES.items():
        try:
            at = ctypes.addressof(ctypes.c_char.in_dll(library, table))
            addresses = [ctypes.cast(getattr(library, prefix + name), ctypes.c_void_p).value for name in NAMES]
        except (ValueError, AttributeError):  # built with another LMDB
            continue
        found[at] = tuple(address or 0 for address in addresses)
    return found


def _places(tables: set[int]) -> tuple[int, int] | None:
    """Which words of a transaction are the table and LMDB's transaction."""
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=1 << 20, max_spare_txns=1, lock=False) as environment:
        before = set(_words(environment))
        first = environment.begin()
        words = _words(first)
        first.abort()
        del first
        kept = set(_words(environment)) - before
        second = environment.begin()
        again, left = _words(second), set(_words(environment))
        second.abort()
        txn = [n for n, word in enumerate(words) if word in kept and word and again[n] == word and word not in left]
        table = [n for n, word in enumerate(words) if word in tables and again[n] == word]
        return (table[0], txn[0]) if len(txn) == 1 and len(table) == 1 else None


def _words(thing: Any) -> Sequence[int]:
    """The words of one of py-lmdb's objects, which have a fixed size."""
    count = type(thing).__basicsize__ // _WORD_BYTES
    return list((ctypes.c_size_t * count).from_address(id(thing)))
