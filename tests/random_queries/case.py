"""One streaming query as data: its input, its steps, its settings.  It can be written as text and read again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

ANSI = "spark.sql.ansi.enabled"
ZONE = "spark.sql.session.timeZone"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A query over a few small files.

    columns:     name and SQL type of each input column
    batches:     the rows of each batch; a row is an SQL literal for each column
    conf:        settings of the job's session
    definer:     settings that differ in the session that calls `define`
    watermark:   column and delay, or nothing
    before:      steps between the source and the aggregation, in the form of `after`
    keys:        SQL of the grouping expressions, with their aliases; None if there is no aggregation
    aggregates:  SQL of the aggregates, with their aliases
    after:       steps: `select` with expressions, `where` with a condition, `withColumn` with name and expression,
                 `withColumnRenamed`, `drop`, `orderBy`, `limit`, `dropDuplicates`, `groupBy` with keys and aggregates,
                 `join` with the SQL of a static side, its columns and the kind of join
    volatile:    output columns that change with the batch
    mode:        update, complete or append
    door:        start, publish, define, or none
    says_zone:   whether `define` gets the job's time zone
    restart:     None, or the members that differ in a second run over the same checkpoint, which reads the last batch
    """

    columns: dict[str, str]
    batches: list[list[list[str]]]
    keys: list[str]
    aggregates: list[str]
    after: list[list[Any]] = field(default_factory=list)
    before: list[list[Any]] = field(default_factory=list)
    conf: dict[str, str] = field(default_factory=dict)
    definer: dict[str, str] = field(default_factory=dict)
    watermark: list[str] = field(default_factory=list)
    volatile: list[str] = field(default_factory=list)
    mode: str = "update"
    door: str = "start"
    says_zone: bool = False
    partitions: int = 2
    restart: dict[str, Any] | None = None
    note: str = ""

    def to_json(self) -> str:
        """The case as text, without defaults, a row a line."""
        default = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(self)}  # type: ignore[misc]
        members = {name: value for name, value in asdict(self).items() if value != default.get(name)}
        batches = members.pop("batches")
        lines = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in members.items()]
        per_batch = [
            "  [\n" + ",\n".join(f"   {json.dumps(row, ensure_ascii=False)}" for row in rows) + "\n  ]" for rows in batches
        ]
        lines.append(' "batches": [\n' + ",\n".join(per_batch) + "\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def parse_case(text: str) -> Case:
    """Parse a case that `to_json` or a person wrote."""
    return Case(**json.loads(text))


def quoted(name: str) -> str:
    """A name, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"
