"""Check what a deploy of new code would do to a job's state, before it.

1. Take the newest committed batch, the schemas of its state, and the words of the job's definitions.
2. Let Spark plan the new query on an empty folder and on a copy of the schemas (`rehearsal`).
3. Compare sources (`sources`), and operators with their columns (`compare`).
4. Spark's own answer decides whether it refuses.

The job may run meanwhile.  Nothing is written but a temporary folder on this machine, and no source
is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.catalogue import JobFolder, find_job
from millpond.checkpoint.log import CommittedBatch, newest_committed, planned_batches, read_batch, read_conf
from millpond.checkpoint.operators import read_each_operator, read_operator_files, watermark_delays
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.errors import RequestError
from millpond.schema.definition.meaning import Meaning
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.spark.derive.definition import meanings_of
from millpond.spark.derive.plan import has_watermark, require_classic, zone_of_session
from millpond.spark.start import OUTPUT_MODES
from millpond.spark.upgrade.compare import EVOLVE, Known, compare_operators
from millpond.spark.upgrade.finding import Finding, Kind, Upgrade
from millpond.spark.upgrade.rehearsal import Rehearsal, rehearse
from millpond.spark.upgrade.sources import compare_sources, sources_of
from millpond.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AVRO = "avro"
# Of a transformWithState with another time mode or output mode.
_OTHER_MODE = "STATE_STORE_INVALID_CONFIG_AFTER_RESTART"
_REFUSALS = ("refused", "fixable")
_Words = tuple[Meaning | None, str | None]
"""the words of an operator's state, and the session's time zone in them"""


def check_upgrade(
    df: DataFrame,
    place: str | Path,
    job: str | None = None,
    *,
    output_mode: str = "update",
    old: DataFrame | None = None,
    settings: Mapping[str, str] | None = None,
    allow: Iterable[str | Path] = (),
) -> Upgrade:
    """What a job's state would become if the job went on with another query.  This starts nothing.

    df:           the new query
    place:        a pond, or the folder of a checkpoint
    job:          needed in a pond with several jobs
    output_mode:  the new query's: update, complete or append
    old:          the query that wrote the state; None for the definitions of the job's tables.
                  These tell of the operator nearest to the sink only
    settings:     Spark settings of the deploy, to compare with those that the checkpoint keeps;
                  None for those that the session sets
    allow:        places outside of the pond where the job's checkpoint may lie, as for `open`
    Raises:       NO_CHECKPOINT, NO_COMMITTED_BATCH, INVALID_REQUEST, SPARK_CONNECT, UNSUPPORTED
                  for real-time mode; what reading the checkpoint raises.
    """
    for frame in (df, *([] if old is None else [old])):
        require_classic(frame, "_jdf")
        if not frame.isStreaming:
            raise RequestError("INVALID_REQUEST", "The query reads no stream.", hint="Read the source with spark.readStream.")
    if output_mode not in OUTPUT_MODES:
        raise RequestError("INVALID_REQUEST", f"output_mode is {output_mode!r}.", hint=f"Use one of {', '.join(OUTPUT_MODES)}.")
    folder = find_job(place, job, allow=allow)
    checkpoint = folder.open_checkpoint()
    batch = read_batch(checkpoint, newest_committed(checkpoint))  # 1
    refuse_real_time(checkpoint, batch)
    newest = planned_batches(checkpoint)[-1]  # an uncommitted batch runs again, with its settings
    conf = read_conf(checkpoint, newest)
    findings = list(_settings(conf, df.sparkSession.conf.getAll if settings is None else settings))
    with rehearse(df, output_mode, checkpoint, batch, newest) as rehearsal:  # 2
        findings += compare_sources(checkpoint, batch, conf, sources_of(df._jdf.queryExecution().analyzed()))  # 3
        if rehearsal.invalid is None:
            findings += _state(folder, checkpoint, batch, rehearsal, df, old, output_mode, conf)
            findings += _watermarks(checkpoint, batch, rehearsal, has_watermark(df._jdf.queryExecution().analyzed()))
        findings = list(_as_spark_says(findings, rehearsal, is_avro=batch.settings.encoding == _AVRO))  # 4
    return Upgrade(job=folder.job, batch=batch.batch, findings=tuple(findings))


def _state(
    folder: JobFolder,
    checkpoint: Storage,
    batch: CommittedBatch,
    rehearsal: Rehearsal,
    df: DataFrame,
    old: DataFrame | None,
    output_mode: str,
    pinned: dict[str, str],
) -> Iterator[Finding]:
    """What changes in the state of each operator."""
    known, unread = read_each_operator(checkpoint, batch.batch)
    for store in unread:
        what = f"The state of {store.operator_name} can't be read: {store.error.message}"
        yield Finding(kind="unknown", operator=store.operator, what=what, hint=store.error.hint)
    fresh, _ = read_each_operator(rehearsal.fresh, Batch(0))
    zone = zone_of_session(df.sparkSession._jsparkSession)
    meant = _defined(folder) if old is None else _with_zone(meanings_of(old, output_mode, pinned), zone)
    would_mean = _with_zone(meanings_of(df, output_mode, pinned), zone)
    hidden = {store.operator for store in unread}
    names = {o.operator: o.name for o in read_operator_files(checkpoint, batch.batch) if o.operator not in hidden}
    would_be = {o.operator: o.name for o in read_operator_files(rehearsal.fresh, Batch(0)) if o.operator not in hidden}
    yield from compare_operators(
        _by_operator(names, known, meant),
        _by_operator(would_be, fresh, would_mean),
        by_name=batch.settings.encoding == _AVRO,
    )


def _by_operator(names: dict[int, str], stores: list[StoreSchema], meant: dict[int, _Words]) -> dict[int, Known]:
    nothing: _Words = (None, None)
    return {
        operator: Known(
            name=name,
            stores=tuple(store for store in stores if store.operator == operator),
            meaning=meant.get(operator, nothing)[0],
            zone=meant.get(operator, nothing)[1],
        )
        for operator, name in names.items()
    }


def _with_zone(meanings: dict[int, Meaning], zone: str) -> dict[int, _Words]:
    return {operator: (meaning, zone) for operator, meaning in meanings.items()}


def _defined(folder: JobFolder) -> dict[int, _Words]:
    """The words of the job's definitions, by operator."""
    return {
        entry.operator: (entry.meaning, entry.session_time_zone if isinstance(entry, TableDefinition) else None)
        for entry in folder.entries()
    }


