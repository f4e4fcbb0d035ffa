"""What a server says of its jobs: their samples, the sizes of their state, hot keys, alerts and advice.

1. Samples are read from where the watcher keeps them, so that any process of a server can answer.
2. Sizes by partition need a list of each partition's files, so an answer is given again for a while:
   on an object store each list is a request that costs money.  So is what the doctor found, who
   reads some of the rows; and so is an error.
3. Alerts are computed from the samples of two days, and again when a job has a new sample.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import structs

from millpond.catalogue import JobFolder, find_job, read_catalogue
from millpond.errors import MillpondError
from millpond.operate.alerts.evaluate import Alert
from millpond.operate.alerts.look import judge_job
from millpond.operate.alerts.runbook import RUNBOOK
from millpond.operate.answers import (
    AlertJson,
    AlertsAnswer,
    HotKeyJson,
    HotKeysAnswer,
    JobsAnswer,
    JobSummary,
    ListSamples,
    OperatorPartitions,
    PartitionsAnswer,
    SamplesAnswer,
    UnwatchedJob,
    thinned,
)
from millpond.operate.config import OperateConfig, RuleConfig, read_config
from millpond.operate.doctor.advice import Diagnosis
from millpond.operate.doctor.state_advice import diagnose_state
from millpond.operate.measure import JobMeter
from millpond.operate.sample_log import newest_sample, samples_of
from millpond.schema.moment import time_micros
from millpond.serve.ponds import Ponds
from millpond.settings import SampleSettings
from millpond.storage.places import Places
from millpond.wire.answers import ErrorJson, error_json

Answer = TypeVar("Answer")
# For so long at least what the doctor found is given again.
_DIAGNOSIS_SECONDS = 60.0
# Samples of one answer without a limit: a point for each of a screen's columns.
_USUAL_SAMPLES = 500


class _Kept(Generic[Answer]):
    """An answer that is given again for a while: what it took to make, as a share of the time, is bounded.

    So is an error: else a job that can't be read would cost a whole look for each question.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._answer: Answer | MillpondError | None = None
        self._until = 0.0

    def get(self, least_seconds: float, make: Callable[[], Answer]) -> Answer:
        """The answer; made again if it is older than `least_seconds`, or than what it took allows.

        Not for several threads at a time.  Raises as `make`.
        """
        began = time.monotonic()
        if self._answer is None or began >= self._until:
            try:
                self._answer = make()
            except MillpondError as error:
                self._answer = error
            now = time.monotonic()
            self._until = now + max(least_seconds, (now - began) / self._share)
        if isinstance(self._answer, MillpondError):
            raise self._answer.with_traceback(None)
        return self._answer


@dataclass(slots=True)
class _Known:
    """What was answered of one job.

    at_ms:  of the sample after which its alerts were computed
    """

    measuring: threading.Lock = field(default_factory=threading.Lock)
    partitions: _Kept[PartitionsAnswer] = field(default_factory=lambda: _Kept(SampleSettings().share))
    diagnosing: threading.Lock = field(default_factory=threading.Lock)
    diagnosis: _Kept[Diagnosis] = field(default_factory=lambda: _Kept(SampleSettings().share))
    judging: threading.Lock = field(default_factory=threading.Lock)
    at_ms: int | None = None
    config: RuleConfig | None = None
    alerts: list[Alert] | None = None


