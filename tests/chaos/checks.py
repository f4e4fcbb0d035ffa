"""What the chaos judges besides the soak's answers: what a sender has brought, and what a console says of jobs and savepoints."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any

from soak.checks import PASSING, NotKnownYetError, ReaderLog, Rules
from soak.model import JobRun, Key, Values, values_of

_UNAVAILABLE = frozenset({"STORAGE_UNAVAILABLE", "UNKNOWN_TABLE", "NO_COMMITTED_BATCH", "READ_TOO_LONG"})
OF_ONE = Rules(passing=PASSING | _UNAVAILABLE, has_owed=False)
OF_COPIES = Rules(
    passing=PASSING | _UNAVAILABLE | {"SHARDS_INCOMPLETE", "NO_COMMON_BATCH"}, goes_back=True, loses_history=True, has_owed=False
)
OF_SAVEPOINTS = Rules(
    passing=PASSING | _UNAVAILABLE | {"BATCH_GONE", "SAVEPOINT_INCOMPLETE", "UNKNOWN_SAVEPOINT"}, goes_back=True, has_owed=False
)


class PagesLog(ReaderLog):
    """The log of who looks at a console's pages: rows, as any reader; the newest batch of the job; and savepoints."""

    def judge_line(self, entry: dict[str, Any]) -> None:
        """See `ReaderLog`."""
        if entry["op"] not in ("job", "saved", "page"):
            super().judge_line(entry)
            return
        self.counts.answers[entry["op"]] += 1
        if entry["op"] == "page":
            assert entry["is_ours"], f"{entry['path']} isn't the file of the console"
            return
        (run,) = self.runs
        held = run.try_held(entry["batch"])
        if held is None:
            self.counts.answers[entry["op"]] -= 1
            raise NotKnownYetError
        if entry["op"] == "saved":
            assert entry["offsets"] == {"0": held.planned.offsets}, f"batch {entry['batch']} ends at {held.planned.offsets}"
            assert entry["rows"] == len(held.live), f"batch {entry['batch']} has {len(held.live)} rows"


def sent_differences(records: list[dict[str, Any]], run: JobRun, last: int) -> list[str]:
    """What isn't as it must be in a topic of changes.

    records:  in the order of their keys at least
    last:     the batch up to which all was sent
    """
    found: list[str] = []
    states: dict[int, dict[Key, Values]] = defaultdict(dict)
    batches: dict[tuple[int, Key], int] = {}
    for record in records:
        state, batch = states[record["run"]], record["batch"]
        (key,) = {_key(record[name]) for name in ("old", "new", "final") if record[name] is not None}
        old, new, final = (record[name] and values_of(record[name]) for name in ("old", "new", "final"))
        had, has = state.get(key), run.held[batch].live.get(key) if batch < len(run.held) else None
        if batch <= batches.get((record["run"], key), -1):
            found.append(f"run {record['run']}: {key} changes in batch {batch} after batch {batches[record['run'], key]}")
        if had != old:
            found.append(f"run {record['run']}: batch {batch} says that {key} was {old}; it was {had}")
        if has != new:
            found.append(f"run {record['run']}: batch {batch} has {has} at {key}, not {new}")
        if final is not None and run.closed.get(key, (-1, None))[1] != final:
            found.append(f"run {record['run']}: {key} expired as {run.closed.get(key)}, not {final}")
        batches[record["run"], key] = batch
        if new is None:
            state.pop(key, None)
        else:
            state[key] = new
    newest = states[max(states, default=0)]
    differ = {key for key in {*newest, *run.held[last].live} if newest.get(key) != run.held[last].live.get(key)}
    return found + [f"after batch {last}, {key} is {newest.get(key)}, not {run.held[last].live.get(key)}" for key in sorted(differ)]


def _key(row: dict[str, Any]) -> Key:
    return row["page"], round(dt.datetime.fromisoformat(row["start"]).timestamp() * 1000)
