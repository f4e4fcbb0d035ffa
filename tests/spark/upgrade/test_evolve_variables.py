"""A changed transformWithState goes on with an evolved savepoint: its variables have what a recount says.

Random processors are changed in random ways: columns come, go and get wider, variables come, go and
get another name, a TTL comes and goes.  Spark itself reads the state at the end.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.cloudpickle
import pytest
from pyspark.sql.streaming import StatefulProcessor

import millpond
from inputs.event_file import write_event_file
from millpond.checkpoint.log import newest_committed, read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.storage import open_storage
from savepoint.test_rewrite import whole_state
from spark.derive.test_aggregate_functions import settings
from spark.upgrade.test_evolve import PROVIDERS
from suite.sizes import a_few
from suite.waiting import wait_until

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import it
HOUR_MS = 3_600_000
ROWS = 12
Columns = dict[str, str]
"""column -> its type"""


@dataclass(frozen=True)
class Variable:
    """A state variable: its kind, its columns, and how long its elements stay; None for ever."""

    kind: str
    columns: tuple[tuple[str, str], ...]
    ttl_ms: int | None = None

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {type_}" for name, type_ in self.columns)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]


Processor = dict[str, Variable]


def counted(before: dict[str, Any] | None, rows: list[tuple[str, int]], names: list[str]) -> dict[str, Any]:
    """A value after some more rows; a column that it didn't have begins with nothing."""
    before = before or {}
    now = {"n": (before.get("n") or 0) + len(rows), "total": (before.get("total") or 0) + sum(n for _, n in rows)}
    return {name: (now | {"last": rows[-1][0]})[name] for name in names}


class Counting(StatefulProcessor):
    """Counts each user's rows in variables as they are declared."""

    def __init__(self, variables: Processor) -> None:
        self.variables = variables

    def init(self, handle: Any) -> None:
        self.open = {}
        for name, v in self.variables.items():
            ttl = () if v.ttl_ms is None else (v.ttl_ms,)
            if v.kind == "value":
                self.open[name] = handle.getValueState(name, v.ddl, *ttl)
            elif v.kind == "list":
                self.open[name] = handle.getListState(name, v.ddl, *ttl)
            else:
                self.open[name] = handle.getMapState(name, "word string", v.ddl, *ttl)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        import pandas as pd

        taken = [(str(w), int(n)) for frame in rows for w, n in zip(frame["word"], frame["n"], strict=True)]
        for name, v in self.variables.items():
            state = self.open[name]
            if v.kind == "value":
                before = dict(zip(v.names, state.get(), strict=True)) if state.exists() else None
                state.update(tuple(counted(before, taken, v.names).values()))
            elif v.kind == "list":
                state.appendList([tuple(counted(None, [row], v.names).values()) for row in taken])
            else:
                for word in sorted({w for w, _ in taken}):
                    before = dict(zip(v.names, state.getValue((word,)), strict=True)) if state.containsKey((word,)) else None
                    state.updateValue((word,), tuple(counted(before, [r for r in taken if r[0] == word], v.names).values()))
        yield pd.DataFrame({"user": [key[0]], "rows": [len(taken)]})

    def close(self) -> None:
        """Nothing is open."""


Model = dict[str, dict[Any, Any]]
"""variable -> key -> its value, or its list of values"""


def count_on(model: Model, variables: Processor, batch: list[dict[str, Any]]) -> None:
    """What the processor does, in plain Python."""
    for user in sorted({row["user"] for row in batch}):
        taken = [(row["word"], row["n"]) for row in batch if row["user"] == user]
        for name, v in variables.items():
            there = model.setdefault(name, {})
            if v.kind == "value":
                there[user] = counted(there.get(user), taken, v.names)
            elif v.kind == "list":
                there.setdefault(user, []).extend(counted(None, [row], v.names) for row in taken)
            else:
                for word in sorted({w for w, _ in taken}):
                    there[user, word] = counted(there.get((user, word)), [r for r in taken if r[0] == word], v.names)


