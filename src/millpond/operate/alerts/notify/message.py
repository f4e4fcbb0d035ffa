"""What is said at once: the alerts that fire now and didn't before, those that still fire, and those that have ended."""

from __future__ import annotations

import datetime as dt

import msgspec

from millpond.operate.alerts.evaluate import Alert


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one channel.

    identity: the same for the same news, also when they are said again after a failure
    type:     millpond.alerts
    at_ms:    when the alerts were looked at, milliseconds since 1970
    began, goes_on, ended: alerts; an ended one as it was when it was said last
    """

    identity: str
    type: str = "millpond.alerts"
    at_ms: int
    began: tuple[Alert, ...] = ()
    goes_on: tuple[Alert, ...] = ()
    ended: tuple[Alert, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.began or self.goes_on or self.ended)

    def to_json(self) -> bytes:
        """The body of a webhook's request."""
        return msgspec.json.encode(self)

    @property
    def title(self) -> str:
        """In a line, for the subject of a mail."""
        first, *more = [*self.began, *self.goes_on] or self.ended
        word = "" if self.began or self.goes_on else "ended: "
        return f"{word}{first.job}: {first.title}" + (f" And {len(more)} more." if more else "")

    def to_text(self) -> str:
        """For people."""
        lines: list[str] = []
        for alerts, word in ((self.began, ""), (self.goes_on, "still "), (self.ended, "ended: ")):
            for alert in alerts:
                job = " ".join(alert.job.split())
                lines += [f"{word}{job}: {alert.rule}: {alert.title}"]
                if word != "ended: ":
                    since = dt.datetime.fromtimestamp(alert.since_ms / 1000, dt.UTC).isoformat(timespec="seconds")
                    lines += [
                        f"  measured {alert.value:,.4g} {alert.unit}".rstrip()
                        + f", threshold {alert.threshold:,.4g}, since {since}",
                        f"  {alert.advice}",
                    ]
        return "\n".join(lines) + "\n"
