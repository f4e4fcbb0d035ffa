"""Keys and values that are hard to show equal those of Spark's batch engine, row by row and in its order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.schema.values import encode_json
from millpond.serve.formats import CSV, NDJSON, write_pages
from millpond.tables.failed import FailingValues
from millpond.wire.answers import answer_json, members
from millpond.wire.rows import row_writer
from spark_files.golden import GOLDEN

VALUES = GOLDEN / "values"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((VALUES / "expected.json").read_text())
PROVIDERS = ("hdfs", "rocksdb")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(VALUES, tmp_path_factory.mktemp("golden") / "values", copy_function=shutil.copy))


@pytest.fixture(scope="module")
def pond(path: Path) -> Iterator[millpond.Pond]:
    with millpond.open(path, replica_dir="memory://") as opened:
        yield opened


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Spark's, with the window's members as columns, as a table has them."""
    out: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("window", "session_window"):
            word = name.removesuffix("_window")
            out |= {f"{word}_start": value["start"], f"{word}_end": value["end"]}
        else:
            out[name] = value
    return out


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("name", ["structs", "struct_windows"])
def test_a_struct_that_is_null_is_a_key_of_its_own_in_sparks_order(
    name: str, provider: str, pond: millpond.Pond, path: Path
) -> None:
    table, expected = pond[f"{name}_{provider}"], [flat(row) for row in EXPECTED[name]]
    write, rows = row_writer(table.definition), table.with_closed().scan()
    shown = [write(row) for row in rows]
    assert shown == expected
    keys = [c.name for c in table.definition.key]
    assert "s" in keys
    assert {row["s"] is None for row in rows} == {True, False}
    assert any(row["s"] is not None and row["s"]["a"] is None for row in rows)
    for row in rows:
        key = {column: row[column] for column in keys}
        assert table.with_closed().get(key) == row
        if row in table.live().scan():
            assert millpond.read_row(path, table.name, key) == row
    assert [row["s"] for row in table.with_closed().scan(s=None)] == [None for row in expected if row["s"] is None]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_sessions_of_a_struct_that_is_null_are_its_own(provider: str, pond: millpond.Pond) -> None:
    table = pond[f"struct_sessions_{provider}"]
    rows = table.live().scan()
    write = row_writer(table.definition)
    expected = [flat(row) for row in EXPECTED["struct_sessions"]]
    assert rows
    for row in rows:
        assert write(row) in expected
        assert table.get({c.name: row[c.name] for c in table.definition.key}) == row


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_value_that_divides_by_zero_is_an_error_of_its_own(provider: str, pond: millpond.Pond, path: Path) -> None:
    table = pond[f"unfinished_{provider}"]
    by_start = {flat(row)["window_start"]: flat(row) for row in EXPECTED["unfinished"]}
    write, rows = row_writer(table.definition), table.live().scan()
    failing = [row for row in rows if row.errors]
    assert len(failing) == 1
    assert len(rows) > 1
    for row in rows:
        shown = write(row)
        assert shown is not None
        expected = by_start[shown["window_start"]]
        if not row.errors:
            assert shown == expected
            continue
        (bad,) = row.errors
        assert bad == "ratio"
        assert expected["ratio"] is None  # the session isn't in ANSI mode
        with pytest.raises(MillpondError) as raised:
            row["ratio"]
        assert raised.value.condition == "VALUE_OUT_OF_RANGE"
        assert "'ratio'" in raised.value.message
        with pytest.raises(MillpondError):
            row.get("ratio")
        assert (row["n"], row["total"]) == (expected["n"], expected["total"])
        failures = shown.pop("_errors")
        assert shown == expected
        assert failures["ratio"]["condition"] == "VALUE_OUT_OF_RANGE"
        key = {c.name: row[c.name] for c in table.definition.key}
        assert table.get(key) == row
        assert millpond.read_row(path, table.name, key) == row
    assert list(table.scan(reverse=True)) == list(table.scan())[::-1]
    paged, page = [], table.scan(limit=1)
    paged += page
    while page.more:
        page = table.scan(limit=1, token=page.token)
        paged += page
    assert paged == list(table.scan())
    assert table.count() == len(paged)
    lines = b"".join(write_pages(NDJSON, table.definition, [rows])).splitlines()
    assert lines == [encode_json(write(row)) for row in rows]
    text = b"".join(write_pages(CSV, table.definition, [rows])).decode()
    assert text.count("#VALUE_OUT_OF_RANGE") == 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_row_whose_filter_fails_shows_its_key_alone(provider: str, pond: millpond.Pond) -> None:
    table = pond[f"unfinished_kept_{provider}"]
    rows = table.live().scan()
    (failing,) = [row for row in rows if row.errors]
    keys = {c.name for c in table.definition.key}
    assert failing.errors.keys() == set(table.definition.columns) - keys
    assert "filter" in next(iter(failing.errors.values())).message
    assert all(failing[name] is not None for name in keys)
    kept = [flat(row) for row in EXPECTED["unfinished_kept"]]
    write = row_writer(table.definition)
    assert all(write(row) in kept for row in rows if not row.errors)


