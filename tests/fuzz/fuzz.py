"""Damages files of golden checkpoints and reads them: each read gives the right answer, or a typed error that names file and byte.

    python tests/fuzz/fuzz.py --mutations 20000 --seed 1        all of it
    python tests/fuzz/fuzz.py --seed 1 --only 4711              one mutation again, with its traceback
    python tests/fuzz/fuzz.py --sanitized …                     the compiled library under AddressSanitizer and UBSan: needs gcc
    python tests/fuzz/fuzz.py --first 50000 --result FILE …     go on at that number, and add the result to a JSON file

1. A child process with bounded memory copies the golden checkpoints.  A mutation depends only on the seed and its number.
2. For each mutation, the child damages one file, reads it under a time limit, and restores it.
3. It compares the answer with that of the undamaged file.  If a checksum covers the damage, a different answer is a failure.
   If none does, the answer must have the records of the damaged bytes (`expected.py`).  Reads that use the compiled library are
   repeated without it, and must give the same, down to the byte in an error.
4. If the child dies (a library crashed, or memory ran out), that mutation is a failure, and a new child goes on after it.

Exits with 1 after any failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from expected import check_position, check_records
from mutations import JSON_MUTATIONS, MUTATIONS, Mutate, inside, inside_schema
from targets import OURS, TARGETS, Cell, Target, copy_cells, files_of, sample_rows

import millpond
from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import CONDITIONS, MillpondError
from millpond.native.library import library, small_too, switched_off

ROOT = Path(__file__).parents[2]
MEMORY_BYTES = 3 << 30
SECONDS_EACH = 10
# Rows are also damaged apart from their files, because a file's checksum guards its rows.
ROW_SHARE = 0.1
_NAMED = frozenset({"CORRUPT_FILE", "INCOMPLETE_FILE"})


class Failure(AssertionError):
    """The outcome was neither an error of Millpond's nor a right answer."""


@dataclass(frozen=True)
class Damage:
    """One mutated file: its bytes before and after, and whether they were packed again, with right checksums."""

    whole: bytes
    damaged: bytes
    is_inside: bool


def digest(found: Any) -> bytes:
    """A digest of an answer, to compare it with others."""
    return hashlib.blake2b(repr(found).encode("utf-8", "surrogatepass")).digest()


