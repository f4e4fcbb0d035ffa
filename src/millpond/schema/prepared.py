"""Types that msgspec reads, made ready while their module is imported.

msgspec looks at a type when it is first used, and keeps what it found with the type.  Two threads that do so at once crash the
process (msgspec 0.22); an import is done by one.
"""

from __future__ import annotations

import msgspec


def prepare(*kinds: type) -> None:
    """Let msgspec look at these types, and at all that they hold, now."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
