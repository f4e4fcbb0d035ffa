"""Compares every answer in a reader's log with the recomputation of the batch and the job's run that it names.

1. `batch_started_ms` shows the run: it lies between two starts of the job. Offsets and watermark must be those of the batch.
2. Rows that aren't final are exactly the state after the batch, in key order. A final row has the values that it expired with.
3. A final row may be missing only if it expired long ago, or in a batch that nobody could see (`owed`, judged at the end).
4. A reader's answers never go back in runs or batches.
5. Changes, replayed on the state of the batch where they began, give the state of each batch in between and of the last one.
   Each `old` is the value before the change; no batch has a key twice, and no batch is missing.
6. HISTORY_GONE is right only if the job was replaced since.
7. An answer as of an earlier batch must fit that batch by 1 and 2. It may be refused only if the batch is yet to come, is older
   than the history that the reader began with in this run, or is one of several batches that were cleaned up before anybody read
   them and that count as one; then no change may be of that batch alone. The run is known if the answers before and after agree.
8. A bound that isn't met names a batch before the requested one.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.model import JobRun, Key, Values, values_of

# Rows that expired within this must still be shown; readers keep them for 20 s of the job's own time.
OWED_SECONDS = 10
# Readers may get these errors while processes are killed, disks are full and jobs are replaced. They never get a wrong answer.
PASSING = frozenset(
    {
        "REPLICA_BUILDING",
        "REPLICA_BEHIND",
        "JOB_REPLACED",
        "NO_COMMITTED_BATCH",
        "NO_CHECKPOINT",
        "FILE_GONE",
        "TOKEN_EXPIRED",
        "SERVER_UNAVAILABLE",
        "DISK_FULL",
    }
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a reader may see besides right answers.

    passing:        the errors that may come
    goes_back:      answers come from several copies, so that one may be of an earlier batch than the one before
    loses_history:  a token may be of a copy that is gone, or was built again, so that history is gone in the same run
    has_owed:       a final row may be missing only as rule 3 says
    """

    passing: frozenset[str] = PASSING
    goes_back: bool = False
    loses_history: bool = False
    has_owed: bool = True


class NotKnownYetError(Exception):
    """The oracle doesn't have the job's log of that batch yet: judge later."""


@dataclass(slots=True)
class Counts:
    """How many answers were judged."""

    answers: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    finals: int = 0
    changes: int = 0
    batches_replayed: int = 0
    batches_collapsed: int = 0
    chains: int = 0
    gone: int = 0
    sent: int = 0
    by_url: int = 0
    not_kept: int = 0
    not_kept_between_runs: int = 0
    not_yet: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Chain:
    """Changes that one reader follows in one run.

    last:   the batch up to which all changes were replayed
    state:  the rows after it
    group:  the changes of one later batch so far
    """

    run: JobRun
    last: int
    state: dict[Key, Values]
    group: list[dict[str, Any]] = field(default_factory=list)


