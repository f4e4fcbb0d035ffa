"""`millpond savepoint` as a person uses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import millpond
from millpond.catalogue import create_job
from millpond.cli import main
from millpond.ownership.lease import take_lease
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint


@pytest.fixture
def run(golden: Callable) -> Callable[..., Result]:
    """A command about the savepoints of one job; `PLACE` stands for its checkpoint."""
    place = str(golden("windows-rocksdb-changelog").checkpoint)
    return lambda *words: CliRunner().invoke(main, ["savepoint", *(place if word == "PLACE" else word for word in words)])


def test_from_making_to_deleting(run: Callable[..., Result], tmp_path: Path) -> None:
    made = run("create", "PLACE", "--name", "one", "--note", "before\x1b[31m")
    assert made.exit_code == 0
    assert "batch       11" in made.stdout
    assert "\x1b" not in made.stdout
    assert run("list", "PLACE").stdout.splitlines()[1].split("\t")[0] == "one"
    (listed,) = map(json.loads, run("list", "PLACE", "--json").stdout.splitlines())
    assert (listed["name"], listed["batch"], listed["note"]) == ("one", 11, "before\x1b[31m")
    shown = json.loads(run("show", "PLACE", "one", "--json").stdout)
    assert sum(partition["rows"] for partition in shown["partitions"]) == listed["rows"]
    assert run("verify", "PLACE", "one").stdout.startswith("one: ")
    restored = run("restore", "PLACE", "one", "--to", str(tmp_path / "restored"))
    assert restored.stdout == f"file://{tmp_path}/restored\n"
    assert "TARGET_NOT_EMPTY" in run("restore", "PLACE", "one", "--to", str(tmp_path / "restored")).stderr
    assert CliRunner().invoke(main, ["savepoint", "create", str(tmp_path / "restored"), "--name", "next"]).exit_code == 0
    assert run("export", "PLACE", "one", "--to", str(tmp_path / "one.tar")).exit_code == 0
    assert run("import", "PLACE", str(tmp_path / "one.tar"), "--name", "two").exit_code == 0
    assert "  " + "two" not in run("tree", "PLACE").stdout
    pruned = run("prune", "PLACE", "--keep-last", "1")
    assert (pruned.exit_code, pruned.stderr.count("delete ")) == (0, 1)
    assert "INVALID_REQUEST" in run("prune", "PLACE").stderr
    assert run("delete", "PLACE", "one").exit_code == 0
    assert "one" in run("list", "PLACE").stdout
    assert run("delete", "PLACE", "one", "--yes").exit_code == 0
    assert [line.split("\t")[0] for line in run("list", "PLACE").stdout.splitlines()] == ["name", "two"]


def test_a_state_is_restored_in_another_form(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("create", "PLACE", "--name", "one").exit_code == 0
    words = ("--partitions", "5", "--provider", "hdfs", "--codec", "zstd", "--row-checksum")
    restored = run("restore", "PLACE", "one", "--to", str(tmp_path / "restored"), *words)
    assert "state       5 partitions, provider hdfs, codec zstd, row checksums" in restored.stderr
    assert restored.stdout == f"file://{tmp_path}/restored\n"
    settings = CliRunner().invoke(main, ["inspect", str(tmp_path / "restored")]).stdout
    assert "provider hdfs, codec zstd, 5 partitions, encoding unsaferow, row checksums, checkpoint format 1" in settings
    two = run("restore", "PLACE", "one", "--to", str(tmp_path / "two"), "--format", "2")
    assert "state       checkpoint format 2" in two.stderr
    assert "checkpoint format 2" in CliRunner().invoke(main, ["inspect", str(tmp_path / "two")]).stdout
    refused = run("restore", "PLACE", "one", "--to", str(tmp_path / "no"), "--provider", "hdfs", "--format", "2")
    assert (refused.exit_code, "UNSUPPORTED" in refused.stderr) == (5, True)
    assert not (tmp_path / "no").exists()


def test_the_tree_shows_which_savepoint_followed_which(golden: Callable, tmp_path: Path) -> None:
    """By the job, whether or not files are shared, and across a fork; an imported one has no forebears here."""
    pond = tmp_path / "pond"
    create_job(pond, "counts")
    shutil.copytree(golden("counts-hdfs").checkpoint, pond / "jobs/counts/checkpoint", dirs_exist_ok=True)

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    for name in ("one", "two"):
        run("savepoint", "create", str(pond), "--name", name)
    run("fork", str(pond), "counts", "--from", "one", "--as", "other")
    run("savepoint", "create", str(pond), "other", "--name", "three")
    run("savepoint", "create", str(pond), "other", "--name", "four")
    run("savepoint", "create", str(pond), "counts", "--name", "five")
    batch = json.loads(run("savepoint", "show", str(pond), "one", "--json"))["batch"]
    lines = [line.split("  batch ")[0] for line in run("savepoint", "tree", str(pond)).splitlines()]
    assert lines == ["one", "  two", "    five", "  three", "    four"]
    assert f"  three  batch {batch} of other, of a job restored from it\n" in run("savepoint", "tree", str(pond))
    facts = {f["name"]: f for f in map(json.loads, run("savepoint", "list", str(pond), "--json").splitlines())}
    assert {name: (f["parent"], f["shares_with"]) for name, f in facts.items()} == {
        "one": (None, None),
        "two": ("one", None),  # of this provider no file is final under its name
        "three": (None, None),
        "four": ("three", None),
        "five": ("two", None),
    }
    run("savepoint", "export", str(pond), "five", "--to", str(tmp_path / "five.tar"))
    elsewhere = tmp_path / "elsewhere"
    create_job(elsewhere, "counts")
    shutil.copytree(golden("windows-hdfs").checkpoint, elsewhere / "jobs/counts/checkpoint", dirs_exist_ok=True)
    run("savepoint", "create", str(elsewhere), "--name", "two")
    run("savepoint", "import", str(elsewhere), str(tmp_path / "five.tar"))
    assert all(not line.startswith(" ") for line in run("savepoint", "tree", str(elsewhere)).splitlines())


def test_a_checkpoint_outside_of_the_pond_needs_leave(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    pond = tmp_path / "pond"
    create_job(pond, "counts", str(checkpoint))
    (pond / "jobs/counts/job.json").chmod(0o666)  # anybody could have named the place
    words = ["savepoint", "create", str(pond), "--name", "one"]
    refused = CliRunner().invoke(main, words)
    assert (refused.exit_code, "PLACE_NOT_ALLOWED" in refused.stderr) == (6, True)
    assert not (pond / "savepoints").exists()
    assert CliRunner().invoke(main, [*words, "--allow", str(checkpoint)]).exit_code == 0
    verified = CliRunner().invoke(main, ["savepoint", "verify", str(pond), "one"])
    assert verified.exit_code == 0


def test_each_mistake_is_one_line_with_its_exit_code(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("create", "PLACE", "--name", "one").exit_code == 0
    for words, condition, code in (
        (("create", "PLACE", "--name", "one"), "SAVEPOINT_EXISTS", 2),
        (("create", "PLACE", "--name", "a/b"), "INVALID_NAME", 2),
        (("create", "PLACE", "other", "--name", "x"), "INVALID_REQUEST", 2),
        (("create", "PLACE", "--name", "x", "--batch", "99"), "BATCH_GONE", 4),
        (("create", "http://localhost:1", "--name", "x"), "INVALID_REQUEST", 2),
        (("create", str(tmp_path), "--name", "x"), "NO_CHECKPOINT", 3),
        (("show", "PLACE", "x"), "UNKNOWN_SAVEPOINT", 3),
        (("verify", "PLACE", "x"), "UNKNOWN_SAVEPOINT", 3),
        (("restore", "PLACE", "x", "--to", str(tmp_path / "y")), "UNKNOWN_SAVEPOINT", 3),
        (("import", "PLACE", str(tmp_path / "y.tar")), "FILE_MISSING", 3),
        (("export", "PLACE", "one", "--to", str(tmp_path / "no/such/folder.tar")), "NOT_WRITABLE", 6),
    ):
        done = run(*words)
        assert (done.exit_code, done.stderr.count("\n")) == (code, 1), (words, done.stderr)
        assert condition in done.stderr
        assert done.stdout == ""
    (file,) = (path for path in tmp_path.rglob("savepoints/one/checkpoint/commits/*"))
    file.write_text(file.read_text() + " ")
    done = run("verify", "PLACE", "one")
    assert done.exit_code == 5
    assert "checkpoint/commits/11: [SAVEPOINT_DAMAGED]" in done.stdout


def test_a_job_is_rescaled_and_rolled_back_only_with_yes(tmp_path: Path) -> None:
    """First the plan is shown; a job that runs is named, and taken from its owner on demand."""

    def call(*words: str) -> Result:
        return CliRunner().invoke(main, [*words])

    pond = str(tmp_path / "pond")
    job = WrittenCheckpoint(Path(create_job(pond, "counts").checkpoint.removeprefix("file://")))
    for batch in range(3):
        job.plan([(("a",), batch), ((f"k{batch}",), batch)], snapshot=False)
        job.commit()
    assert call("savepoint", "create", pond, "--name", "third").exit_code == 0
    shown = call("rescale", pond, "--partitions", "3")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "from 2 to 3 partitions" in shown.stderr
    assert "--yes does it" in shown.stderr
    done = call("rescale", pond, "counts", "--partitions", "3", "--yes")
    assert done.stdout == f"file://{job.path}\n"
    assert "4 rows in 3 partitions" in done.stderr
    assert "checkpoint.before-rescale-" in done.stderr
    lease = take_lease(open_storage(job.path.parent), "the job counts")
    back = ("rollback", pond, "--to", "third", "--no-file-sink", "--yes")
    assert "CHECKPOINT_IN_USE" in call(*back).stderr
    assert "--take-over" in call(*back).stderr
    done = call(*back, "--take-over")
    assert done.stdout == f"file://{job.path}\n"
    assert "checkpoint.before-rollback-" in done.stderr
    lease.release()
    assert millpond.read_arrow(pond, "counts.aggregate_0").num_rows == 4
