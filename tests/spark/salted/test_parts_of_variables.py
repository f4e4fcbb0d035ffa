"""State variables of a job grouped by shard: copies are read once, shares are merged, other variables are shown as stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.catalogue import open_jobs
from millpond.errors import MillpondError
from millpond.schema.shards import shard_values
from millpond.tables.cold.report import inspect_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, BATCHES = 4, 3
SHARDS = shard_values(3, PARTITIONS)
VARIABLES = {"rules": "copies", "settings": "copies", "names": "copies", "usage": {"rows": "sum", "slowest": "max", "text": "min"}}
PARTS = {"millpond_parts": {"values": list(SHARDS), "variables": VARIABLES}}
SCHEMA = "model string, took long, at timestamp"


def grouped(df: DataFrame, parts: dict[str, Any]) -> DataFrame:
    """Every record goes to all shards as a control record, and to one as an event."""
    import pandas as pd
    from pyspark.sql import functions as sf
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Processor(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.rules = handle.getMapState("rules", "model string", "longest long")
            self.settings = handle.getValueState("settings", "records long")
            self.names = handle.getListState("names", "name string")
            self.usage = handle.getMapState("usage", "model string, half int", "rows long, slowest long, text string")
            self.seen = handle.getValueState("seen", "rows long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N803 - PySpark's
            records = sorted((r for chunk in rows for r in chunk.itertuples(index=False)), key=lambda r: (r.at, r.model, r.took))
            for r in records:
                if r.copy:
                    longest = self.rules.getValue((r.model,))[0] if self.rules.containsKey((r.model,)) else 0
                    self.rules.updateValue((r.model,), (max(longest, r.took),))
                    count = self.settings.get()[0] if self.settings.exists() else 0
                    self.settings.update((count + 1,))
                    self.names.appendValue((r.model,))
                else:
                    place = (r.model, int(r.took % 2))
                    before = self.usage.getValue(place) if self.usage.containsKey(place) else (0, 0, r.model * 5)
                    text = min(before[2], f"{r.model}{r.took}")
                    self.usage.updateValue(place, (before[0] + 1, max(before[1], r.took), text))
                    self.seen.update(((self.seen.get()[0] if self.seen.exists() else 0) + 1,))
            yield pd.DataFrame({"n": [len(records)]})

        def close(self) -> None:
            pass

    spread = sf.array(*[sf.lit(shard) for shard in SHARDS])
    copies = df.select("*", sf.lit(True).alias("copy"), sf.explode(spread).alias("to"))
    own = sf.element_at(spread, (sf.pmod(sf.hash("model", "took", "at"), sf.lit(len(SHARDS))) + 1).cast("int"))
    events = df.select("*", sf.lit(False).alias("copy"), own.alias("to"))
    both = copies.union(events).select("model", "took", "at", "copy", sf.col("to").alias("shard", metadata=parts))
    return both.groupBy("shard").transformWithStateInPandas(Processor(), "n long", "Update", "None")


def records_of(batch: int) -> list[dict[str, Any]]:
    return [
        {"model": f"m{(batch + n * n) % 3}", "took": 100 * batch + n, "at": f"2026-01-01T00:{batch:02d}:{n:02d}Z"}
        for n in range(20)
    ]


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[Any]]:
    assert len({(r["model"], r["half"]) for r in rows}) == len(rows)
    return {(r["model"], r["half"]): [r["rows"], r["slowest"], r["text"]] for r in rows}


def refused(ask: Any) -> MillpondError:
    with pytest.raises(MillpondError) as raised:
        ask()
    return raised.value


@pytest.mark.long
def test_variables_in_parts_are_read_as_one_table(spark: SparkSession, tmp_path: Path) -> None:
    folder, pond_path = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    longest: dict[str, int] = {}
    usage: dict[tuple[str, int], list[Any]] = {}
    names: list[str] = []
    for batch in range(BATCHES):
        write_event_file(folder, batch, records_of(batch))
        for r in records_of(batch):
            longest[r["model"]] = max(longest.get(r["model"], 0), r["took"])
            before = usage.setdefault((r["model"], r["took"] % 2), [0, 0, r["model"] * 5])
            before[:] = [before[0] + 1, max(before[1], r["took"]), min(before[2], f"{r['model']}{r['took']}")]
            names.append(r["model"])
    stream = grouped(df, PARTS)
    retention = millpond.Retention(history_batches=None)
    how: dict[str, Any] = {"table": "t", "pond": pond_path, "partitions": PARTITIONS, "trigger": "available-now"}
    with millpond.start(stream, **how, retention=retention) as job:
        assert job.wait_for_end(timeout_seconds=240)
    with millpond.open(pond_path, replica_dir=tmp_path / "home") as pond:
        assert pond.tables() == ["t_names", "t_rules", "t_seen", "t_settings", "t_usage"]
        assert pond["t_rules"].columns == ("model", "longest")
        assert pond["t_usage"].columns == ("model", "half", "rows", "slowest", "text")
        assert {row["model"]: row["longest"] for row in pond["t_rules"].scan()} == longest
        assert pond["t_rules"].get(model="m1")["longest"] == longest["m1"]
        assert pond["t_rules"].count() == len(longest)
        assert pond["t_settings"].get() == {"records": 20 * BATCHES}
        assert [row["name"] for row in pond["t_names"].scan()] == names
        assert pond["t_names"].get(index=3)["name"] == names[3]
        assert by_key(pond["t_usage"].scan()) == usage
        assert pond["t_usage"].scan(model="m0", reverse=True)[-1]["model"] == "m0"
        assert {row["shard"] for row in pond["t_seen"].scan()} == set(SHARDS)
        assert sum(row["rows"] for row in pond["t_seen"].scan()) == 20 * BATCHES
        assert millpond.read_row(pond_path, "t_usage", {"model": "m0", "half": 1})["rows"] == usage["m0", 1][0]
        assert millpond.read_row(pond_path, "t_names", {"index": 3}) == {"index": 3, "name": names[3]}
        assert by_key(millpond.read_arrow(pond_path, "t_usage").to_pylist()) == usage
        assert [r["name"] for r in millpond.read_arrow(pond_path, "t_names").to_pylist()] == names
    (folder_of_job,) = open_jobs(pond_path)
    assert inspect_job(folder_of_job).unread == ()
    fewer = {"millpond_parts": {"values": list(SHARDS[:2]), "variables": VARIABLES}}
    error = refused(lambda: millpond.start(grouped(df, fewer), **how))
    assert error.condition == "DEFINITION_CHANGED"
    assert "number of shards" in error.hint


def test_metadata_that_cannot_be_understood_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.schema(SCHEMA).json(str(tmp_path))
    for damaged in ({"values": []}, {"values": [1], "variables": {"usage": {"rows": "first"}}}, {"variables": {}}, [1]):
        error = refused(
            lambda damaged=damaged: millpond.start(grouped(df, {"millpond_parts": damaged}), table="t", pond=tmp_path / "p")
        )
        assert error.condition == "NOT_DERIVABLE"
