"""Types that msgspec has inspected, one at a time.

msgspec inspects a type at its first use, and stores the result, at first half done, with the type
and the types of its members.  A thread that uses one of them meanwhile crashes the process
(msgspec 0.22).  So whoever decodes says `ready(kind)`, and only one thread inspects.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")
_inspecting = threading.Lock()
_inspected: set[Any] = set()


def ready(kind: Kind) -> Kind:
    """The type itself, once msgspec has inspected it and the types of its members."""
    if kind not in _inspected:
        with _inspecting:
            msgspec.json.Decoder(kind)
            _inspected.add(kind)
    return kind