@pytest.mark.parametrize("name", ["unfinished", "unfinished_kept"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_arrow_has_null_and_says_where_and_why(name: str, provider: str, pond: millpond.Pond, path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from millpond.tables.forms.arrow import ipc_stream, read_ipc_stream, to_arrow

    table = pond[f"{name}_{provider}"].live()
    rows = table.scan()
    expected = [(i, column) for i, row in enumerate(rows) for column in row.errors]
    assert expected

    def failures(found: Any) -> list[tuple[int, str]]:
        errors = json.loads(found.schema.metadata[b"millpond.errors"])
        assert errors["count"] == len(errors["errors"])
        for one in errors["errors"]:
            assert found[one["column"]][one["row"]].as_py() is None
            assert one["condition"] == "VALUE_OUT_OF_RANGE"
        return sorted((one["row"], one["column"]) for one in errors["errors"])

    whole, scanned = table.to_arrow(), to_arrow(table.definition, rows)
    assert failures(whole) == failures(scanned) == sorted(expected)
    assert whole.equals(scanned)
    pytest.importorskip("pandas")
    with pytest.warns(UserWarning, match="can't be computed"):
        assert len(table.to_pandas()) == len(rows)
    assert str(failing := next(row for row in rows if row.errors)) in repr(rows)
    assert "VALUE_OUT_OF_RANGE" in failing._repr_html_()
    cold = millpond.read_arrow(path, table.name)
    assert len(failures(cold)) == len(expected)
    order = [(c, "ascending") for c in ("window_start", "window_end")]
    assert cold.sort_by(order).equals(whole.sort_by(order))
    streamed = read_ipc_stream(b"".join(ipc_stream([scanned, scanned])))
    assert failures(streamed) == sorted([*expected, *((i + len(rows), column) for i, column in expected)])
    assert streamed.replace_schema_metadata(None).equals(pa.concat_tables([whole, whole]).replace_schema_metadata(None))


def test_the_command_line_marks_it_and_says_why(path: Path, tmp_path: Path) -> None:
    def scan(name: str, *words: str) -> Any:
        done = CliRunner().invoke(main, ["scan", str(path), name, *words], env={"MILLPOND_HOME": str(tmp_path)})
        assert done.exit_code == 0, done.stderr
        return done

    done = scan("unfinished_hdfs", "--live")
    header, *lines = done.stdout.splitlines()
    place = header.split("\t").index("ratio")
    assert [line.split("\t")[place] for line in lines].count("\\E") == 1
    assert "1 value can't be computed" in done.stderr
    assert "'ratio'" in done.stderr
    printed = [json.loads(line) for line in scan("unfinished_hdfs", "--live", "--json").stdout.splitlines()]
    assert [row["ratio"] for row in printed if "_errors" in row] == [None]
    assert "can't be computed" not in scan("structs_hdfs").stderr
    pq = pytest.importorskip("pyarrow.parquet")
    scan("unfinished_hdfs", "--live", "--parquet", str(tmp_path / "out.parquet"))
    file = pq.ParquetFile(tmp_path / "out.parquet")
    (error,) = json.loads(file.metadata.metadata[b"millpond.errors"])["errors"]
    assert (file.read()["ratio"][error["row"]].as_py(), error["column"]) == (None, "ratio")
    assert scan("unfinished_hdfs", "--live", "--csv").stdout.count("#VALUE_OUT_OF_RANGE") == 1
    for condition, found in (("ratio > 0", 1), ("ratio__isnull=1", 0), ("n > 0", 2)):
        assert len(scan("unfinished_hdfs", "--live", "--where", condition).stdout.splitlines()) == 1 + found
    last = scan("unfinished_hdfs", "--live", "--order-by", "ratio").stdout.splitlines()[-1]
    assert last.split("\t")[place] == "17.0"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_changes_and_versions_go_on_over_a_value_that_fails(provider: str, path: Path, tmp_path: Path) -> None:
    """The copy first lacks its newest batches; they come while a replica follows it."""
    name = f"unfinished_{provider}"
    source = path / "jobs" / name
    copy = Path(shutil.copytree(path, tmp_path / "pond"))
    commits = copy / "jobs" / name / "checkpoint" / "commits"
    later = sorted((source / "checkpoint" / "commits").iterdir(), key=lambda file: int(file.name))[1:]
    for file in later:
        (commits / file.name).unlink()
    kept = {name: millpond.Retention(history_batches=10)}
    with millpond.open(copy, replica_dir=tmp_path / "home", retention=kept) as pond:
        table = pond[name]
        begin = table.changes()
        for file in later:
            shutil.copy(file, commits / file.name)
        pond.catch_up()
        changes, versions = table.changes(begin.token), table.history()
        shown = [row for change in changes for row in (change.old, change.new, change.final) if row is not None]
        failing = [row for row in shown if isinstance(row, FailingValues)]
        assert failing
        assert len(failing) < len(shown)
        for row in (*failing, *(version.row for version in versions if isinstance(version.row, FailingValues))):
            assert row["total"] is not None
            assert row.errors.keys() == {"ratio"}
            with pytest.raises(MillpondError):
                row["ratio"]
        entries = members(answer_json(name, changes, row_writer(table.definition)))["changes"]
        assert sum("_errors" in (change[which] or {}) for change in entries for which in ("old", "new", "final")) == len(failing)