class ReaderLog:
    """One reader's log, judged line by line as it grows."""

    def __init__(
        self,
        path: Path,
        runs: list[JobRun],
        counts: Counts,
        seen: set[tuple[int, int]],
        owed: list[Any],
        rules: Rules = Rules(),
    ) -> None:
        self.path, self._rules = path, rules
        self.wrong: list[str] = []
        self.newest = (-1, -1)
        self.replayed = (-1, -1)
        self.runs, self.counts, self._seen, self._owed = runs, counts, seen, owed
        self._done = 0
        self._chain: _Chain | None = None
        self._refused: list[dict[str, Any]] = []
        self._began: dict[int, int] = {}  # run -> the first batch whose changes were followed
        self._alone: set[tuple[int, int]] = set()  # (run, batch) whose changes came for that batch alone
        self._as_one: set[tuple[int, int]] = set()  # (run, batch) that a reader was refused because it counts as one with others

    def judge(self) -> None:
        """Judge the lines written since the last call, as far as the job's log is known."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._done)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    self.judge_line(json.loads(line))
                except NotKnownYetError:
                    return
                except AssertionError as wrong:
                    self.wrong.append(f"{self.path.name}, byte {self._done}: {wrong}: {line.decode()[:3000]}")
                    self._chain = None
                self._done += len(line)

    def unjudged(self) -> bool:
        """Whether some answers couldn't be judged yet."""
        return b"\n" in self.path.read_bytes()[self._done :]

    def judge_line(self, entry: dict[str, Any]) -> None:
        """Judge one line.  Raises AssertionError if it is wrong, NotKnownYetError if that can't be said yet."""
        op = entry["op"]
        if op == "error":
            passing = self._rules.passing
            assert entry["condition"] in passing, f"an error that isn't one of {sorted(passing)}"
            self.counts.errors[entry["condition"]] += 1
        elif op == "gone":
            replaced = self._chain is None or self._chain.run.number < len(self.runs) - 1
            assert replaced or self._rules.loses_history, "history is gone, and the job is the same"
            self.counts.gone += 1
            self._chain = None
        elif op == "not kept":  # 7
            self._refused.append(entry)
        elif op == "not yet":  # 8
            assert entry["here"] < entry["batch"], "a bound that was met was refused"
            self.counts.not_yet += 1
        else:
            assert op != "wrong", entry.get("what")
            before = self.newest
            run = self._source(entry)
            refused, self._refused = self._refused, []
            for refusal in refused:
                self._check_refusal(refusal, run, before)
            judges = {"get": self._get, "scan": self._scan, "at": self._scan, "begin": self._begin, "changes": self._changes}
            judges[op](entry, run)
            self.counts.answers[op] += 1
            self.counts.sent += entry.get("sent", False)
            self.counts.by_url += entry.get("by_url", False)

    def _source(self, entry: dict[str, Any]) -> JobRun:  # 1, 4
        number = sum(run.began_ms <= entry["started_ms"] for run in self.runs) - 1
        assert number >= 0, "a batch from before the job began"
        run, batch = self.runs[number], entry["batch"]
        held = run.try_held(batch)
        if held is None:
            raise NotKnownYetError
        planned = held.planned
        found = (entry["offsets"], entry["watermark_ms"], entry["started_ms"])
        expected = ({"0": planned.offsets}, held.watermark_ms, planned.started_ms)
        assert found == expected, f"run {number}, batch {batch} is {expected}"
        if entry["op"] != "at":
            forward = (number, batch) >= self.newest or self._rules.goes_back
            assert forward, f"it was at {self.newest}, and is at {(number, batch)}"
            self.newest = max(self.newest, (number, batch))
        return run

    def _check_refusal(self, refusal: dict[str, Any], run: JobRun, before: tuple[int, int]) -> None:  # 7
        if before[0] != run.number:
            self.counts.not_kept_between_runs += 1
            return
        self.counts.not_kept += 1
        batch, condition, facts = refusal["batch"], refusal["condition"], refusal["context"]
        if condition == "NOT_UP_TO_BOUND":
            assert facts["batch"] < batch, f"batch {batch} is there, and was refused as yet to come"
            assert before[1] < batch, f"batch {batch} was refused as yet to come after an answer of batch {before[1]}"
            return
        first, newest = facts.get("first"), facts.get("newest")
        if batch < self._began.get(run.number, batch + 1):
            return
        assert first is not None, f"batch {batch} was refused without a reason"
        assert newest is not None, f"batch {batch} was refused without a reason"
        assert first <= batch < newest, f"batch {batch} was refused for {first} to {newest}; history is there from {self._began}"
        assert (run.number, batch) not in self._alone, f"batch {batch} is known alone, and was refused"
        self._as_one.add((run.number, batch))

    # ------------------------------------------------------------ rows

    def _row(self, run: JobRun, batch: int, row: dict[str, Any]) -> Key:
        key = (row["page"], row["start"])
        if row["final"]:
            expired, values = run.closed.get(key, (-1, None))
            assert values == values_of(row), f"{key} expired in batch {expired} as {values}"
            assert expired <= batch, f"{key} expires in batch {expired} only"
            self.counts.finals += 1
        else:
            live = run.held[batch].live.get(key)
            assert live == values_of(row), f"run {run.number}, batch {batch} has {live} at {key}"
        self.counts.rows += 1
        return key

    def _missing(self, run: JobRun, batch: int, key: Key, *, owed: bool = True) -> None:
        assert key not in run.held[batch].live, f"run {run.number}, batch {batch} has {run.held[batch].live[key]} at {key}"
        expired = run.closed.get(key, (batch + 1, None))[0]
        began = run.held[batch].planned.started_ms
        if (
            owed
            and self._rules.has_owed
            and expired <= batch
            and began - run.held[expired].planned.started_ms < OWED_SECONDS * 1000
        ):
            self._owed.append((run.number, expired, batch, key, self.path.name))  # 3

    def _get(self, entry: dict[str, Any], run: JobRun) -> None:
        assert len(entry["keys"]) == len(entry["rows"])
        for (page, start), row in zip(entry["keys"], entry["rows"], strict=True):
            if row is None:
                self._missing(run, entry["batch"], (page, start))
            else:
                assert self._row(run, entry["batch"], row) == (page, start), "a row of another key"

    def _scan(self, entry: dict[str, Any], run: JobRun) -> None:  # 2
        batch, page = entry["batch"], entry["page"]
        keys = [self._row(run, batch, row) for row in entry["rows"]]
        assert keys == sorted(set(keys), reverse=entry["reverse"]), "rows aren't in key order, each once"
        found = set(keys)
        assert page is None or {key[0] for key in keys} <= {page}
        recent = (key for held in run.held[max(0, batch - 40) : batch + 1] for key in held.expired)
        for key in (*run.held[batch].live, *recent):
            if key not in found and page in (None, key[0]):
                # Expired rows may be forgotten by the time that somebody asks for an earlier batch.
                self._missing(run, batch, key, owed=entry["op"] != "at")

    # ------------------------------------------------------------ changes

    def _begin(self, entry: dict[str, Any], run: JobRun) -> None:
        self.counts.chains += 1
        self._began.setdefault(run.number, entry["batch"])
        self._chain = _Chain(run, entry["batch"], dict(run.held[entry["batch"]].live))

    def _changes(self, entry: dict[str, Any], run: JobRun) -> None:  # 5
        chain = self._chain
        assert chain is not None, "changes that nobody began, or after what was wrong"
        assert run is chain.run, f"a token of run {chain.run.number} went on in run {run.number}"
        for change in entry["changes"]:
            if chain.group and chain.group[0]["batch"] != change["batch"]:
                self._replay(chain)
            chain.group.append(change)
            self.counts.changes += 1
        if not entry["more"]:
            if chain.group:
                self._replay(chain)
            assert chain.last == entry["batch"], f"told up to batch {chain.last}, as if that were all up to {entry['batch']}"
        else:
            assert entry["changes"], "more, and none of it"
        self.replayed = (run.number, chain.last)

    def _replay(self, chain: _Chain) -> None:
        group, run = chain.group, chain.run
        chain.group = []
        first, batch = group[0]["first"], group[0]["batch"]
        assert first == chain.last + 1, f"batch {chain.last} is followed by {first}"
        assert first <= batch
        assert len({change["first"] for change in group}) == 1
        touched: set[Key] = set()
        for change in group:
            key = _key(change)
            assert key not in touched, f"{key} twice in batch {batch}"
            touched.add(key)
            _apply(change, key, chain.state, run, first, batch)
        assert chain.state == run.held[batch].live, (
            f"replayed up to batch {batch}: {_difference(chain.state, run.held[batch].live)}"
        )
        chain.last = batch
        if first == batch:
            assert (run.number, batch) not in self._as_one, f"batch {batch} came alone, and was refused as known only with others"
            self._alone.add((run.number, batch))
            self.counts.batches_replayed += 1
            self._seen.add((run.number, batch))
        else:
            self.counts.batches_collapsed += batch - first + 1