class Job:
    """A job over files of rows, and what it should have counted."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.folder, self.draw = spark, folder, random.Random(seed)
        self.files = self.waiting = 0
        (folder / "in").mkdir()

    def feed(self) -> list[dict[str, Any]]:
        users = ["a", "b", "ü", f"once {self.files}"]
        draw = self.draw
        rows = [{"user": draw.choice(users), "word": draw.choice("xyz"), "n": draw.randrange(99)} for _ in range(ROWS)]
        write_event_file(self.folder / "in", self.files, rows)
        self.files += 1
        self.waiting += 1
        return rows

    def query(self, variables: Processor) -> DataFrame:
        source = self.spark.readStream.schema("user string, word string, n long").option("maxFilesPerTrigger", 1)
        mode = "processingTime" if any(v.ttl_ms for v in variables.values()) else "none"
        return (
            source.json(str(self.folder / "in"))
            .groupBy("user")
            .transformWithStateInPandas(Counting(variables), "user string, rows long", "update", mode)
        )

    def run(self, variables: Processor, checkpoint: Path) -> None:
        """Run until all new rows are counted; with a time mode there is always another batch."""
        writer = self.query(variables).writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="200 milliseconds").start()
        wait_until(
            lambda: sum(progress["numInputRows"] for progress in query.recentProgress) >= self.waiting * ROWS,
            "the count of all new rows",
            seconds=120,
            unless=query.exception,
        )
        query.stop()
        self.waiting = 0

    def state(self, variables: Processor, checkpoint: Path) -> tuple[Model, dict[str, list[int]]]:
        """Each variable as Spark reads it, and the times at which its elements expire."""
        found: Model = {}
        expiry: dict[str, list[int]] = {}
        for name, v in variables.items():
            rows = self.spark.read.format("statestore").option("stateVarName", name).load(str(checkpoint)).collect()
            there = found.setdefault(name, {})
            for row in rows:
                element = row["value"] if v.kind == "value" else row["list_element"] if v.kind == "list" else row["user_map_value"]
                if v.ttl_ms is not None:
                    expiry.setdefault(name, []).append(element["ttlExpirationMs"])
                    element = element["value"]
                user = row["key"]["user"]
                if v.kind == "list":
                    there.setdefault(user, []).append(element.asDict())
                else:
                    there[user if v.kind == "value" else (user, row["user_map_key"]["word"])] = element.asDict()
        return found, expiry


KINDS = ("value", "list", "map")
COLUMNS = {"n": ("int", "long"), "total": ("int", "long"), "last": ("string",)}


def draw_variables(draw: random.Random) -> tuple[Processor, Processor, dict[str, str]]:
    """Variables, what becomes of them, and which of them get another name: new -> old."""
    old: Processor = {}
    new: Processor = {}
    renamed: dict[str, str] = {}
    for kind in KINDS:
        names = draw.sample(sorted(COLUMNS), draw.randint(1, 3))
        before = Variable(kind, tuple((n, draw.choice(COLUMNS[n])) for n in names), draw.choice([None, HOUR_MS]))
        old[kind] = before
        names = draw.sample(sorted(COLUMNS), draw.randint(1, 3))
        types = dict(before.columns)
        columns = tuple((n, "long" if types.get(n) == "long" else draw.choice(COLUMNS[n])) for n in names)
        fate = draw.choice(["same", "columns", "columns", "columns", "gone"])
        name = draw.choice([kind, kind, f"other_{kind}"])
        if fate != "gone":
            new[name] = replace(before, columns=columns) if fate == "columns" else before
            new[name] = replace(new[name], ttl_ms=draw.choice([None, HOUR_MS]))
            renamed |= {name: kind} if name != kind else {}
    if not new or draw.random() < 0.3:
        new["begins"] = Variable(draw.choice(KINDS), (("n", "long"),), draw.choice([None, HOUR_MS]))
    return old, new, renamed


def evolved(model: Model, old: Processor, new: Processor, renamed: dict[str, str]) -> Model:
    """The model with the new query's columns."""
    out: Model = {}
    for name, v in new.items():
        was = renamed.get(name, name)
        if was not in old:
            continue

        def change(value: dict[str, Any], names: list[str] = v.names) -> dict[str, Any]:
            return {n: value.get(n) for n in names}

        out[name] = {k: [change(e) for e in value] if v.kind == "list" else change(value) for k, value in model[was].items()}
    return out