def _settings(conf: dict[str, str], given: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of the deploy that Spark ignores."""
    for name, kept in sorted(conf.items()):
        wanted = given.get(name)
        if wanted is not None and wanted != kept:
            what = f"{name} is {wanted} in this session; the checkpoint keeps {kept}."
            yield Finding(kind="noted", operator=None, what=what)


def _watermarks(checkpoint: Storage, batch: CommittedBatch, rehearsal: Rehearsal, has_one: bool) -> Iterator[Finding]:
    """A new watermark, or none any more; changed delays, if the schemas name them: those of columns in the state.

    has_one:  whether the query has a watermark
    """
    if has_one and batch.watermark_ms is None:
        yield Finding(kind="noted", operator=None, what="The query has a watermark, and the checkpoint has none yet.")
    elif batch.watermark_ms is not None and not has_one:
        what = "The query has no watermark any more, so rows of the state no longer expire."
        yield Finding(kind="noted", operator=None, what=what)
    before, now = watermark_delays(checkpoint, batch.batch), watermark_delays(rehearsal.fresh, Batch(0))
    for operator in sorted(before.keys() & now.keys()):
        was, would_be = before[operator], now[operator]
        if was != would_be:
            what = f"The watermark's delay was {_delays(was)}, and would be {_delays(would_be)}."
            hint = "Rows expire by the new one from the next batch on."
            yield Finding(kind="noted", operator=operator, what=what, hint=hint)


def _delays(delays: set[int]) -> str:
    return " and ".join(f"{delay / 1000:g} s" for delay in sorted(delays)) or "none"


def _as_spark_says(findings: list[Finding], rehearsal: Rehearsal, *, is_avro: bool) -> Iterator[Finding]:
    """The findings, as Spark's own answer confirms them."""
    if rehearsal.invalid is not None:
        yield from findings
        what = f"Spark runs this query on no checkpoint: {rehearsal.invalid.message}"
        hint = "Mend the query, or its output mode."
        yield Finding(kind="refused", operator=None, what=what, spark_error=rehearsal.invalid.name, hint=hint)
        return
    error = rehearsal.refusal
    is_named = False
    for finding in findings:
        if finding.kind not in _REFUSALS or finding.operator is None:
            yield finding
        elif error is None:
            # Without spark.sql.streaming.stateStore.stateSchemaCheck, for example.
            hint = f"Spark doesn't refuse that with these settings.  {finding.hint}"
            yield replace(finding, kind="silently_wrong", spark_error=None, hint=hint)
        elif is_named:
            yield finding
        else:
            is_named = True  # Spark ends at the first
            yield replace(finding, spark_error=error.name)
    if error is not None and not is_named:
        what = f"Spark doesn't go on from this checkpoint: {error.message}"
        hint = "Restore the old code, or start it as a new job, with a checkpoint of its own."
        kind: Kind = "refused"
        if error.name == _OTHER_MODE and not is_avro:
            kind, hint = "fixable", f"{EVOLVE}  Another time mode needs a state without timers."
        yield Finding(kind=kind, operator=None, what=what, spark_error=error.name, hint=hint)
