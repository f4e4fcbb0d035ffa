"""Loads the compiled library.

It is plain C, called by ctypes: one file works for every Python, and other threads can run
meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PATH = Path(__file__).with_name("libmillpond.so")
# Python reads fewer bytes faster than numpy is imported, whose arrays the library needs.
_few_bytes = 16 << 10
_NUMBER, _POINTER, _FLAG, _TEXT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
# name -> (type of the result, types of the arguments): N number, F flag, P pointer
_FUNCTIONS = {
    "stamp": (_NUMBER, ""),
    "find_records": (_NUMBER, "PNNFNPPPPP"),
    "find_whole_records": (_NUMBER, "PNFP"),
    "find_last": (_FLAG, "PNNFPNP"),
    "measure_stream": (_NUMBER, "PN"),
    "unpack_stream": (_FLAG, "PNP"),
    "measure_blocks": (_NUMBER, "PNNPPP"),
    "unpack_blocks": (_FLAG, "PNPPPP"),
    "find_entries": (_NUMBER, "PNPNPPPPPPP"),
    "merge_runs": (_NUMBER, "NPPNPPPPPP"),
    "newest_entries": (_NUMBER, "NPPNP"),
    "lower_bound": (_NUMBER, "PPPNNPN"),
    "find_elements": (_NUMBER, "PNNPPPNPPP"),
    "newest_records": (_NUMBER, "PNNPPNPNPNNPPPP"),
    "mark_newest": (_NUMBER, "NPFN"),
    "read_words": (_FLAG, "PNNPPNNPNPP"),
    "find_parts": (_FLAG, "NPPPPPP"),
    "order_keys": (_FLAG, "PNNPPPNNPNP"),
    "gather": (_FLAG, "PNNPPPNP"),
    "sort_newest": (_NUMBER, "PNNPPP"),
    "hash_rows": (_FLAG, "PNNPPNNNPP"),
    "write_records": (_FLAG, "PNPPPNPPPNNPPPP"),
    "sum_rows": (_FLAG, "PNPPPNPPPNPP"),
    "merge_records": (_NUMBER, "NPPPNP"),
    "build_block": (_NUMBER, "PNNNNFPNPNP"),
    "merge_items": (_NUMBER, "NPPFNP"),
    "top_items": (_NUMBER, "PNFNNPPPP"),
}
_TYPES = {"N": _NUMBER, "F": _FLAG, "P": _POINTER}


def source_stamp() -> int:
    """A number that changes with the C sources and the Python code that calls them."""
    stamp = 0
    for path in sorted(_PATH.parent.rglob("*")):
        if path.suffix in (".c", ".h", ".py"):
            stamp = zlib.crc32(path.read_bytes(), stamp)
    return stamp


class Library:
    """The functions with the types of their arguments."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, [_TYPES[letter] for letter in arguments]
        # These make Python objects, so they keep Python's lock.
        with_lock = ctypes.PyDLL(str(path))
        self.to_list = with_lock.to_list
        self.to_list.restype, self.to_list.argtypes = (
            ctypes.py_object,
            (_POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER, _POINTER, _NUMBER),
        )
        self.row_json = with_lock.row_json
        self.row_json.restype = ctypes.py_object
        self.row_json.argtypes = [_TEXT, _NUMBER, _NUMBER, _POINTER, _NUMBER, _TEXT, _NUMBER, _TEXT, _NUMBER]
        self.new_reader, self.allow_reader, self.new_table = with_lock.new_reader, with_lock.allow_reader, with_lock.new_table
        self.new_reader.restype, self.new_reader.argtypes = ctypes.py_object, [ctypes.py_object, _POINTER, _POINTER]
        self.allow_reader.restype = None
        self.allow_reader.argtypes = [ctypes.py_object, ctypes.c_size_t, ctypes.c_double, ctypes.py_object]
        self.end_reader = with_lock.end_reader
        self.end_reader.restype, self.end_reader.argtypes = None, [ctypes.py_object]
        self.new_table.restype = ctypes.py_object
        self.new_table.argtypes = [ctypes.py_object, _TEXT, _POINTER, _POINTER, _TEXT, ctypes.py_object]
        self.new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
        self.new_bytes.restype, self.new_bytes.argtypes = ctypes.py_object, [_POINTER, ctypes.c_ssize_t]


@cache
def _load() -> Library | None:
    if os.environ.get("MILLPOND_NATIVE") == "0":
        return None
    try:
        found = Library(_PATH)
        return found if found.c.stamp() == source_stamp() else None
    except (OSError, AttributeError):  # not built, for another system, or from other sources
        return None


_off = 0


def library(size_bytes: int = 1 << 62) -> Library | None:
    """The library; None if it can't be loaded, or if Python reads so few bytes faster."""
    return None if _off or size_bytes < _few_bytes else _load()


@contextmanager
def switched_off() -> Iterator[None]:
    """Do without the library, so that tests and benchmarks can compare both ways."""
    global _off
    _off += 1
    try:
        yield
    finally:
        _off -= 1


@contextmanager
def small_too() -> Iterator[None]:
    """Use the library for small inputs too, so that tests can compare both ways."""
    global _few_bytes
    before, _few_bytes = _few_bytes, 0
    try:
        yield
    finally:
        _few_bytes = before
