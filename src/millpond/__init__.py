"""Millpond: state you can query, for Spark Structured Streaming jobs.

Reading needs no Spark and no Java: `open`, `read_arrow`, `read_row`.  Nor do savepoints and
repairs: `plan_savepoint`, `plan_restore`, `plan_repair`.  The job's side needs `millpond[spark]`:
`session`, `start`, `publish`, `define`, `Aggregate`, `salted`, `buffered`, `plan_write_state`, `plan_reprocess`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millpond.errors import (
    CheckpointError,
    DefinitionError,
    MillpondError,
    ReplicaError,
    RequestError,
    SavepointError,
    SetupError,
    StorageError,
    importing_pyspark,
)
from millpond.schema.far_time import FarTime
from millpond.settings import Retention
from millpond.tables import Bounds, Pond, Row, Rows, Table, open, read_arrow, read_row

if TYPE_CHECKING:
    from millpond.client import connect, connect_async
    from millpond.operate.cost.cost import Cost, CostLine, read_cost
    from millpond.operate.doctor.advice import Advice, Diagnosis
    from millpond.operate.doctor.diagnose import diagnose
    from millpond.operate.sample import OperatorSize, Sample
    from millpond.operate.sample_log import read_samples
    from millpond.operate.what_if.answer import Figure, WhatIf
    from millpond.operate.what_if.what_if import what_if
    from millpond.router.awaited import connect_shards_async
    from millpond.router.pond import connect_shards
    from millpond.savepoint.archive.archiver import Archiver, archive
    from millpond.savepoint.change.redistribute import plan_redistribute
    from millpond.savepoint.change.user_edit import StateRow
    from millpond.savepoint.create import plan_savepoint
    from millpond.savepoint.fork import plan_fork
    from millpond.savepoint.in_place.rescale import plan_rescale
    from millpond.savepoint.in_place.rollback import plan_rollback
    from millpond.savepoint.manage.delete import plan_delete_savepoint
    from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
    from millpond.savepoint.manage.prune import plan_prune
    from millpond.savepoint.manage.schedule import schedule_savepoints
    from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
    from millpond.savepoint.manifest import Savepoint
    from millpond.savepoint.restore import plan_restore
    from millpond.savepoint.verify import verify_savepoint
    from millpond.sending.sender import Sender, send
    from millpond.spark.aggregate.declare import Aggregate
    from millpond.spark.aggregate.values import distinct, quantile, top_k
    from millpond.spark.audit.audit import audit
    from millpond.spark.audit.event import audit_event
    from millpond.spark.audit.report import Audit
    from millpond.spark.broadcast.stream import broadcast
    from millpond.spark.buffered import buffered
    from millpond.spark.compose.aggregate import aggregate_changes, signed_rows
    from millpond.spark.compose.join import join_changes
    from millpond.spark.compose.values import top
    from millpond.spark.job import Job
    from millpond.spark.models.publish import publish_model, remove_model, roll_back_model
    from millpond.spark.models.serve import read_models, serve_models
    from millpond.spark.past.write import plan_write_state
    from millpond.spark.reprocess.plan import plan_reprocess
    from millpond.spark.salted.hot_keys import HotKeys
    from millpond.spark.salted.stream import salted
    from millpond.spark.session import session
    from millpond.spark.source.source import read_changes, register
    from millpond.spark.sql.apply import plan_apply
    from millpond.spark.sql.declare import parse_aggregate
    from millpond.spark.start import define, publish, start
    from millpond.spark.upgrade.check import check_upgrade
    from millpond.spark.upgrade.evolve import plan_evolve
    from millpond.spark.upgrade.finding import Finding, Upgrade
    from millpond.tables.buckets.retention import plan_retention
    from millpond.tables.diff.read import read_diff
    from millpond.tables.edit import plan_edit_savepoint
    from millpond.tables.erase import plan_erase
    from millpond.tables.repair import plan_repair
    from millpond.tables.sql.answer import SqlAnswer
    from millpond.tables.sql.end import SqlLimits
    from millpond.tables.versions.align import plan_align
    from millpond.tables.versions.cut_over import plan_cut_over
    from millpond.tables.versions.difference import diff_versions
    from millpond.tables.versions.listing import list_versions
    from millpond.tables.versions.retire import plan_retire

__version__ = "0.1.0"
__all__ = [
    "Advice",
    "Aggregate",
    "Archiver",
    "Audit",
    "Bounds",
    "CheckpointError",
    "Cost",
    "CostLine",
    "DefinitionError",
    "Diagnosis",
    "FarTime",
    "Figure",
    "Finding",
    "HotKeys",
    "Job",
    "MillpondError",
    "OperatorSize",
    "Pond",
    "ReplicaError",
    "RequestError",
    "Retention",
    "Row",
    "Rows",
    "Sample",
    "Savepoint",
    "SavepointError",
    "Sender",
    "SetupError",
    "SqlAnswer",
    "SqlLimits",
    "StateRow",
    "StorageError",
    "Table",
    "Upgrade",
    "WhatIf",
    "aggregate_changes",
    "archive",
    "audit",
    "audit_event",
    "broadcast",
    "buffered",
    "check_upgrade",
    "connect",
    "connect_async",
    "connect_shards",
    "connect_shards_async",
    "define",
    "diagnose",
    "diff_versions",
    "distinct",
    "export_savepoint",
    "import_savepoint",
    "join_changes",
    "list_savepoints",
    "list_versions",
    "open",
    "open_savepoint",
    "parse_aggregate",
    "plan_align",
    "plan_apply",
    "plan_cut_over",
    "plan_delete_savepoint",
    "plan_edit_savepoint",
    "plan_erase",
    "plan_evolve",
    "plan_fork",
    "plan_prune",
    "plan_redistribute",
    "plan_repair",
    "plan_reprocess",
    "plan_rescale",
    "plan_restore",
    "plan_retention",
    "plan_retire",
    "plan_rollback",
    "plan_savepoint",
    "plan_write_state",
    "publish",
    "publish_model",
    "quantile",
    "read_arrow",
    "read_changes",
    "read_cost",
    "read_diff",
    "read_models",
    "read_row",
    "read_samples",
    "register",
    "remove_model",
    "roll_back_model",
    "salted",
    "schedule_savepoints",
    "send",
    "serve_models",
    "session",
    "signed_rows",
    "start",
    "top",
    "top_k",
    "verify_savepoint",
    "what_if",
]
_LATER = {
    "Advice": "millpond.operate.doctor.advice",
    "Aggregate": "millpond.spark.aggregate.declare",
    "Archiver": "millpond.savepoint.archive.archiver",
    "Audit": "millpond.spark.audit.report",
    "Cost": "millpond.operate.cost.cost",
    "CostLine": "millpond.operate.cost.cost",
    "Diagnosis": "millpond.operate.doctor.advice",
    "Figure": "millpond.operate.what_if.answer",
    "Finding": "millpond.spark.upgrade.finding",
    "HotKeys": "millpond.spark.salted.hot_keys",
    "Job": "millpond.spark",
    "OperatorSize": "millpond.operate.sample",
    "Sample": "millpond.operate.sample",
    "Savepoint": "millpond.savepoint.manifest",
    "Sender": "millpond.sending.sender",
    "SqlAnswer": "millpond.tables.sql.answer",
    "SqlLimits": "millpond.tables.sql.end",
    "StateRow": "millpond.savepoint.change.user_edit",
    "Upgrade": "millpond.spark.upgrade.finding",
    "WhatIf": "millpond.operate.what_if.answer",
    "aggregate_changes": "millpond.spark.compose",
    "archive": "millpond.savepoint.archive.archiver",
    "audit": "millpond.spark.audit.audit",
    "audit_event": "millpond.spark.audit.event",
    "broadcast": "millpond.spark.broadcast.stream",
    "buffered": "millpond.spark.buffered",
    "check_upgrade": "millpond.spark.upgrade.check",
    "connect": "millpond.client",
    "connect_async": "millpond.client",
    "connect_shards": "millpond.router.pond",
    "connect_shards_async": "millpond.router.awaited",
    "define": "millpond.spark",
    "diagnose": "millpond.operate.doctor.diagnose",
    "diff_versions": "millpond.tables.versions.difference",
    "distinct": "millpond.spark.aggregate.values",
    "export_savepoint": "millpond.savepoint.manage.tar",
    "import_savepoint": "millpond.savepoint.manage.tar",
    "join_changes": "millpond.spark.compose",
    "list_savepoints": "millpond.savepoint.manage.folder",
    "list_versions": "millpond.tables.versions.listing",
    "open_savepoint": "millpond.savepoint.manage.folder",
    "parse_aggregate": "millpond.spark.sql.declare",
    "plan_align": "millpond.tables.versions.align",
    "plan_apply": "millpond.spark.sql.apply",
    "plan_cut_over": "millpond.tables.versions.cut_over",
    "plan_delete_savepoint": "millpond.savepoint.manage.delete",
    "plan_edit_savepoint": "millpond.tables.edit",
    "plan_erase": "millpond.tables.erase",
    "plan_evolve": "millpond.spark.upgrade.evolve",
    "plan_fork": "millpond.savepoint.fork",
    "plan_prune": "millpond.savepoint.manage.prune",
    "plan_redistribute": "millpond.savepoint.change.redistribute",
    "plan_repair": "millpond.tables.repair",
    "plan_reprocess": "millpond.spark.reprocess.plan",
    "plan_rescale": "millpond.savepoint.in_place.rescale",
    "plan_restore": "millpond.savepoint.restore",
    "plan_retention": "millpond.tables.buckets.retention",
    "plan_retire": "millpond.tables.versions.retire",
    "plan_rollback": "millpond.savepoint.in_place.rollback",
    "plan_savepoint": "millpond.savepoint.create",
    "plan_write_state": "millpond.spark.past.write",
    "publish": "millpond.spark",
    "publish_model": "millpond.spark.models.publish",
    "quantile": "millpond.spark.aggregate.values",
    "read_changes": "millpond.spark.source.source",
    "read_diff": "millpond.tables.diff.read",
    "read_cost": "millpond.operate.cost.cost",
    "read_models": "millpond.spark.models.serve",
    "read_samples": "millpond.operate.sample_log",
    "register": "millpond.spark.source.source",
    "remove_model": "millpond.spark.models.publish",
    "roll_back_model": "millpond.spark.models.publish",
    "salted": "millpond.spark",
    "schedule_savepoints": "millpond.savepoint.manage.schedule",
    "send": "millpond.sending.sender",
    "serve_models": "millpond.spark.models.serve",
    "session": "millpond.spark",
    "signed_rows": "millpond.spark.compose",
    "start": "millpond.spark",
    "top": "millpond.spark.compose",
    "top_k": "millpond.spark.aggregate.values",
    "verify_savepoint": "millpond.savepoint.verify",
    "what_if": "millpond.operate.what_if.what_if",
}
"""Names that are imported at their first use, and their modules: a reader never imports PySpark."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'millpond' has no attribute {name!r}")
    with importing_pyspark():
        return getattr(import_module(_LATER[name]), name)
