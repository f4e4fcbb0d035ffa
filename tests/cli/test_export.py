"""Rows chosen by their values, sorted, as files; and shell completion."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

import millpond
from millpond.cli import export, main
from millpond.errors import CONDITIONS
from millpond.schema.values import encode_json, to_text
from millpond.tables.scan.where import _UNORDERED, parse_condition
from millpond.wire.rows import row_writer
from oracles.arrow_values import shown
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path) -> Iterator[millpond.Pond]:
    with millpond.open(types_pond, replica_dir=door_home, wait_seconds=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 5,000 rows, whose values aren't in the order of their keys."""
    job = WrittenCheckpoint(tmp_path_factory.mktemp("numbers") / "job")
    job.plan([(f"k{n:04}", n * 7919 % 5000) for n in range(5000)], snapshot=False)
    job.commit()
    return job.path


@pytest.fixture
def scan(numbers: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Scan them, in pages of 700 rows."""
    monkeypatch.setattr(export, "PAGE_ROWS", 700)
    home = tmp_path_factory.getbasetemp() / "numbers-home"

    def call(*words: str) -> Result:
        return CliRunner(env={"MILLPOND_HOME": str(home)}).invoke(main, ["scan", str(numbers), "job.aggregate_0", *words])

    return call


def _values(result: Result) -> list[tuple[str, int]]:
    assert result.exit_code == 0, result.stderr
    return [(k, int(v)) for k, v in (line.split("\t") for line in result.stdout.splitlines()[1:])]


ALL = [(f"k{n:04}", n * 7919 % 5000) for n in range(5000)]


def test_values_of_every_type_compare_as_spark_orders_them(pond: millpond.Pond, type_cases: ModuleType) -> None:
    """The oracle is the order of keys, which another test compares with Spark's."""
    compared = 0
    for name in type_cases.CASES:
        table = pond[name]
        column = table.definition.key[0]
        if column.type.kind in _UNORDERED:
            continue
        rows, write = table.scan(), to_text(column.type)
        for place, row in enumerate(rows):
            if row["k"] is None:
                assert [r["k"] for r in rows if parse_condition(table.definition, "k__isnull=1")(r)] == [None]
                continue
            text = write(row["k"])
            for sign, wanted in (
                ("<", lambda n, at=place: n < at),
                ("<=", lambda n, at=place: n <= at),
                (">", lambda n, at=place: n > at),
                (">=", lambda n, at=place: n >= at),
                ("=", lambda n, at=place: n == at),
                ("!=", lambda n, at=place: n != at),
            ):
                for written in (f"k{sign}{text}", f"k {sign} {text}") if not text[:1].isspace() and text else (f"k{sign}{text}",):
                    is_met = parse_condition(table.definition, written)
                    found = [n for n, other in enumerate(rows) if is_met(other)]
                    assert found == [n for n, o in enumerate(rows) if wanted(n) and o["k"] is not None], (name, written)
                    compared += 1
    assert compared > 200


def test_conditions_orders_and_limits_over_many_pages(scan: Run) -> None:
    assert _values(scan("--where", "v>=4990", "--limit", "5000")) == [row for row in ALL if row[1] >= 4990]
    assert _values(scan("--where", "v > 100", "--where", "v<110", "--reverse", "--limit", "5000")) == [
        row for row in reversed(ALL) if 100 < row[1] < 110
    ]
    by_value = sorted(ALL, key=lambda row: row[1])
    assert _values(scan("--order-by", "v")) == by_value[:100]
    assert _values(scan("--order-by", "v", "--reverse", "--limit", "3")) == by_value[:-4:-1]
    cut_off = scan("--where", "k > k2", "--limit", "2")
    assert _values(cut_off) == [row for row in ALL if row[0] > "k2"][:2]
    assert "There are more rows: only 2 are shown (--limit)" in cut_off.stderr
    exact = scan("--where", "v < 3", "--limit", "3")
    assert len(_values(exact)) == 3
    assert "more rows" not in exact.stderr
    assert scan("--where", "k=none").stdout == "k\tv\n"


def test_files_have_all_rows_of_one_batch(scan: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = scan("--csv")
    assert [(k, int(v)) for k, v in list(csv.reader(io.StringIO(done.stdout)))[1:]] == ALL
    assert done.stderr.startswith("batch 0 of job · ")
    file = tmp_path / "rows.parquet"
    for words, rows in (((), ALL), (("--limit", "7"), ALL[:7]), (("--where", "v < 0"), [])):
        assert f"{len(rows)} rows in {file}" in scan("--parquet", str(file), *words).stderr
        table = parquet.read_table(file)
        assert list(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)) == rows
        assert table.schema.metadata[b"millpond.batch"] == b"0"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_a_parquet_file_has_every_type(pond: millpond.Pond, types_pond: Path, tmp_path: Path, type_cases: ModuleType) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from millpond.tables.forms.arrow import write_parquet

    for name in type_cases.CASES:
        table = pond[name]
        file = tmp_path / f"{name}.parquet"
        if name == "string":  # has bytes that aren't UTF-8
            with pytest.raises(millpond.MillpondError) as refused:
                write_parquet(file, table.definition, [table.scan()])
            assert refused.value.condition == "WRONG_TYPE"
            assert list(tmp_path.glob(".string*")) == []
            continue
        assert write_parquet(file, table.definition, [table.scan()]) == table.count()
        assert shown(parquet.read_table(file)) == shown(table.to_arrow()), name


@pytest.mark.parametrize(
    ("words", "condition"),
    [
        (["--where", "v"], "INVALID_REQUEST"),
        (["--where", "w > 1"], "UNKNOWN_COLUMN"),
        (["--where", "v > x"], "WRONG_TYPE"),
        (["--where", "v__isnull=2"], "INVALID_REQUEST"),
        (["--order-by", "w"], "UNKNOWN_COLUMN"),
        (["--csv", "--json"], "INVALID_REQUEST"),
        (["--csv", "--parquet", "x"], "INVALID_REQUEST"),
        (["--where", "v > 1", "--token", "x"], "INVALID_REQUEST"),
        (["--csv", "--limit", "0"], "INVALID_LIMIT"),
        (["--parquet", "/proc/none/x.parquet"], "NOT_WRITABLE"),
        (["--parquet", "/dev"], "INVALID_REQUEST"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(scan: Run, words: list[str], condition: str) -> None:
    done = scan(*words)
    assert condition in done.stderr.splitlines()[-1]
    assert done.exit_code == CONDITIONS[condition].exit_code
    assert done.stdout == ""


def test_a_column_without_order_isnt_compared(types_pond: Path, door_home: Path) -> None:
    for words in (["--order-by", "k"], ["--where", "k = 1"]):
        done = CliRunner(env={"MILLPOND_HOME": str(door_home)}).invoke(main, ["scan", str(types_pond), "array", *words])
        assert "WRONG_TYPE" in done.stderr


def test_describe_shows_columns_in_the_order_of_the_key(types_pond: Path, door_home: Path) -> None:
    run = CliRunner(env={"MILLPOND_HOME": str(door_home)})
    done = run.invoke(main, ["describe", str(types_pond), "price"])
    assert done.stdout.splitlines()[:2] == ["table       price", "job         price"]
    assert "k\tdecimal(10,2)\t1" in done.stdout
    described = json.loads(run.invoke(main, ["describe", str(types_pond), "price", "--json"]).stdout)
    assert (described["key"], [column["name"] for column in described["columns"]]) == (["k"], ["k", "n", "again"])


def test_json_of_a_condition_is_that_of_a_scan(pond: millpond.Pond, types_pond: Path, door_home: Path) -> None:
    run = CliRunner(env={"MILLPOND_HOME": str(door_home)})
    done = run.invoke(main, ["scan", str(types_pond), "long", "--where", "k > 0", "--json"])
    table = pond["long"]
    wanted = [row_writer(table.definition)(row) for row in table.scan() if (row["k"] or 0) > 0]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [{name: row[name] for name in table.columns} for row in rows] == [json.loads(encode_json(row)) for row in wanted]


@pytest.mark.parametrize(
    ("line", "wanted"),
    a_few(
        [
            ("millpond sc", ["scan"]),
            ("millpond scan {pond} timestamp", ["timestamp", "timestamp_ntz"]),
            ("millpond get {pond} price ", ["k="]),
            ("millpond get {pond} price k", ["k="]),
            ("millpond get {pond} price k=1 ", []),
            ("millpond get {pond} price --min-b", ["--min-batch"]),
            ("millpond get {pond}/none pr", []),
            ("millpond get http://localhost:1 pr", []),
            ("millpond tables {pond}/jo", ["{pond}/jo"]),
        ],
        4,
    ),
)
def test_a_shell_completes_commands_tables_and_columns(types_pond: Path, line: str, wanted: list[str]) -> None:
    words = line.format(pond=types_pond)
    at = len(words.split()) - (not words.endswith(" "))
    environment = {**os.environ, "_MILLPOND_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    program = "import sys; sys.argv[0] = 'millpond'; from millpond.cli import main; main(prog_name='millpond')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert [item.partition(",")[2] for item in done.stdout.splitlines() if item] == [
        word.format(pond=types_pond) for word in wanted
    ]


@pytest.mark.long
def test_the_line_of_the_manual_makes_bash_complete(types_pond: Path) -> None:
    """A real bash loads the script as the manual says, and its function fills COMPREPLY."""
    command = Path(sys.executable).with_name("millpond")
    if shutil.which("bash") is None or not command.exists():
        pytest.skip("this machine has no bash, or no installed command")
    program = (
        f'eval "$(_MILLPOND_COMPLETE=bash_source millpond)"\nCOMP_WORDS=(millpond describe {types_pond} wide)\nCOMP_CWORD=3\n'
        "_millpond_completion millpond\necho ${COMPREPLY[@]}\n"
    )
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "wide_decimal\n"
