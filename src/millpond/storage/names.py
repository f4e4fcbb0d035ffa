"""Numbers in the names of files: batches, versions, operators."""

from __future__ import annotations

import re
from collections.abc import Iterable

# 18 digits fit into 64 bits, with the version that is one more than its batch.
NUMBER = "0|[1-9][0-9]{0,17}"
"""pattern of a number as Spark writes it: without zeros in front"""
_NUMBER = re.compile(NUMBER)


def numbers(names: Iterable[str]) -> list[int]:
    """The numbers among names, ascending.  Whatever else lies there isn't Spark's."""
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))