def without_nothing(model: Model) -> Model:
    return {name: there for name, there in model.items() if there}


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "provider"), a_few([(seed, p) for seed in range(20) for p in ("changelog", "rocksdb")], 1, long=3)
)
def test_variables_go_on_as_a_recount_says(spark: SparkSession, tmp_path: Path, seed: int, provider: str) -> None:
    draw = random.Random(seed)
    old, new, renamed = draw_variables(draw)
    expire = {
        name: "2 hours"
        for name, v in new.items()
        if v.ttl_ms and renamed.get(name, name) in old and old[renamed.get(name, name)].ttl_ms is None
    }
    model: Model = {}
    with settings(spark, **PROVIDERS[provider]):
        job = Job(spark, tmp_path, seed)
        for _ in range(2):
            count_on(model, old, job.feed())
        job.run(old, tmp_path / "first")
        assert job.state(old, tmp_path / "first")[0] == model
        plan_savepoint(tmp_path / "first", "before").run()
        plan = millpond.plan_evolve(job.query(new), tmp_path / "first", "before", "after", expire=expire, renamed=renamed)
        made = plan.run()
        assert verify_savepoint(made).problems == ()
        plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
        model = evolved(model, old, new, renamed)
        found, expiry = job.state(new, tmp_path / "second")
        assert without_nothing(found) == without_nothing(model), plan.describe()
        storage = open_storage(tmp_path / "first")
        started_ms = read_batch(storage, Batch(made.manifest.batch)).started_ms
        assert {name: set(expiry.get(name, [])) for name in expire} == {name: {started_ms + 2 * HOUR_MS} for name in expire}
        for _ in range(2):
            count_on(model, new, job.feed())
        job.run(new, tmp_path / "second")
        assert job.state(new, tmp_path / "second")[0] == model, plan.describe()
        assert newest_committed(open_storage(tmp_path / "second")) > made.manifest.batch


@pytest.mark.long
def test_what_had_no_ttl_expires_with_the_one_that_it_gets(spark: SparkSession, tmp_path: Path) -> None:
    """All rows in which Spark looks for what is due are there: nothing is left of what expired."""
    old = {kind: Variable(kind, (("n", "long"), ("last", "string"))) for kind in KINDS}
    new = {name: replace(v, ttl_ms=HOUR_MS) for name, v in old.items()}
    with settings(spark, **PROVIDERS["changelog"]):
        job = Job(spark, tmp_path, 1)
        job.feed()
        job.run(old, tmp_path / "first")
        plan_savepoint(tmp_path / "first", "before").run()
        plan = millpond.plan_evolve(job.query(new), tmp_path / "first", "before", "after", expire=dict.fromkeys(KINDS, "1 second"))
        assert all(f"expires     {kind}: all that it has, at 20" in plan.describe() for kind in KINDS)
        plan.run()
        plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
        assert all(job.state(new, tmp_path / "second")[0].values())
        model: Model = {}
        count_on(model, new, job.feed())
        job.run(new, tmp_path / "second")
        assert job.state(new, tmp_path / "second")[0] == model
        everything = whole_state(tmp_path / "second", newest_committed(open_storage(tmp_path / "second")))
        elements = len(model["value"]) + len(model["list"]) + len(model["map"])
        beside = elements + 2 * len(model["list"])  # $ttl_ of all; $min_ and $count_ of the list
        assert len(everything) == elements + beside


