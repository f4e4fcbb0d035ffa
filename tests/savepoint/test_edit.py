"""Savepoints edited by a function: rows changed, removed and merged; the rest as it was, to the bit."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from savepoint.test_golden_cells import rows_of
from savepoint.test_rewrite import whole_state
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import a_few

StateRow = millpond.StateRow
TABLE = "job.aggregate_0"
# Rows with NULL in place of numbers in keys: they lie where the numbers' hash says.
REFUSED = ("two-keys",)
EDITABLE = [cell for cell in CELLS if not any(word in cell for word in ("join-", *REFUSED))]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint with a savepoint `first`: twenty keys, the value of key `k7` is 7."""
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([((f"k{n}",), n) for n in range(20)], snapshot=False)
    job.commit()
    plan_savepoint(job.path, "first").run()
    return job.path


def condition(act: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as raised:
        act()
    return raised.value.condition


def edited(place: Path, target: Path, edit: Any, **more: Any) -> dict[str, Any]:
    """The rows of the restored result, from the state itself."""
    made = millpond.plan_edit_savepoint(place, "first", target.name, edit=edit, **more).run()
    assert verify_savepoint(made).problems == ()
    plan_restore(place, target.name, target).run()
    with millpond.open(target, replica_dir="memory://") as pond:
        (table,) = pond.tables()
        rows = list(pond[table].scan())
        for row in rows:  # each row lies where Spark looks for it
            assert pond[table].get(k=row["k"])["v"] == row["v"]
    return {row["k"]: row["v"] for row in rows}


def test_rows_change_and_go(place: Path, tmp_path: Path) -> None:
    def edit(row: StateRow) -> StateRow | None:
        assert row.table == TABLE
        if row.key["k"] == "k3":
            return None
        if row.key["k"] == "k4":
            row.value["v"] += 100
        return row

    expected = {f"k{n}": n for n in range(20) if n != 3} | {"k4": 104}
    assert edited(place, tmp_path / "fixed", edit) == expected
    assert edited(place, tmp_path / "same", lambda row: row) == {f"k{n}": n for n in range(20)}


def test_keys_change_and_rows_merge(place: Path, tmp_path: Path) -> None:
    def edit(row: StateRow) -> StateRow:
        return StateRow(row.table, {"k": row.key["k"][:2]}, row.value)

    def merge(first: StateRow, second: StateRow) -> StateRow:
        return StateRow(first.table, first.key, {"v": first.value["v"] + second.value["v"]})

    plan = millpond.plan_edit_savepoint(place, "first", "merged", edit=edit, merge=merge)
    (counts,) = plan.preview().values()
    assert (counts.rows, counts.changed, counts.removed, counts.merged) == (20, 10, 0, 10)
    assert len(counts.samples) == 5
    for sample in counts.samples:
        (n,) = sample.before["value"].values()
        assert sample.before == {"key": {"k": f"k{n}"}, "value": {"v": n}}
        assert sample.after == {"key": {"k": "k1"}, "value": {"v": n}}
    expected = {f"k{n}": n for n in range(2, 10)} | {"k0": 0, "k1": 1 + sum(range(10, 20))}
    assert edited(place, tmp_path / "merged", edit, merge=merge) == expected
    assert condition(lambda: millpond.plan_edit_savepoint(place, "first", "x", edit=edit).run()) == "INVALID_REQUEST"
    assert [found.manifest.name for found in millpond.list_savepoints(place).found] == ["first", "merged"]


def raises(row: StateRow) -> StateRow:
    raise ZeroDivisionError(row.key)


def test_what_an_edit_may_not_do(place: Path) -> None:
    wrong: list[tuple[Any, str]] = [
        (raises, "INVALID_REQUEST"),
        (lambda row: row.key, "INVALID_REQUEST"),
        (lambda row: StateRow("other", row.key, row.value), "INVALID_REQUEST"),
        (lambda row: StateRow(row.table, {}, row.value), "INVALID_REQUEST"),
        (lambda row: StateRow(row.table, row.key, {"v": 1, "w": 2}), "INVALID_REQUEST"),
        (lambda row: StateRow(row.table, row.key, [1]), "INVALID_REQUEST"),
        (lambda row: StateRow(row.table, row.key, {"v": "7"}), "WRONG_TYPE"),
        (lambda row: StateRow(row.table, row.key, {"v": 2**63}), "WRONG_TYPE"),
        (lambda row: StateRow(row.table, row.key, {"v": True}), "WRONG_TYPE"),
    ]
    for edit, expected in wrong:
        plan = millpond.plan_edit_savepoint(place, "first", "x", edit=edit)
        assert condition(plan.preview) == condition(plan.run) == expected

    def one(row: StateRow) -> StateRow:
        return StateRow(row.table, {"k": "one"}, row.value)

    merges: list[Any] = [lambda _a, _b: None, lambda a, b: StateRow(a.table, {"k": "two"}, b.value), lambda _a, _b: 1 / 0]
    for merge in merges:
        plan = millpond.plan_edit_savepoint(place, "first", "x", edit=one, merge=merge)
        assert condition(plan.preview) == condition(plan.run) == "INVALID_REQUEST"
    assert [found.manifest.name for found in millpond.list_savepoints(place).found] == ["first"]


def test_a_plan_that_makes_no_sense_is_refused(place: Path) -> None:
    def plan(savepoint: str = "first", name: str = "x", **more: Any) -> str:
        return condition(lambda: millpond.plan_edit_savepoint(place, savepoint, name, **more))

    assert plan() == plan(tables=[TABLE]) == plan(merge=max) == plan(offsets={"7": {}}) == "INVALID_REQUEST"
    assert plan(edit=raises, tables=["nonsense"]) == "UNKNOWN_TABLE"
    assert plan(edit=raises, name="first") == "SAVEPOINT_EXISTS"
    assert plan(edit=raises, name="../x") == "INVALID_NAME"
    assert plan("nonsense", edit=raises) == "UNKNOWN_SAVEPOINT"
    assert plan(watermark="tomorrow") == "WRONG_TYPE"
    assert plan(watermark="1969-01-01T00:00:00Z") == "INVALID_REQUEST"


def test_offsets_and_watermark_move(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job", sources=lambda _batch: [{"logOffset": 8}])
    job.plan([(("k",), 1)], snapshot=False)
    job.commit()
    place = job.path
    plan_savepoint(place, "first").run()
    made = millpond.plan_edit_savepoint(
        place, "first", "moved", offsets={"0": {"logOffset": 5}}, watermark="2026-01-01T00:00:00Z"
    ).run()
    assert (made.manifest.offsets, made.manifest.watermark_ms) == ({"0": {"logOffset": 5}}, 1767225600000)
    assert verify_savepoint(made).problems == ()
    plan_restore(place, "moved", tmp_path / "target").run()
    lines = (tmp_path / "target/offsets/0").read_text().split("\n")
    assert json.loads(lines[2]) == {"logOffset": 5}
    assert json.loads(lines[1])["batchWatermarkMs"] == 0  # up to there, Spark has removed rows
    assert json.loads((tmp_path / "target/commits/0").read_text().split("\n")[1])["nextBatchWatermarkMs"] == 1767225600000
    again = millpond.plan_edit_savepoint(place, "moved", "anew", offsets={"0": None}).run()
    assert again.manifest.offsets == {"0": None}
    assert rows_of(place, 0) == rows_of(tmp_path / "target", 0)


def test_the_command(place: Path, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("LAST = 'k7'\n")
    file = tmp_path / "fix.py"
    file.write_text("import names\n\ndef edit(row):\n    return None if row.key['k'] == names.LAST else row\n")
    shown = CliRunner().invoke(main.named("savepoint"), ["edit", str(place), "first", str(file), "--name", "fixed"])
    assert shown.exit_code == 0, shown.output
    assert '{"table":"job.aggregate_0","before":{"key":{"k":"k7"},"value":{"v":7}},"after":null}' in shown.output
    assert "Nothing is written yet" in shown.output
    done = CliRunner().invoke(
        main.named("savepoint"), ["edit", str(place), "first", str(file), "--name", "fixed", "--table", TABLE, "--yes"]
    )
    assert done.output.splitlines()[-1] == "fixed"
    assert millpond.open_savepoint(place, "fixed").manifest.rows == 19
    for wrong in (
        ["--offset", "0"],
        ["--offset", "0={"],
        ["--offset", "=1"],
        [str(tmp_path / "none.py")],
        [str(tmp_path / "names.py")],
    ):
        with pytest.raises(MillpondError):
            CliRunner().invoke(
                main.named("savepoint"), ["edit", str(place), "first", *wrong, "--name", "x"], catch_exceptions=False
            )


@pytest.mark.parametrize("cell", a_few(sorted(EDITABLE, key=lambda cell: "-avro" not in cell), 8))
def test_an_edit_that_changes_nothing_changes_no_byte_of_a_row(cell: str, tmp_path: Path) -> None:
    """Also if every row is made anew from its values; then all rows but every third are removed, and the rest is as it was."""
    source = tmp_path / "job"
    shutil.copytree(GOLDEN / cell / "checkpoint", source)
    batch = plan_savepoint(source, "first").run().manifest.batch

    def anew(row: StateRow) -> StateRow:
        value = [dict(v) for v in row.value] if isinstance(row.value, list) else dict(row.value)
        return StateRow(row.table, dict(row.key), value)

    try:
        made = millpond.plan_edit_savepoint(source, "first", "anew", edit=anew).run()
    except MillpondError as error:
        assert error.condition == "UNSUPPORTED"
        pytest.fail(f"{cell}: {error}")
    assert verify_savepoint(made).problems == ()
    plan_restore(source, "anew", tmp_path / "anew").run()
    assert rows_of(tmp_path / "anew", batch) == rows_of(source, batch)
    if "rocksdb" in cell:
        assert whole_state(tmp_path / "anew", batch) == whole_state(source, batch)
    some = random.Random(cell)
    stay: dict[str, bool] = {}

    def thin(row: StateRow) -> StateRow | None:
        return row if stay.setdefault(repr((row.table, row.key)), some.random() < 0.3) else None

    plan = millpond.plan_edit_savepoint(source, "first", "thin", edit=thin)
    counts = plan.preview()
    plan.run()
    plan_restore(source, "thin", tmp_path / "thin").run()
    before, after = rows_of(source, batch), rows_of(tmp_path / "thin", batch)
    assert {store: rows.items() <= before[store].items() for store, rows in after.items()} == dict.fromkeys(before, True)
    assert sum(map(len, after.values())) == sum(c.rows - c.removed for c in counts.values())


TTL, TIMERS = "spark-4.3/transform-ttl-rocksdb-changelog", "spark-4.3/transform-event-timers-rocksdb-changelog"


def values_of(row: StateRow) -> list[dict[str, Any]]:
    return row.value if isinstance(row.value, list) else [row.value]


@pytest.mark.parametrize("cell", [TTL, TIMERS])
def test_expiry_times_and_timers_move(tmp_path: Path, cell: str) -> None:
    """The rows in which Spark looks for what is due move with them."""
    source = tmp_path / "job"
    shutil.copytree(GOLDEN / cell / "checkpoint", source)
    batch, later = plan_savepoint(source, "first").run().manifest.batch, 1000

    def edit(row: StateRow) -> StateRow:
        for columns in (row.key, *values_of(row)):
            columns |= {name: columns[name] + later for name in ("expiryTimestampMs", "ttlExpirationMs") if name in columns}
        return row

    millpond.plan_edit_savepoint(source, "first", "later", edit=edit).run()
    plan_restore(source, "later", tmp_path / "later").run()
    before, after = whole_state(source, batch), whole_state(tmp_path / "later", batch)
    assert len(after) == len(before)
    assert len(set(after) - set(before)) > 10
    later = -later
    millpond.plan_edit_savepoint(source, "later", "back", edit=edit).run()
    plan_restore(source, "back", tmp_path / "back").run()
    assert whole_state(tmp_path / "back", batch) == before


def test_timers_of_a_key_at_the_same_time_are_one(tmp_path: Path) -> None:
    source = tmp_path / "job"
    shutil.copytree(GOLDEN / TIMERS / "checkpoint", source)
    batch = plan_savepoint(source, "first").run().manifest.batch

    def edit(row: StateRow) -> StateRow:
        if "expiryTimestampMs" in row.key:
            row.key["expiryTimestampMs"] = 7
        return row

    plan = millpond.plan_edit_savepoint(source, "first", "one", edit=edit)
    timers = plan.preview()["job.transform_0_timers"]
    plan.run()
    plan_restore(source, "one", tmp_path / "one").run()
    (by_key,) = [rows for store, rows in rows_of(tmp_path / "one", batch).items() if "keyToTimestamp" in store]
    assert 0 < len(by_key) == timers.rows - timers.merged < timers.rows


@pytest.mark.parametrize(
    ("cell", "column", "value", "expected"),
    [(TIMERS, "key", {"user": "another"}, "UNSUPPORTED"), (TTL, "ttlExpirationMs", None, "INVALID_REQUEST")],
)
def test_a_timer_keeps_its_key_and_an_expiry_has_a_time(tmp_path: Path, cell: str, column: str, value: Any, expected: str) -> None:
    source = tmp_path / "job"
    shutil.copytree(GOLDEN / cell / "checkpoint", source)
    plan_savepoint(source, "first").run()

    def edit(row: StateRow) -> StateRow:
        for columns in (row.key, *values_of(row)):
            columns |= {name: value for name in columns if name == column}
        return row

    assert condition(millpond.plan_edit_savepoint(source, "first", "x", edit=edit).run) == expected


@pytest.mark.parametrize("cell", a_few([cell for cell in EDITABLE if "-avro" in cell], 1))
def test_values_in_avro_change_and_back(tmp_path: Path, cell: str) -> None:
    """Every number of every value, there and back, without the TTL; older rows get the newest schema at the first change."""
    source = tmp_path / "job"
    shutil.copytree(GOLDEN / cell / "checkpoint", source)
    batch, more = plan_savepoint(source, "first").run().manifest.batch, 1

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: v if name == "ttlExpirationMs" else changed(v) for name, v in value.items()}
        return value + more if type(value) is int else value

    def edit(row: StateRow) -> StateRow:
        value = [changed(v) for v in row.value] if isinstance(row.value, list) else changed(row.value)
        return StateRow(row.table, row.key, value)

    plan = millpond.plan_edit_savepoint(source, "first", "more", edit=edit)
    assert sum(counts.changed for counts in plan.preview().values()) > 0
    assert verify_savepoint(plan.run()).problems == ()
    more = -1
    millpond.plan_edit_savepoint(source, "more", "back", edit=edit).run()
    for name in ("more", "back"):
        plan_restore(source, name, tmp_path / name).run()
    before = rows_of(source, batch)
    assert rows_of(tmp_path / "more", batch) != before == rows_of(tmp_path / "back", batch)
    if "evolution" not in cell:
        assert whole_state(tmp_path / "back", batch) == whole_state(source, batch)
