"""Replaces the files of one kind, in one way after the other, and reads the pond; `test_attacked_files` runs it.

    python tests/trust/attack.py FOLDER KIND

It writes one JSON object for each way: the result for the attacked job, whether the other job answered, the time that took, and
the peak memory so far.  It is a process of its own, because it must end and stay small.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millpond
from millpond.catalogue import JobFolder, create_job, read_catalogue
from millpond.errors import MillpondError
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.definition.table import parse_definition
from millpond.schema.types import atomic
from millpond.tables.cold.report import inspect_job
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import GOLDEN

SECRET = "root:the-secret-of-another-file"
HUGE_BYTES = 1 << 30

# Kind of file -> the golden job, and which of its files to replace, below the job's folder.
KINDS = {
    "job.json": ("counts-hdfs", r"job\.json"),
    "heartbeat": ("counts-hdfs", r"heartbeat\.json"),
    "hot keys": ("counts-hdfs", r"hot_keys\.json"),
    "definition": ("counts-hdfs", r"tables/counts\.json"),
    "metadata": ("counts-hdfs", r"checkpoint/metadata"),
    "offsets": ("counts-hdfs", r"checkpoint/offsets/\d+"),
    "commits": ("counts-hdfs", r"checkpoint/commits/\d+"),
    "source log": ("counts-hdfs", r"checkpoint/sources/0/.*"),
    "operator metadata": ("counts-hdfs", r"checkpoint/state/0/_metadata/metadata"),
    "schema": ("counts-hdfs", r"checkpoint/state/0/0/_metadata/schema"),
    "schema of version 3": ("spark-4.3/transform-state-rocksdb-changelog", r"checkpoint/state/0/_stateSchema/.*"),
    "delta": ("counts-hdfs", r"checkpoint/state/0/\d+/\d+\.(delta|snapshot)"),
    "snapshot": ("counts-hdfs", r"checkpoint/state/0/\d+/\d+\.snapshot"),
    "zstd delta": ("counts-hdfs-zstd", r"checkpoint/state/0/\d+/\d+\.(delta|snapshot)"),
    "snappy delta": ("counts-hdfs-snappy", r"checkpoint/state/0/\d+/\d+\.(delta|snapshot)"),
    "lzf delta": ("counts-hdfs-lzf", r"checkpoint/state/0/\d+/\d+\.(delta|snapshot)"),
    "changelog": ("counts-rocksdb-changelog", r"checkpoint/state/0/\d+/\d+\.changelog"),
    "changelog with ids": ("counts-rocksdb-format2", r"checkpoint/state/0/\d+/\d+_[^/]+\.changelog"),
    "zip": ("counts-rocksdb-snapshots", r"checkpoint/state/0/\d+/\d+\.zip"),
    "sst": ("counts-rocksdb-snapshots", r"checkpoint/state/0/\d+/SSTs/.*\.sst"),
}
# Folders to replace by a link to a folder outside, or by a file.
FOLDERS = {
    "job": ("counts-hdfs", ""),
    "tables": ("counts-hdfs", "tables"),
    "checkpoint": ("counts-hdfs", "checkpoint"),
    "offsets folder": ("counts-hdfs", "checkpoint/offsets"),
    "commits folder": ("counts-hdfs", "checkpoint/commits"),
    "state folder": ("counts-hdfs", "checkpoint/state"),
    "partition folder": ("counts-hdfs", "checkpoint/state/0/1"),
    "SSTs": ("counts-rocksdb-snapshots", "checkpoint/state/0/1/SSTs"),
}

Way = Callable[[Path, bytes, Path], None]


def fifo(path: Path, _whole: bytes, _outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, _whole: bytes, _outside: Path) -> None:
    path.mkdir()


def sparse(path: Path, _whole: bytes, _outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


def sparse_behind_its_content(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole)
    os.truncate(path, HUGE_BYTES)


def link_out(path: Path, _whole: bytes, outside: Path) -> None:
    path.symlink_to(outside / "secret")


def link_to_a_copy_outside(path: Path, whole: bytes, outside: Path) -> None:
    (outside / "copy").write_bytes(whole)
    path.symlink_to(outside / "copy")


def relative_link_out(path: Path, _whole: bytes, outside: Path) -> None:
    path.symlink_to(os.path.relpath(outside / "secret", path.parent))


def link_loop(path: Path, _whole: bytes, _outside: Path) -> None:
    path.symlink_to(path.name)


def link_to_a_device(path: Path, _whole: bytes, _outside: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_a_process(path: Path, _whole: bytes, _outside: Path) -> None:
    path.symlink_to("/proc/self/environ")


def device(path: Path, _whole: bytes, _outside: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


def unreadable(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole)
    path.chmod(0)


def nul_bytes(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(bytes(len(whole)))


def nul_inside(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole[: len(whole) // 2] + b"\0" + whole[len(whole) // 2 :])


def no_utf_8(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole.replace(b'"', b'"\xff', 1) if b'"' in whole else b"\xff" + whole)


def nested(path: Path, whole: bytes, _outside: Path) -> None:
    begin = max(whole.find(b"{"), 0)
    path.write_bytes(whole[:begin] + b"[" * 10_000)


def twice(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(re.sub(rb'("[^"]+"\s*:)', rb"\1 null, \1", whole, count=1))


def huge_number(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole.replace(b"{", b'{"zz": 1' + b"0" * 400 + b",", 1))


def huge_fraction(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole.replace(b"{", b'{"zz": 1e999,', 1))


def not_a_number(path: Path, whole: bytes, _outside: Path) -> None:
    path.write_bytes(whole.replace(b"{", b'{"zz": NaN,', 1))


ANY: tuple[Way, ...] = (
    fifo, folder, sparse, sparse_behind_its_content, link_out, link_to_a_copy_outside, relative_link_out, link_loop,
    link_to_a_device, link_to_a_process, device, unreadable, nul_bytes,
)  # fmt: skip
JSON: tuple[Way, ...] = (nul_inside, no_utf_8, nested, twice, huge_number, huge_fraction, not_a_number)
# Binary files: other tests damage what is inside.
TEXT = {"job.json", "heartbeat", "hot keys", "definition", "metadata", "offsets", "commits", "source log", "operator metadata"}


def ways_of(kind: str) -> tuple[Way, ...]:
    """The ways to attack files of a kind."""
    if kind in FOLDERS:
        return (link_out, link_to_a_copy_outside, link_loop, fifo)
    return ANY + JSON if kind in TEXT else ANY


def make_pond(root: Path, golden: str) -> tuple[Path, Path]:
    """Make a pond of two jobs, `good` and the attacked one; returns the folder of the latter."""
    pond = root / "pond"
    good = WrittenCheckpoint(pond / "jobs/good/checkpoint")
    good.plan([("a", 1), ("bb", 2)], snapshot=False)
    good.commit()
    create_job(pond, "good")
    shutil.copytree(GOLDEN / golden / "checkpoint", pond / "jobs/counts/checkpoint")
    folder = create_job(pond, "counts")
    if (GOLDEN / golden / "definition.json").exists():
        folder.write_definition(parse_definition(json.loads((GOLDEN / golden / "definition.json").read_text())))
    folder.write_heartbeat("running")
    folder.write_hot_keys([HotKey(1, {"k": "a"}, 0.5, 0)], {"k": atomic("string")})
    return pond, pond / "jobs/counts"


def without_newest_snapshot(job: Path) -> None:
    """Remove the newest snapshot: reads begin with an older one, and go on with change logs."""
    for folder in (job / "checkpoint/state/0").glob("[0-9]"):
        *_, newest = sorted(folder.glob("*.zip"), key=lambda p: int(re.match(r"\d+", p.name)[0]))  # type: ignore[index]
        newest.unlink()


def read_all(pond: Path, wait_seconds: float = 5) -> dict[str, Any]:
    """Every reader of the pond: its answer for the attacked job, and whether the other job answers."""
    said: list[str] = []

    def note(read: Callable[[], Any]) -> None:
        try:
            read()
        except MillpondError as error:
            said.append(f"{error} {error.context}")

    began, first = time.monotonic(), 0.0
    with millpond.open(pond, replica_dir="memory://", wait_seconds=wait_seconds) as opened:
        rows = [dict(row) for row in opened.wait_for_table("good.aggregate_0", 60).scan(bounds=millpond.Bounds(wait_seconds=60))]
        first = time.monotonic() - began
        names = [name for name in opened.tables() if not name.startswith("good.")]
        for name in names or ["counts"]:
            note(lambda name=name: opened[name].scan())
        statistics = opened.statistics()
        mine = statistics.get("counts", {})  # only folders are jobs
        said.append(json.dumps(mine, default=str))
        state = mine.get("job_state")
        assert "good" in statistics
        ready = opened.ready()[0]
    found = read_catalogue(pond)
    said += map(str, found.broken.values())

    def inspect(job: JobFolder) -> None:
        said.append(repr(inspect_job(job, checksums=True)))

    for job in found.jobs:
        if job.job != "good":
            note(lambda job=job: inspect(job))
    for name in names or ["counts"]:
        note(lambda name=name: millpond.read_arrow(pond, name))
        note(lambda name=name: millpond.read_row(pond, name, {"page": "a"}))
    note(lambda: list(opened_source(pond)))
    whole = millpond.read_arrow(pond, "good.aggregate_0").num_rows
    return {
        "good": rows == [{"k": "a", "v": 1}, {"k": "bb", "v": 2}] and whole == 2,
        "good_seconds": first,
        "all_seconds": time.monotonic() - began,
        "said": said,
        "state": state,
        "ready": ready,
        "secret": any(SECRET in text for text in said),
    }


def opened_source(pond: Path) -> list[Any]:
    """Read the file source's log as a bound does."""
    from millpond.checkpoint.source_files import find_file

    for job in read_catalogue(pond).jobs:
        if job.job == "counts":
            find_file(job.open_checkpoint(), "0", lambda _path: False, upto=10**9)
    return []