@pytest.mark.long
def test_the_user_says_what_columns_begin_with(spark: SparkSession, tmp_path: Path) -> None:
    old = {"value": Variable("value", (("n", "long"), ("last", "string")))}
    new = {"value": Variable("value", (("total", "long"), ("n", "int")))}
    with settings(spark, **PROVIDERS["changelog"]):
        job = Job(spark, tmp_path, 2)
        model: Model = {}
        count_on(model, old, job.feed())
        job.run(old, tmp_path / "first")
        plan_savepoint(tmp_path / "first", "before").run()
        place, query = tmp_path / "first", job.query(new)

        def plan(name: str = "after", df: DataFrame | None = None, **more: Any) -> Any:
            return millpond.plan_evolve(query if df is None else df, place, "before", name, **more)

        def condition(act: Any) -> str:
            with pytest.raises(MillpondError) as raised:
                act()
            return raised.value.condition

        assert condition(plan) == "UNSUPPORTED"  # n would be narrower
        assert condition(lambda: plan(expire={"value": "1 day"})) == condition(lambda: plan(expire={"none": "1 day"}))
        assert condition(lambda: plan(expire={"none": "1 day"})) == condition(lambda: plan(renamed={"value": "none"}))
        assert condition(lambda: plan(renamed={"value": "none"})) == "INVALID_REQUEST"
        both = job.query({"value": old["value"], "copy": old["value"]})
        assert condition(lambda: plan(df=both, renamed={"copy": "value"})) == "INVALID_REQUEST"
        with_ttl = job.query({"value": replace(old["value"], ttl_ms=HOUR_MS)})
        assert condition(lambda: plan(df=with_ttl)) == "UNSUPPORTED"  # when does it expire?
        assert condition(lambda: plan(df=with_ttl, expire={"value": "soon"})) == "INVALID_REQUEST"
        as_list = job.query({"value": Variable("list", old["value"].columns)})
        assert condition(lambda: plan(df=as_list)) == "UNSUPPORTED"
        wrong: list[tuple[Any, str]] = [
            (lambda _name, _value: 1 // 0, "INVALID_REQUEST"),
            (lambda _name, value: value, "INVALID_REQUEST"),
            (lambda _name, _value: {"total": "7", "n": 1}, "WRONG_TYPE"),
        ]
        for value_of, expected in wrong:
            assert condition(plan("x", value_of=value_of).run) == expected
        plan(value_of=lambda name, value: {"total": len(name), "n": value["n"]}).run()
        assert [found.manifest.name for found in millpond.list_savepoints(place).found] == ["before", "after"]
        plan_restore(place, "after", tmp_path / "second").run()
        model = {"value": {user: {"total": 5, "n": value["n"]} for user, value in model["value"].items()}}
        count_on(model, new, job.feed())
        job.run(new, tmp_path / "second")
        assert job.state(new, tmp_path / "second")[0] == model


@pytest.mark.long
def test_only_a_type_changes_and_rows_of_a_variable_that_was_dropped_before(spark: SparkSession, tmp_path: Path) -> None:
    """The user's function narrows a column; Spark has left the rows of another variable in the state."""
    value = Variable("value", (("n", "long"), ("last", "string")))
    new = {"value": Variable("value", (("n", "int"), ("last", "string")))}
    with settings(spark, **PROVIDERS["changelog"]):
        job = Job(spark, tmp_path, 3)
        model: Model = {}
        for variables in ({"value": value, "list": Variable("list", (("n", "long"),))}, {"value": value}):
            count_on(model, variables, job.feed())
            job.run(variables, tmp_path / "first")
        plan_savepoint(tmp_path / "first", "before").run()
        plan = millpond.plan_evolve(
            job.query(new),
            tmp_path / "first",
            "before",
            "after",
            value_of=lambda _name, before: {"n": before["n"] + 1000, "last": before["last"]},
        )
        plan.run()
        plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
        model = {"value": {user: {**row, "n": row["n"] + 1000} for user, row in model["value"].items()}}
        count_on(model, new, job.feed())
        job.run(new, tmp_path / "second")
        assert job.state(new, tmp_path / "second")[0] == model, plan.describe()
