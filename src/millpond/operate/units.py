"""Numbers with their units, and times, for people."""

from __future__ import annotations

import datetime as dt


def seconds_text(seconds: float) -> str:
    """Seconds for people: 0.12 s, 3.4 s, 5 min, 2.1 h, 3.2 d."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= length * 1.5:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} s" if abs(seconds) < 1 else f"{seconds:.1f} s"


def size_text(size_bytes: float, byte: str = "B") -> str:
    """Bytes for people: 12 B, 3.4 KiB, 5.0 GiB.

    byte:  the unit of fewer than 1024
    """
    for unit in (byte, "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == byte else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def money(amount: float) -> str:
    """An amount of money for people: two digits after the point, more of a small one."""
    return f"{amount:,.2f}" if abs(amount) >= 0.1 or amount == 0 else f"{amount:.2g}" if abs(amount) >= 1e-4 else f"{amount:.0e}"


def moment(milliseconds: int) -> str:
    """UTC, to the millisecond; the number itself if no calendar has it."""
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
