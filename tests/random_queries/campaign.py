"""Runs many cases, and counts which agreed, which were refused for which reason, and which failed."""

from __future__ import annotations

import logging
import re
import shutil
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millpond
from live_jobs.quick_java import QUICK_JAVA
from millpond.errors import MillpondError
from millpond.spark.derive.definition import MillpondWarning
from random_queries.case import Case
from random_queries.check import WrongError, check_run
from random_queries.doors import ask_command_line, ask_server, serving
from random_queries.generate import draw_case
from random_queries.run import QueryRun, run_case, session_of

_AT_ONCE = 4
_CHUNK = 40
_OF_A_KIND = 2
"""the number of failures of a kind to make small"""
_NOT_IN_THE_STATE = (
    "is the time of the batch that a row was emitted in",
    "of Apache DataSketches, which takes Spark's own functions to read",
    "of Apache DataSketches, whose items Spark emits in another order",
    "Another state than the checkpoint's",
    "depends on the session's time zone, and the job's isn't known",
)
_OUTCOMES = ("agreed", "not in the state", "refused in part", "FAILED")


def _outcome(reasons: list[str]) -> str:
    """ "agreed", "refused in part", or "not in the state" if only values are refused that the state doesn't have."""
    known = [any(words in reason for words in _NOT_IN_THE_STATE) for reason in reasons]
    return "agreed" if not reasons else "not in the state" if all(known) else "refused in part"


def spark_session(folder: Path) -> Any:
    """A session like that of the tests."""
    from millpond.spark.session import session

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        **QUICK_JAVA,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "spark"),
    }
    running = session("random queries", **conf)
    running.sparkContext.setLogLevel("OFF")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    return running


@dataclass
class Failure:
    """A case that failed, and how."""

    seed: str
    case: Case
    kind: str
    detail: str