class Watched:
    """The jobs of a server's ponds, as they are measured.  Its methods may be called by several threads."""

    def __init__(self, ponds: Ponds, config: Path | None = None) -> None:
        """config: the file of thresholds and silences, which is read for each answer"""
        self._ponds, self._config = ponds, config
        self._settings = SampleSettings()
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def use(self, config: Path | None) -> None:
        """Go by another file of thresholds and silences from here on."""
        self._config = config

    def jobs(self, may_read: Callable[[str], bool]) -> JobsAnswer:
        """All jobs.  Raises what the storages of ponds raise.

        may_read:  which tables are named
        """
        samples, tables = self._ponds.samples(), self._ponds.tables_by_job()
        return JobsAnswer(
            jobs=[
                JobSummary(
                    job=name,
                    job_state=facts.get("job_state", "unknown"),
                    batch=facts.get("batch"),
                    behind_batches=facts.get("behind_batches"),
                    behind_seconds=facts.get("behind_seconds"),
                    tables=[table for table in tables.get(name, []) if may_read(table)],
                    sample=samples.get(name),
                    error=_error(facts.get("error")),
                )
                for name, facts in self._ponds.statistics().items()
            ]
        )

    def samples(self, job: str, question: ListSamples) -> SamplesAnswer:
        """Samples of a job.

        Raises:  INVALID_REQUEST if there is no such job; WRONG_TYPE; what the storage raises.
        """
        since, until = (None if text is None else time_micros(text) // 1000 for text in (question.since, question.until))
        found = samples_of(self._folder(job), since or 0, until)
        return SamplesAnswer(job=job, samples=thinned(found, question.limit or _USUAL_SAMPLES), found=len(found))

    def partitions(self, job: str) -> PartitionsAnswer:
        """The state of a job by operator and partition.  Raises as `samples`, and as `JobMeter.partitions`."""
        folder, known, settings = self._folder(job), self._of(job), self._settings
        meter = JobMeter(folder, settings)

        def look() -> PartitionsAnswer:  # 2
            at_ms = int(time.time() * 1000)
            batch, operators = meter.partitions()
            return PartitionsAnswer(
                job=job,
                batch=batch,
                measured_ms=at_ms,
                operators=[
                    OperatorPartitions(
                        operator=number,
                        name=operator.name,
                        partitions=sorted(operator.state),
                        state_bytes=[operator.state[partition] for partition in sorted(operator.state)],
                    )
                    for number, operator in sorted(operators.items())
                ],
            )

        with known.measuring:
            return known.partitions.get(settings.remote_sizes_seconds if meter.is_remote else settings.sizes_seconds, look)

    def advice(self, job: str) -> Diagnosis:
        """What the doctor finds in a job: it reads some of the state.  Raises as `samples`; as `diagnose`."""
        folder, known = self._folder(job), self._of(job)
        rules = self._rules().doctor
        with known.diagnosing:
            found = known.diagnosis.get(_DIAGNOSIS_SECONDS, lambda: diagnose_state(folder, rules))
        return structs.replace(found, advice=tuple(structs.replace(each, job=job) for each in found.advice))

    def hot_keys(self, job: str) -> HotKeysAnswer:
        """The hot keys of a job, if it looks for any.  Raises as `samples`; CORRUPT_FILE."""
        return HotKeysAnswer(
            job=job,
            hot_keys=[
                HotKeyJson(key=hot.as_json, share=hot.share, found_in_batch=hot.found_in_batch)
                for hot in self._folder(job).hot_keys()
            ],
        )

    def alerts(self) -> AlertsAnswer:
        """The rules that fire.  Raises INVALID_CONFIG, FILE_MISSING."""
        config = self._rules()
        found, unknown = list[AlertJson](), list[UnwatchedJob]()
        for pond, (place, allow) in self._ponds.places().items():
            try:
                catalogue = read_catalogue(place, Places.of(allow))
            except MillpondError as error:
                unknown.append(UnwatchedJob(job=pond, error=error_json(error).error))
                continue
            broken = dict(catalogue.broken)
            for folder in catalogue.jobs:
                try:
                    found += self._alerts_of(pond, folder, config)
                except MillpondError as error:  # one job that can't be read mustn't hide the others
                    broken[folder.job] = error
            unknown += [
                UnwatchedJob(job=self._ponds.prefix(pond) + job, error=error_json(error).error) for job, error in broken.items()
            ]
        return AlertsAnswer(alerts=found, unknown=unknown)

    def _alerts_of(self, pond: str, folder: JobFolder, config: RuleConfig) -> list[AlertJson]:  # 3
        name = self._ponds.prefix(pond) + folder.job
        known, now = self._of(name), dt.datetime.now(dt.UTC)
        with known.judging:
            newest = newest_sample(folder)
            at_ms = None if newest is None else newest.at_ms
            if known.alerts is None or known.at_ms != at_ms or known.config != config:
                known.alerts, _ = judge_job(folder, config)
                known.at_ms, known.config = at_ms, config
            alerts = known.alerts
        return [
            AlertJson(
                **{**structs.asdict(alert), "job": name},
                runbook=RUNBOOK[alert.rule],
                silenced=None if (silence := config.silence_of(alert, now)) is None else silence.reason,
            )
            for alert in alerts
        ]

    def _rules(self) -> OperateConfig:
        """Raises INVALID_CONFIG, FILE_MISSING."""
        return OperateConfig() if self._config is None else read_config(self._config)

    def _folder(self, job: str) -> JobFolder:
        """Raises INVALID_REQUEST if there is no such job; as `find_job`."""
        place, allow, own = self._ponds.job_place(job)
        return find_job(place, own, allow=allow)

    def _of(self, job: str) -> _Known:
        with self._lock:
            return self._known.setdefault(job, _Known())


def _error(facts: dict[str, str] | None) -> ErrorJson | None:
    if not facts:
        return None
    return ErrorJson(condition=facts["condition"], message=facts["message"], hint=facts.get("hint", ""), context={})