class Fuzzer:
    """The files to damage, and one mutation after the other."""

    def __init__(self, seed: int, scratch: Path) -> None:
        self._seed = seed
        cells = copy_cells(scratch)
        self._rows = sample_rows(cells)
        found = [(target, [(cell, path) for cell in cells for path in files_of(cell, target)]) for target in TARGETS]
        self._targets = [(target, files) for target, files in found if files]
        self._right: dict[tuple[str, Path], bytes] = {}
        self.ended: Counter[str] = Counter()

    def run(self, number: int) -> str:
        """Run one mutation; returns a description.  Raises any failure."""
        random = Random(f"{self._seed}/{number}")
        if random.random() < ROW_SHARE:
            return self._row(random)
        # Alternate between the compiled library and Python.
        with small_too() if number % 2 else switched_off():
            return self._file(random)

    def _file(self, random: Random) -> str:
        target, files = random.choices(self._targets, [t.weight for t, _ in self._targets])[0]
        cell, path = random.choice(files)
        mutate = random.choice(JSON_MUTATIONS if target.json and random.random() < 0.7 else MUTATIONS)
        if target.kind == "schema" and random.random() < 0.5:
            mutate = inside_schema(random.choice(JSON_MUTATIONS))
        packed = target.packed and random.random() < 0.6
        whole = path.read_bytes()
        what = f"{target.kind}: {mutate.__name__}{' inside' if packed else ''} of {path}"
        if (target.kind, path) not in self._right:
            right, error = self._outcome(cell, target, path, "nothing")
            assert error is None or target.kind == "open", f"{path} is whole: {error}"
            self._right[target.kind, path] = digest(right)
        damage: Mutate = inside(cell.codec, mutate) if packed else mutate
        damaged = damage(whole, random)
        path.write_bytes(damaged)
        try:
            self._read(cell, target, path, Damage(whole, damaged, packed), what)
        finally:
            path.write_bytes(whole)
        return what

    def _read(self, cell: Cell, target: Target, path: Path, damage: Damage, what: str) -> None:
        found, error = self._outcome(cell, target, path, what)
        if target.compiled and library() is not None:
            with switched_off():
                other, other_error = self._outcome(cell, target, path, what)
            if (digest(found), str(error)) != (digest(other), str(other_error)):
                raise Failure(f"{what}: compiled {error or 'an answer'}, and in Python {other_error or 'another one'}")
        if error is not None:
            # Rows of another schema count as damage of their file.
            rows_named = target.kind == "schema" and "state/" in error.message
            self._judge(error, path if target.names and not rows_named else None, what)
            if target.binary and not rows_named and error.condition in _NAMED:
                try:
                    check_position(error, cell, damage.whole, damage.damaged, inside=damage.is_inside)
                except AssertionError as wrong:
                    raise Failure(f"{what}: {wrong}: {error}") from error
            return
        same = digest(found) == self._right[target.kind, path]
        self.ended[f"{target.kind}: {'the same' if same else 'another'} answer"] += 1
        guarded = target.checked or (target.packed and cell.codec == "lz4" and not damage.is_inside)
        if not same and guarded:
            raise Failure(f"{what}: a checksum covers it, and the answer is another one")
        if damage.is_inside and target.kind in ("delta", "snapshot"):
            try:
                check_records(found, decompress(cell.codec, damage.damaged), is_whole=target.kind == "snapshot")
            except AssertionError as wrong:
                raise Failure(f"{what}: {wrong}") from None

    def _outcome(self, cell: Cell, target: Target, path: Path, what: str) -> tuple[Any, MillpondError | None]:
        try:
            return target.read(cell, str(path)), None
        except MillpondError as error:
            return None, error
        except Exception as error:
            raise Failure(f"{what}: {type(error).__name__}: {error}") from error

    def _row(self, random: Random) -> str:
        fields, row = random.choice(self._rows)
        mutate = random.choice(MUTATIONS)
        what = f"row: {mutate.__name__} of {[str(f.type) for f in fields]}"
        damaged = mutate(row, random)
        try:
            decoder(fields)(damaged)
            self.ended["row: answer"] += 1
        except MillpondError as error:
            self._judge(error, None, what)
        except Exception as error:
            raise Failure(f"{what}: {type(error).__name__} from {damaged.hex()}") from error
        return what

    def _judge(self, error: MillpondError, path: Path | None, what: str) -> None:
        self.ended[f"{what.split(':')[0]}: {error.condition}"] += 1
        if error.condition in OURS or error.condition not in CONDITIONS:
            raise Failure(f"{what}: {error}") from error
        # Rows are decoded after their file was read; an error in a file of RocksDB names the snapshot.
        named = path is None or path.name in str(error) or path.parent.name == "SSTs" or error.message.startswith("A row of")
        if not named and error.condition in _NAMED:
            raise Failure(f"{what}: the error doesn't name the file: {error}") from error


def child(seed: int, begin: int, end: int, mark: Path) -> None:
    """Run mutations `begin` to `end` in this process.  The mark has the number of the running one, and at last all counts."""
    faulthandler.enable()
    if "ASAN_OPTIONS" in os.environ:
        assert library() is not None  # a sanitizer limits memory itself, and reserves all addresses at the start
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _too_long)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="millpond-fuzz-") as scratch, mark.open("w") as marked:
        fuzzer = Fuzzer(seed, Path(scratch))
        for number in range(begin, end):
            marked.seek(0)
            marked.write(f"{number:12}")
            marked.flush()
            signal.setitimer(signal.ITIMER_REAL, SECONDS_EACH)
            try:
                fuzzer.run(number)
            except Exception as failure:  # noqa: BLE001 - every failure is reported, and the next one tried
                failed += 1
                print(f"FAILED seed {seed}, mutation {number}: {failure}", flush=True)
                if failed <= 20 or end - begin == 1:
                    traceback.print_exception(failure, limit=-6, file=sys.stdout)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    mark.write_text(json.dumps({"failed": failed, "ended": fuzzer.ended}))
    sys.exit(1 if failed else 0)