class Campaign:
    """Random cases against Spark."""

    def __init__(
        self, spark: Any, folder: Path, *, minimise: bool = True, save: Path | None = None, conditions: float = 0.1
    ) -> None:
        self.spark = spark
        self._conditions = conditions
        self.folder = folder
        self.failures: list[Failure] = []
        self.refusals: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._minimise = minimise
        self._save = save
        self._number = 0
        # One block for all cases: two threads would remove each other's filters.
        warnings.simplefilter("ignore", MillpondWarning)

    def run(self, seed: int, numbers: Iterable[int]) -> None:
        """Run the cases of a seed by their numbers; each server gets some of them."""
        began = time.monotonic()
        pending = list(numbers)
        while pending:
            chunk, pending = pending[:_CHUNK], pending[_CHUNK:]
            cases = [(f"{seed}/{n}", draw_case(session_of(self.spark, {}), f"{seed}/{n}", self._conditions)) for n in chunk]
            self._chunk(cases)
            progress = f"{chunk[-1] + 1} in {time.monotonic() - began:.0f} s: {dict(self.counts)}"
            print(progress, flush=True)

    def _chunk(self, cases: list[tuple[str, Case]]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            outcomes = list(pool.map(lambda given: (*given, *self.attempt(given[1])), cases))
        good = []
        for seed, case, run, failure in outcomes:
            if failure is not None:
                self._note(seed, case, *failure)
            elif run is not None and run.batches:
                good.append((seed, case, run))
        for seed, case, failure in self.through_server(good):
            self._note(seed, case, *failure)
        for _, _, run, _ in outcomes:
            if run is not None:
                shutil.rmtree(run.pond, ignore_errors=True)

    def attempt(self, case: Case) -> tuple[QueryRun | None, tuple[str, str] | None]:
        """Run a case, and check it through the doors that need no server; returns the run, and a failure's kind and detail."""
        self._number += 1
        table = f"t{self._number}"
        run = None
        try:
            run = run_case(self.spark, case, self.folder, table)
            twin = (
                run_case(self.spark, case, self.folder, table, mode="update") if case.mode == "append" and not run.refused else None
            )
            if twin is not None:
                shutil.rmtree(twin.pond, ignore_errors=True)
            reasons = check_run(run, None if twin is None or twin.failed or twin.error or twin.refused else twin)
        except WrongError as wrong:
            return run, (wrong.kind, wrong.detail)
        except Exception as error:  # noqa: BLE001 any other error of ours is a failure
            last = traceback.extract_tb(error.__traceback__)[-1]
            detail = "".join(traceback.format_exception(error)[-6:])
            return run, (f"untyped {type(error).__name__} in {Path(last.filename).name}", detail[-2500:])
        nothing = run.refused or (run.failed and not run.batches)
        self.counts["refused by Spark" if nothing else _outcome(reasons)] += 1
        if run.failed and run.batches:
            self.counts["of which Spark failed at a batch"] += 1
        if run.failed:
            conditions = [c for c in re.findall(r"\[([A-Z_.]+)\]", run.failed) if c != "STREAM_FAILED"]
            self.refusals[f"Spark failed at a batch: {conditions[-1] if conditions else run.failed[:300]}"] += 1
        if run.refused:
            self.refusals[f"Spark refused: {run.refused[:120]}"] += 1
        self.refusals.update(reasons)
        return run, None

    def through_server(self, runs: list[tuple[str, Case, QueryRun]]) -> list[tuple[str, Case, tuple[str, str]]]:
        """Check the same runs through a server and the command line; returns those that failed there."""
        failed = []
        readable = [
            (seed, case, run) for seed, case, run in runs if run.definition is not None and (run.checkpoint / "commits").exists()
        ]
        readable = [r for r in readable if any(p.name.isdecimal() for p in (r[2].checkpoint / "commits").iterdir())]
        if not readable:
            return []
        home = self.folder / f"home-{self._number}"
        with serving([run.pond for _, _, run in readable], home) as address, millpond.connect(address) as remote:
            for seed, case, run in readable:
                try:
                    with millpond.open(run.pond, replica_dir=home, follow=False, wait_seconds=60) as pond:
                        ask_server(address, remote, pond[run.table], WrongError)
                        ask_command_line(address, home, pond[run.table], WrongError)
                        ask_command_line(str(run.pond), home, pond[run.table], WrongError)
                except WrongError as wrong:
                    failed.append((seed, case, (wrong.kind, wrong.detail)))
                except MillpondError as error:
                    failed.append((seed, case, (f"server error {error.condition}", str(error))))
                except Exception as error:  # noqa: BLE001 as above
                    detail = "".join(traceback.format_exception(error)[-6:])
                    failed.append((seed, case, (f"server untyped {type(error).__name__}", detail[-2500:])))
        shutil.rmtree(home, ignore_errors=True)
        return failed

    def _note(self, seed: str, case: Case, kind: str, detail: str) -> None:
        self.counts["FAILED"] += 1
        print(f"FAILED {seed}: {kind}\n{detail}", flush=True)
        alike = sum(1 for f in self.failures if f.kind == kind)
        if self._minimise and alike < _OF_A_KIND:
            from random_queries.minimise import minimise

            by_server = kind.startswith(("client", "http", "command", "server"))
            case, detail = minimise(lambda smaller: self.judge(smaller, by_server=by_server), case, kind, detail)
        self.failures.append(Failure(seed, case, kind, detail))
        print(f"{case.to_json()}{detail}\n", flush=True)
        if self._save is not None:
            self._save.mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() else "-" for c in f"{kind}-{seed}")[:80]
            (self._save / f"{name}.json").write_text(case.to_json())
            (self._save / f"{name}.txt").write_text(f"{kind}\n{detail}\n")

    def judge(self, case: Case, *, by_server: bool = True) -> tuple[str, str] | None:
        """How a case fails, as kind and detail, through all doors or those without a server; None if it doesn't fail."""
        run, failure = self.attempt(case)
        try:
            if failure is None and run is not None and by_server:
                failure = next((f for _, _, f in self.through_server([("", case, run)])), None)
        finally:
            if run is not None:
                shutil.rmtree(run.pond, ignore_errors=True)
        return failure

    def result(self) -> dict[str, Any]:
        """The result as numbers."""
        taken = sum(self.counts[name] for name in _OUTCOMES)
        return {
            "taken_by_spark": taken,
            "counts": dict(self.counts),
            "refused_percent": round(100 * self.counts["refused in part"] / max(1, taken), 1),
            "not_in_the_state_percent": round(100 * self.counts["not in the state"] / max(1, taken), 1),
            "reasons": dict(self.refusals.most_common()),
            "failed": [{"query": f.seed, "kind": f.kind} for f in self.failures],
        }

    def describe(self) -> str:
        """The result in words, with what was refused and why."""
        result = self.result()
        lines = [
            f"{result['taken_by_spark']} queries that Spark takes: {dict(self.counts)}; "
            f"{result['refused_percent']} % refused in part or whole, {result['not_in_the_state_percent']} % not in the state"
        ]
        lines += [f"  {count} x {reason}" for reason, count in self.refusals.most_common(60)]
        lines += [f"FAILED {f.seed}: {f.kind}" for f in self.failures]
        return "\n".join(lines)