def _key(change: dict[str, Any]) -> Key:
    rows = [row for row in (change["old"], change["new"], change["final"]) if row is not None]
    assert rows, "a change of nothing"
    (key,) = {(row["page"], row["start"]) for row in rows}
    return key


def _apply(change: dict[str, Any], key: Key, state: dict[Key, Values], run: JobRun, first: int, batch: int) -> None:
    old, new, final = (change[name] and values_of(change[name]) for name in ("old", "new", "final"))
    assert state.get(key) == old, f"batch {batch} says that {key} was {old}; it was {state.get(key)}"
    kind = "expire" if new is None else "insert" if old is None else "update"
    assert change["kind"] == kind, f"it is {kind}"
    if new is not None:
        assert new != old, f"{key} didn't change"
        assert final is None
        state[key] = new
        return
    expired, values = run.closed.get(key, (-1, None))
    assert first <= expired <= batch, f"{key} expired in batch {expired}, not in {first} to {batch}"
    assert final == values if first == batch else final in (None, values), f"{key} was {values} in the end"
    state.pop(key, None)


def _difference(found: dict[Key, Values], expected: dict[Key, Values]) -> str:
    keys = [key for key in {*found, *expected} if found.get(key) != expected.get(key)]
    return "; ".join(f"{key} is {found.get(key)} and should be {expected.get(key)}" for key in sorted(keys)[:3])