def sanitized(scratch: Path) -> dict[str, str]:
    """Build a copy of the package whose library checks each of its steps; returns the environment that uses it."""
    scratch.mkdir()
    shutil.copytree(ROOT / "src", scratch / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "hatch_build.py", scratch)
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([sys.executable, str(scratch / "hatch_build.py"), *flags], check=True, env={**os.environ, "CC": "gcc"})
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    return {
        **os.environ,
        "PYTHONPATH": str(scratch / "src"),
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:hard_rss_limit_mb={MEMORY_BYTES >> 20}",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def kinds_of(ended: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """For each kind of file: the number of mutations, and their share."""
    kinds = Counter[str]()
    for how, count in ended.items():
        kinds[how.split(":")[0]] += count
    return {kind: {"mutations": count, "share": round(count / kinds.total(), 4)} for kind, count in sorted(kinds.items())}


def show(ended: Mapping[str, int]) -> str:
    """Print count and share of each kind, with its outcomes."""
    lines = []
    for kind, facts in kinds_of(ended).items():
        ends = ", ".join(f"{how.split(': ')[1]} {count}" for how, count in sorted(ended.items()) if how.split(":")[0] == kind)
        lines.append(f"{facts['mutations']:8} {facts['share']:6.1%} {kind}: {ends}")
    return "\n".join(lines)


def _too_long(*_: object) -> None:
    raise Failure(f"it took longer than {SECONDS_EACH} seconds")


def add_result(path: Path, run: dict[str, Any]) -> None:
    """Append a run to the result file."""
    runs = [*(json.loads(path.read_text())["runs"] if path.exists() else []), run]
    total = {"mutations": sum(r["mutations"] for r in runs), "failed": sum(r["failed"] for r in runs)}
    path.write_text(json.dumps({**total, "runs": runs}, indent=1) + "\n")


def main() -> None:
    """Run children one after the other, until every mutation was tried."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    words.add_argument("--mutations", type=int, default=20_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--first", type=int, default=0, help="the number of the first mutation")
    words.add_argument("--only", type=int, help="run this mutation alone")
    words.add_argument("--sanitized", action="store_true", help="the compiled library under AddressSanitizer and UBSan")
    words.add_argument("--result", type=Path, help="a JSON file to which the run is added")
    words.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.child:
        child(asked.seed, int(asked.child[0]), int(asked.child[1]), Path(asked.child[2]))
    first, mutations = (asked.first, asked.mutations) if asked.only is None else (asked.only, 1)
    begin, end = first, first + mutations
    began, load_before, failed, ended = time.monotonic(), os.getloadavg()[0], 0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="millpond-fuzz-") as scratch:
        mark = Path(scratch) / "mark"
        environment = sanitized(Path(scratch) / "sanitized") if asked.sanitized else dict(os.environ)
        while begin < end:
            command = [sys.executable, __file__, "--seed", str(asked.seed), "--child", str(begin), str(end), str(mark)]
            done = subprocess.run(command, check=False, env=environment)
            said = mark.read_text() if mark.exists() else ""
            if said.startswith("{"):
                failed += json.loads(said)["failed"]
                ended.update(json.loads(said)["ended"])
                break
            # The child died, and its counts are lost.
            failed += 1
            begin = int(said) + 1 if said else end
            mark.unlink(missing_ok=True)
            print(f"FAILED seed {asked.seed}, mutation {begin - 1}: the process ended with {done.returncode}", flush=True)
    seconds = time.monotonic() - began
    print(show(ended))
    print(f"{mutations} mutations, seed {asked.seed}: {f'{failed} FAILED' if failed else 'ok'} in {seconds:.0f} s")
    if asked.result is not None:
        run = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "system": platform.platform(), "python": platform.python_version()}
        run |= {"load_average": {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2)}}
        run |= {"cores": len(os.sched_getaffinity(0)), "millpond": millpond.__version__, "seed": asked.seed}
        run |= {"first": first, "mutations": mutations, "failed": failed}
        add_result(
            asked.result,
            {
                **run,
                "seconds": round(seconds),
                "sanitized": asked.sanitized,
                "kinds": kinds_of(ended),
                "ended": dict(sorted(ended.items())),
            },
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
