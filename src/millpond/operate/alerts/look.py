"""The alerts of all jobs of a place, at one moment."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from millpond.catalogue import JobFolder, find_job, read_catalogue
from millpond.errors import MillpondError
from millpond.operate.alerts.evaluate import LOOK_BACK_SECONDS, Alert, judge
from millpond.operate.config import OperateConfig, RuleConfig, Silence
from millpond.operate.measure import JobMeter
from millpond.operate.sample import Sample
from millpond.operate.sample_log import samples_of
from millpond.storage.places import Places


@dataclass(frozen=True, slots=True)
class Looked:
    """What fires at one moment.

    loud:      alerts
    silenced:  alerts that a silence covers, with it
    errors:    job -> why it couldn't be looked at
    begins:    (job, rule) of rules that are met, but not yet for long enough
    """

    loud: list[Alert] = field(default_factory=list)
    silenced: list[tuple[Alert, Silence]] = field(default_factory=list)
    errors: dict[str, MillpondError] = field(default_factory=dict)
    begins: set[tuple[str, str]] = field(default_factory=set)


def look(
    place: str, config: OperateConfig, job: str | None = None, allow: Iterable[str] = (), *, with_sample: bool = True
) -> Looked:
    """By the samples that are kept, and by one that is taken now.

    job:          only this one
    with_sample:  whether one is taken, which measures the whole state
    Raises:  NO_CHECKPOINT, UNKNOWN_JOB …: if the place can't be read, or that job isn't there.
    """
    found, now = Looked(), dt.datetime.now(dt.UTC)
    if job is None:
        catalogue = read_catalogue(place, Places.of(tuple(allow)))
        folders = list(catalogue.jobs)
        found.errors.update(catalogue.broken)
    else:
        folders = [find_job(place, job, allow=allow)]
    for folder in folders:
        try:
            newer = [JobMeter(folder).look()] if with_sample else []
            alerts, met = judge_job(folder, config, *newer)
        except MillpondError as error:
            found.errors[folder.job] = error
            continue
        found.begins.update((folder.job, rule) for rule in met)
        for alert in alerts:
            silence = config.silence_of(alert, now)
            if silence is None:
                found.loud.append(alert)
            else:
                found.silenced.append((alert, silence))
    return found


def judge_job(folder: JobFolder, config: RuleConfig, *newer: Sample) -> tuple[list[Alert], set[str]]:
    """`evaluate.judge` of a job by the samples that are kept, and by newer ones.  Raises as `samples_of`."""
    samples = samples_of(folder, int((time.time() - LOOK_BACK_SECONDS) * 1000))
    return judge(folder.job, [*samples, *newer], config.thresholds_of(folder.job))
