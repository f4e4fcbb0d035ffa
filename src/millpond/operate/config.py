"""Thresholds and silences of alerts and of the doctor, and who hears of alerts, from a TOML file.

[thresholds]
state-large = 53687091200          # bytes
batch-slow = 300                   # seconds

[jobs.page_views.thresholds]       # for one job
partition-skew = 20

[[silences]]
rule = "job-down"                  # without it, all rules
job = "backfill"                   # without it, all jobs
until = 2026-12-01T00:00:00Z       # without it, for ever
reason = "runs once a month"

[notify]
repeat = "4h"                      # how soon an alert that still fires is said again

[[notify.webhooks]]
url = "https://hooks.example/millpond"

[[notify.mails]]
server = "smtp.example.org:587"
from = "millpond@example.org"
to = ["oncall@example.org"]

[doctor.thresholds]                # the same for `millpond doctor`, whose rules are others
text-value = 104857600             # bytes

[[doctor.silences]]
rule = "many-partitions"
reason = "the job was made for more"
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import msgspec

from millpond.errors import RequestError, SetupError
from millpond.operate.alerts import rules as alerts
from millpond.operate.alerts.notify.channels import Channel, Mail, Webhook
from millpond.operate.doctor.rules import rules as doctor
from millpond.schema.prepared import ready
from millpond.settings import parse_length

_LEAST_REPEAT_SECONDS = 60


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    thresholds: dict[str, float] = {}


class _Fires(Protocol):
    """An alert, or advice."""

    @property
    def rule(self) -> str: ...

    @property
    def job(self) -> str: ...


class Silence(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Rules that aren't to be reported, and why."""

    reason: str
    rule: str | None = None
    job: str | None = None
    until: dt.datetime | None = None

    def covers(self, alert: _Fires, now: dt.datetime) -> bool:
        """Whether it silences an alert, or advice, now."""
        return self.rule in (None, alert.rule) and self.job in (None, alert.job) and (self.until is None or now < self.until)


class Notify(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Who hears of alerts, and how often."""

    repeat: str = "4h"
    webhooks: list[Webhook] = []
    mails: list[Mail] = []

    @property
    def channels(self) -> list[Channel]:
        """All of them."""
        return [*self.webhooks, *self.mails]

    @property
    def repeat_seconds(self) -> float:
        """After so long, an alert that still fires is said again.  Raises INVALID_REQUEST."""
        seconds = parse_length("repeat", self.repeat)
        return float("1e15") if seconds is None else seconds


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What the file says of some rules; all with their own thresholds without one."""

    thresholds: dict[str, float] = {}
    jobs: dict[str, _Job] = {}
    silences: list[Silence] = []

    def thresholds_of(self, job: str) -> dict[str, float]:
        """Rule -> its threshold for a job, where it isn't the rule's own."""
        return {**self.thresholds, **(self.jobs[job].thresholds if job in self.jobs else {})}

    def silence_of(self, alert: _Fires, now: dt.datetime) -> Silence | None:
        """The first silence that covers an alert now, if there is one."""
        return next((silence for silence in self.silences if silence.covers(alert, now)), None)


class OperateConfig(RuleConfig, forbid_unknown_fields=True):
    """The whole file: of the alerts, who hears of them, and in a section of its own the doctor."""

    doctor: RuleConfig = msgspec.field(default_factory=RuleConfig)
    notify: Notify = msgspec.field(default_factory=Notify)


def read_config(path: Path) -> OperateConfig:
    """The file's content.  Raises FILE_MISSING, INVALID_CONFIG."""
    try:
        data = tomllib.loads(path.read_bytes().decode())
        config = msgspec.convert(data, ready(OperateConfig))
    except FileNotFoundError:
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint="Give a TOML file with --config.") from None
    except (OSError, ValueError) as wrong:
        raise _invalid(path, str(wrong)) from None
    _check(path, config, alerts.BY_ID, alerts.BY_ID)
    _check_notify(path, config.notify)
    _check(path, config.doctor, doctor.BY_ID, [rule.id for rule in doctor.RULES if rule.threshold is not None])
    return config


def _check(path: Path, config: RuleConfig, rules: Collection[str], measured: Collection[str]) -> None:
    """measured:  those that have a threshold"""
    for thresholds in (config.thresholds, *(job.thresholds for job in config.jobs.values())):
        for rule in thresholds:
            _check_rule(path, rule, measured)
    for silence in config.silences:
        if silence.rule is not None:
            _check_rule(path, silence.rule, rules)
        if silence.until is not None and silence.until.tzinfo is None:
            raise _invalid(path, f"the silence {silence.reason!r:.80} ends at a time without a time zone")


def _check_notify(path: Path, notify: Notify) -> None:
    try:
        if notify.repeat_seconds < _LEAST_REPEAT_SECONDS:
            raise _invalid(path, f"repeat is {notify.repeat!r:.80}, which isn't a minute or more")
        for webhook in notify.webhooks:
            webhook.check()
        for mail in notify.mails:
            mail.check()
    except RequestError as wrong:
        raise _invalid(path, wrong.message.removesuffix(".")) from None
    names = [channel.name for channel in notify.channels]
    if len(set(names)) < len(names):
        raise _invalid(path, "it names a webhook or a mail twice")


def _check_rule(path: Path, rule: str, rules: Collection[str]) -> None:
    if rule not in rules:
        raise _invalid(path, f"there is no rule {rule!r:.80} here; the rules are {', '.join(rules)}")


def _invalid(path: Path, why: str) -> RequestError:
    return RequestError("INVALID_CONFIG", f"{path}: {why}.", hint="docs/alerts.md and docs/doctor.md show a file.")
