"""Prepares types for msgspec while their module is imported.

msgspec inspects a type at its first use, and stores the result with the type.  Two threads that do
so at once crash the process (msgspec 0.22); only one thread runs an import.
"""

from __future__ import annotations

import msgspec


def prepare(*kinds: type) -> None:
    """Let msgspec inspect these types, and the types of their members, now."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
