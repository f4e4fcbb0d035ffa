"""Which alerts have been said where, so that each channel hears of a begin and an end once.

1. An alert is said when it begins, again after each `repeat`, and when it has ended.
2. What was said is kept in a file, channel by channel, after the channel has taken the message: so
   after a failure or a restart it is said at least once, and not again and again.
3. Of a job that can't be read now nothing is known: its alerts neither begin nor end.  An alert that
   is silenced, or that is met again after a time without samples, hasn't ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from millpond.errors import MillpondError
from millpond.logs import EventLog, Trouble
from millpond.operate.alerts.evaluate import Alert
from millpond.operate.alerts.notify.channels import Channel
from millpond.operate.alerts.notify.message import Message
from millpond.schema.prepared import ready
from millpond.settings import FileBounds, home
from millpond.storage import Storage, open_storage

log = EventLog(__name__)
_FOLDER = "alerts"


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """An alert as it was said last, and when."""

    alert: Alert
    at_ms: int


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int = 1
    said: dict[str, list[_Said]] = {}


class Notifier:
    """Tells channels; for one thread.

    errors:  channel -> why the last message didn't reach it; empty if all went well
    """

    def __init__(self, place: str, channels: Sequence[Channel], repeat_seconds: float, storage: Storage | None = None) -> None:
        """
        place:          whose alerts they are
        repeat_seconds: after so long, an alert that still fires is said again
        storage:        where it is kept what was said; None: below the user's own folder
        """
        self._channels, self._repeat_ms = channels, int(repeat_seconds * 1000)
        self._storage = open_storage(home() / _FOLDER) if storage is None else storage
        self._name = f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"
        self._said = self._read()
        self._troubles = {channel.name: Trouble(log, "alerts", channel=channel.name) for channel in channels}
        self.errors: dict[str, MillpondError] = {}

    def tell(
        self,
        firing: Sequence[Alert],
        now_ms: int,
        unknown: Collection[str] = (),
        kept: Collection[tuple[str, str]] = (),
    ) -> list[Message]:
        """Tell each channel what is new to it; returns the messages that were taken.

        unknown:  jobs that couldn't be looked at
        kept:     (job, rule) of alerts that aren't said, and haven't ended either
        Raises:   NOT_WRITABLE if it can't be kept what was said.
        """
        sent: list[Message] = []
        for channel in self._channels:
            said = self._said.get(channel.name, {})
            message, after = self._news(said, firing, now_ms, unknown, kept)
            if message.is_empty:
                self._well(channel.name)
                continue
            try:
                channel.send(message)
            except MillpondError as error:
                self.errors[channel.name] = error
                self._troubles[channel.name].met(error)
                continue
            self._well(channel.name)
            self._said[channel.name] = after
            self._write()  # 2
            sent.append(message)
        return sent

    def _well(self, channel: str) -> None:
        """There is nothing that the channel doesn't know."""
        self.errors.pop(channel, None)
        self._troubles[channel].over()

    def _news(
        self,
        said: Mapping[tuple[str, str], _Said],
        firing: Sequence[Alert],
        now_ms: int,
        unknown: Collection[str],
        kept: Collection[tuple[str, str]],
    ) -> tuple[Message, dict[tuple[str, str], _Said]]:  # 1, 3
        now = {(alert.job, alert.rule): alert for alert in _shown(firing)}
        after = {key: before for key, before in said.items() if key in now or key in kept or key[0] in unknown}
        words = []
        began, goes_on = [], []
        for key, alert in now.items():
            before = said.get(key)
            if before is None:
                began.append(alert)
                words.append(("began", *key, alert.since_ms))
            elif now_ms - before.at_ms >= self._repeat_ms:
                goes_on.append(alert)
                words.append(("goes_on", *key, before.at_ms))
            else:
                continue
            after[key] = _Said(alert=alert, at_ms=now_ms)
        ended = [before.alert for key, before in said.items() if key not in after]
        words += [("ended", *key, before.at_ms) for key, before in said.items() if key not in after]
        # The same for the same news, so that a receiver whose answer was lost knows them again.
        identity = "alerts-" + hashlib.sha256(repr(words).encode("utf-8", "backslashreplace")).hexdigest()[:32]
        message = Message(identity=identity, at_ms=now_ms, began=tuple(began), goes_on=tuple(goes_on), ended=tuple(ended))
        return message, after

    def _read(self) -> dict[str, dict[tuple[str, str], _Said]]:
        """By channel; nothing if the file is gone or damaged: then alerts are said once more."""
        if self._storage.stamp(self._name) is None:
            return {}
        try:
            found = msgspec.json.decode(self._storage.read(self._name, FileBounds().samples_bytes), type=ready(_File))
        except (MillpondError, msgspec.MsgspecError):
            return {}
        return {name: {(each.alert.job, each.alert.rule): each for each in each_said} for name, each_said in found.said.items()}

    def _write(self) -> None:
        there = {channel.name for channel in self._channels}
        said = {name: list(found.values()) for name, found in self._said.items() if name in there}
        self._storage.write(self._name, msgspec.json.encode(_File(said=said)))


def _shown(alerts: Sequence[Alert]) -> tuple[Alert, ...]:
    """With names in UTF-8: a folder's name may have other bytes, which become escapes."""
    return tuple(_written(alert) for alert in alerts)


def _written(alert: Alert) -> Alert:
    return msgspec.structs.replace(alert, job=alert.job.encode("utf-8", "backslashreplace").decode())