def main() -> None:
    root, kind = Path(sys.argv[1]), sys.argv[2]
    golden, pattern = {**KINDS, **FOLDERS}[kind]
    pond, job = make_pond(root, golden)
    if kind.startswith("changelog"):
        without_newest_snapshot(job)
    outside = root / "outside"
    outside.mkdir()
    before = read_all(pond, 60)
    print(json.dumps({"way": "none", "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, **before}), flush=True)
    for way in ways_of(kind):
        if way is unreadable and os.geteuid() == 0:
            continue  # root can read everything
        shutil.rmtree(outside)
        outside.mkdir()
        kept = root / "kept"
        shutil.copytree(job, kept)
        try:
            if kind in FOLDERS:
                attack_folder(way, job / pattern, outside)
            else:
                (outside / "secret").write_text(f"{SECRET}\nv1\n")
                for path in sorted(p for p in job.rglob("*") if p.is_file() and re.fullmatch(pattern, str(p.relative_to(job)))):
                    whole = path.read_bytes()
                    path.unlink()
                    way(path, whole, outside)
            facts = read_all(pond)
            print(json.dumps({"way": way.__name__, "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, **facts}), flush=True)
        except PermissionError as refused:
            if way is not device:
                raise
            print(f"no device could be made: {refused}", file=sys.stderr)
        finally:
            if job.is_symlink() or not job.is_dir():
                job.unlink()
            shutil.rmtree(job, ignore_errors=True)
            shutil.move(kept, job)


def attack_folder(way: Way, path: Path, outside: Path) -> None:
    """The same for a folder: a link leads to a folder outside, with secrets or with the same files."""
    if way is link_to_a_copy_outside:
        shutil.copytree(path, outside / "copy")
        shutil.rmtree(path)
        path.symlink_to(outside / "copy")
        return
    shutil.rmtree(path)
    (outside / "secret").mkdir()
    for name in ("0", "11", "metadata", "counts.json", "job.json", "12.delta"):
        (outside / "secret" / name).write_text(f"{SECRET}\n")
    way(path, b"", outside)


if __name__ == "__main__":
    main()
