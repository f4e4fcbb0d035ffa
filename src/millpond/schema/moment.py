"""Times that a caller names: an aware datetime, or an ISO text."""

from __future__ import annotations

import datetime as dt

from millpond.schema.convert import to_stored
from millpond.schema.definition.default_table import TIMESTAMP
from millpond.schema.values import from_text


def time_micros(when: dt.datetime | str) -> int:
    """Microseconds since 1970 UTC of an aware datetime or an ISO text.  Raises WRONG_TYPE."""
    moment = from_text(TIMESTAMP, column="time")(when) if isinstance(when, str) else when
    return int(to_stored(TIMESTAMP, column="time")(moment))
