"""The commands: their output, where it goes, and their exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millpond.cli import main
from millpond.cli.group import COMMANDS
from millpond.errors import CONDITIONS
from spark_files.golden import GOLDEN
from suite.programs import started
from suite.sizes import a_few

Run = Callable[..., Result]


@pytest.fixture
def run(types_pond: Path, door_home: Path) -> Run:
    """Run a command on the pond of types, without a server."""

    def call(command: str, *words: str, folder: Path = types_pond) -> Result:
        return CliRunner(env={"MILLPOND_HOME": str(door_home)}).invoke(main, [command, str(folder), *words])

    return call


def error_of(result: Result) -> str:
    """The condition of a command that failed in one line, with the exit code of that condition."""
    *progress, line = result.stderr.splitlines()
    assert all(text.startswith("catching up: ") for text in progress)
    found = re.fullmatch(r"\[([A-Z_]+)\] .+ Hint: .+", line)
    assert found, result.stderr
    assert result.exit_code == CONDITIONS[found[1]].exit_code
    assert result.stdout == ""
    return found[1]


# ---------------------------------------------------------------- what is written


def test_get_writes_the_row_to_stdout_and_its_batch_to_stderr(run: Run) -> None:
    done = run("get", "long", "k=9007199254740993")
    assert done.exit_code == 0
    assert done.stdout == "k\tn\tagain\n9007199254740993\t2\t9007199254740993\n"
    # In a checkout, file times are those of the checkout; only the beginning of the batch is known.
    assert done.stderr.startswith("batch 1 of long · caught up · begun ")


def test_a_replica_in_memory_leaves_nothing_on_disk(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    done = CliRunner(env={"MILLPOND_HOME": str(home)}).invoke(
        main, ["get", str(GOLDEN / "types"), "long", "k=9007199254740993", "--replica-dir", "memory://"]
    )
    assert done.stdout == run("get", "long", "k=9007199254740993").stdout
    assert list(tmp_path.iterdir()) == []


def test_get_of_a_row_that_isnt_there_ends_with_one(run: Run) -> None:
    text, as_json = (run("get", "long", "k=5", *flags) for flags in ([], ["--json"]))
    assert (text.exit_code, text.stdout, as_json.exit_code, as_json.stdout) == (1, "", 1, "")
    assert "has no row with this key.\n" in text.stderr
    footer = json.loads(as_json.stderr)
    assert (footer["table"], footer["batch"], footer["evicted"], footer["maybe_evicted"]) == ("long", 1, [], [])


def test_null_and_the_empty_text_are_two_keys(run: Run) -> None:
    assert run("get", "string", "k=").stdout.splitlines()[1] == "\t2\t"
    assert run("get", "string", "k__isnull=1").stdout.splitlines()[1] == "\\N\t2\t\\N"


def test_a_key_can_be_given_as_json(run: Run) -> None:
    for key in ('{"k": "9007199254740993"}', '{"k": 9007199254740993}'):
        assert run("get", "long", "--key", key).stdout.splitlines()[1].startswith("9007199254740993\t2")
    assert run("get", "map", "--key", '{"k": [{"key": "2026-03-01", "value": 1}]}').exit_code == 0


def test_json_is_one_object_a_row_that_names_its_batch(run: Run) -> None:
    done = run("scan", "long", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 4
    assert all(set(row) == {"k", "n", "again", "_batch", "_behind_seconds", "_changed", "_final"} for row in rows)
    assert all((row["_batch"], row["_behind_seconds"], row["_final"]) == (1, 0.0, False) for row in rows)
    assert {row["k"] for row in rows} == {None, 2**53 - 1, str(2**53 + 1), str(-(2**63))}
    footer = json.loads(done.stderr)
    assert footer["position"]["offsets"]
    assert footer.keys() == {"table", "job", "batch", "position", "lag", "job_state", "evicted", "maybe_evicted", "more", "token"}
    some = json.loads(run("scan", "long", "--json", "--limit", "1").stderr)
    assert (some["more"], some["token"] is None) == (True, False)


def test_a_column_called_batch_keeps_its_name(run: Run, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    shutil.copytree(GOLDEN / "types", pond)
    path = pond / "jobs" / "long" / "tables" / "long.json"
    path.write_text(path.read_text().replace('"name": "n"', '"name": "_batch"').replace('"name": "again"', '"name": "_final"'))
    row = json.loads(run("get", "long", "k__isnull=1", "--json", folder=pond).stdout)
    ours = {"__batch": 1, "_behind_seconds": 0.0, "_changed": row["_changed"], "__final": False}
    assert row == {"k": None, "_batch": 2, "_final": None, **ours}


def test_a_scan_that_is_cut_off_says_so(run: Run) -> None:
    done = run("scan", "long", "--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert "There are more rows" in done.stderr
    assert "There are more rows" not in run("scan", "long", "--limit", "4").stderr


def test_tables_lists_keys_columns_rows_and_batch(run: Run) -> None:
    lines = run("tables").stdout.splitlines()
    assert lines[0] == "table\tjob\tkey\tcolumns\trows\tbatch\tbehind"
    assert "price\tprice\tk\tn, again\t3\t1\t0.0 s" in lines
    shown = {t["table"]: t for t in map(json.loads, run("tables", "--json").stdout.splitlines())}
    assert shown["price"]["columns"][0] == {"name": "k", "type": "decimal(10,2)", "key": True, "raw": None}


def test_a_bare_checkpoint_can_be_read_as_well(run: Run, tmp_path: Path) -> None:
    checkpoint = tmp_path / "page views ü"
    shutil.copytree(GOLDEN / "types" / "jobs" / "long" / "checkpoint", checkpoint)
    (table,) = map(json.loads, run("tables", "--json", folder=checkpoint).stdout.splitlines())
    assert (table["derived"], table["row_count"], table["key"]) == (False, 4, ["k"])
    assert run("get", table["table"], "k=9007199254740991", folder=checkpoint).exit_code == 0


def test_a_terminal_shows_a_table_and_obeys_no_key(types_pond: Path, door_home: Path) -> None:
    shown = _on_a_terminal(["scan", str(types_pond), "string"], door_home)
    assert "─" in shown
    assert r"tab\tline\n\x1b" in shown
    assert r"a\xff\x80" in shown
    assert "NULL" in shown
    assert '""' in shown


@pytest.mark.parametrize("columns", a_few([60, 80, 120, 200], 1))
def test_no_name_of_a_table_or_column_is_broken_on_a_terminal(types_pond: Path, door_home: Path, columns: int) -> None:
    shown = _on_a_terminal(["tables", str(types_pond)], door_home, columns=columns)
    assert max(map(len, shown.splitlines())) <= columns
    listed = CliRunner(env={"MILLPOND_HOME": str(door_home)}).invoke(main, ["tables", str(types_pond), "--json"]).stdout
    for table in map(json.loads, listed.splitlines()):
        for word in (table["table"], *(column["name"] for column in table["columns"])):
            assert re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", shown), word


def _on_a_terminal(words: list[str], home: Path, *, columns: int = 100) -> str:
    """What a command writes to a terminal, without escape sequences for colours."""
    master, slave = pty.openpty()
    environment = {**os.environ, "MILLPOND_HOME": str(home), "TERM": "xterm", "COLUMNS": str(columns)}
    with started([sys.executable, "-m", "millpond.cli", *words], stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        out = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed: Linux says EIO
                break
            if not part:
                break
            out += part
        assert process.wait(30) == 0
    os.close(master)
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", out.decode("utf-8", "replace"))


def test_a_reader_that_goes_away_is_no_error(types_pond: Path, door_home: Path) -> None:
    command = f"{sys.executable} -m millpond.cli scan {types_pond} string --json | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "MILLPOND_HOME": str(door_home)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n"
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["scan", "{pond}", "long"], ["tables", "{pond}"], ["inspect", "{pond}", "--json"], ["--help"]], ids=str
)
def test_output_that_cant_be_written_is_an_error_of_its_own(words: list[str], types_pond: Path, door_home: Path) -> None:
    """A full disk under a redirection isn't reported as Millpond's own mistake."""
    command = [sys.executable, "-m", "millpond.cli", *(word.format(pond=types_pond) for word in words)]
    environment = {**os.environ, "MILLPOND_HOME": str(door_home)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    line = done.stderr.splitlines()[-1]
    assert "NOT_WRITABLE" in line
    assert "The output can't be written: No space left on device." in line
    assert done.returncode == CONDITIONS["NOT_WRITABLE"].exit_code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_no_other_file(closed: str, types_pond: Path, tmp_path: Path) -> None:
    """Otherwise the next file opened gets the closed stream's number, and the output of that stream goes into it."""
    command = f"{sys.executable} -m millpond.cli scan {types_pond} string --replica-dir {tmp_path / 'home'} {closed}"
    assert subprocess.run(["bash", "-c", command], timeout=60).returncode == 0
    done = subprocess.run(["bash", "-c", command.removesuffix(closed)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 5


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "condition"),
    [
        (["get", "lung", "k=1"], "UNKNOWN_TABLE"),
        (["get", "long", "hits=1"], "UNKNOWN_COLUMN"),
        (["get", "long", "n=1", "k=1"], "NOT_A_KEY_COLUMN"),
        (["get", "long"], "KEY_MISSING"),
        (["get", "long", "k=x"], "WRONG_TYPE"),
        (["get", "long", "k=1", "k=2"], "INVALID_REQUEST"),
        (["get", "long", "k"], "INVALID_REQUEST"),
        (["get", "long", "--key", "{"], "INVALID_REQUEST"),
        (["get", "long", "--key", "[1]"], "INVALID_REQUEST"),
        (["get", "long", "k=1", "--key", '{"k": 1}'], "INVALID_REQUEST"),
        (["changes", "long", "--follow", "--batch", "1"], "INVALID_REQUEST"),
        (["changes", "long", "--follow", "--time", "2026-01-01T00:00:00Z"], "INVALID_REQUEST"),
        (["get", "long", "k=1", "--nonsense"], "INVALID_REQUEST"),
        (["get"], "INVALID_REQUEST"),
        (["scan", "long", "--limit", "0"], "INVALID_LIMIT"),
        (["scan", "long", "--limit", "many"], "INVALID_REQUEST"),
        (["scan", "long", "n=2"], "NOT_A_KEY_COLUMN"),
        (["nonsense"], "INVALID_REQUEST"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_line_with_a_hint(words: list[str], condition: str, run: Run) -> None:
    assert error_of(run(*words)) == condition


def test_an_error_is_json_where_json_is_wanted(run: Run) -> None:
    done = run("get", "long", "k=x", "--json")
    error = json.loads(done.stderr)["error"]
    assert (done.exit_code, error["condition"], error["context"]["column"]) == (2, "WRONG_TYPE", "k")


def test_a_folder_that_holds_nothing_is_named(run: Run, tmp_path: Path) -> None:
    assert error_of(run("tables", folder=tmp_path)) == "NO_CHECKPOINT"
    assert error_of(run("get", "long", "k=1", folder=tmp_path / "nothing")) == "NO_CHECKPOINT"


@pytest.mark.long
def test_a_replica_folder_that_cant_be_written_is_named(run: Run, tmp_path: Path) -> None:
    # A pond of one job: with many, each waits for its own follower.
    pond, file = tmp_path / "pond", tmp_path / "file"
    shutil.copytree(GOLDEN / "types" / "jobs" / "long", pond / "jobs" / "long")
    shutil.copy(GOLDEN / "types" / "pond.json", pond)
    file.write_text("")
    assert error_of(run("get", "long", "k=1", "--replica-dir", str(file / "below"), folder=pond)) == "REPLICA_NOT_WRITABLE"


def test_damaged_data_ends_with_its_own_code(run: Run, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    shutil.copytree(GOLDEN / "types", pond)
    changes = pond / "jobs" / "long" / "checkpoint" / "state" / "0" / "0" / "2.delta"
    changes.write_bytes(changes.read_bytes()[:-10])
    assert run("get", "long", "k=1", folder=pond).exit_code == 5


# ---------------------------------------------------------------- help


def test_help_needs_no_pond_and_lists_every_command() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    assert all(command in done.stdout for command in COMMANDS)
    assert "Exit codes" in done.stdout
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("millpond ")
    for words in ([], ["-h"]):
        again = CliRunner().invoke(main, words)
        assert (again.exit_code, again.stdout, again.stderr) == (0, done.stdout, "")


def test_a_command_that_is_mistyped_is_suggested() -> None:
    done = CliRunner().invoke(main, ["tabels", "./pond"])
    assert error_of(done) == "INVALID_REQUEST"
    assert "Did you mean: millpond tables?" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples(name: str) -> None:
    done = CliRunner().invoke(main, [name, "--help"])
    assert done.exit_code == 0
    again = CliRunner().invoke(main, [name, "-h"])
    assert (again.exit_code, again.exception, again.stderr, again.stdout) == (0, None, "", done.stdout)
    assert CliRunner().invoke(main.named(name), ["-h"]).exit_code == 0
    wide = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert wide == [], "help fits a terminal of 80 columns"
    assert "Examples:" in done.stdout
    assert f"millpond {name} " in done.stdout or f"millpond {name}\n" in done.stdout


def test_a_reader_never_loads_pyspark(types_pond: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['py4j'] = None\nfrom millpond.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, "get", str(types_pond), "long", "k__isnull=1", "--json"]
    done = subprocess.run(command, env={**os.environ, "MILLPOND_HOME": str(tmp_path)}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 2
