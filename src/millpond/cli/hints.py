"""Hints in the words of the command line: those of lower layers and servers name Python or HTTP."""

from __future__ import annotations

import re

# A pattern of a hint -> its text here. tests/cli/test_hints.py checks every hint of Millpond
# against these.
_HERE = [
    (r"Write table\.at\(batch=41\)\.", "Give --batch or --time."),
    (r"Wait longer \(wait_seconds\)", "Wait longer with --wait"),
    (r"Use _limit=([0-9]+) at most; read a whole table with Python: pond\[name\]\.to_arrow\(\)\.", r"Use --limit \1 at most."),
    (r"Ask for fewer rows with _limit or more key columns\.", "Ask for fewer rows with --limit or more key columns."),
    (r"Use a replica instead: `millpond\.open`\.", "Leave --cold out."),
    (r"Look the key up in a replica instead: `millpond\.open`\.", "Leave --cold out."),
    (r", or millpond\.open\(…, retention=…\)", ""),
    (r"millpond\.Retention\(history_batches=…\) or --history TABLE=TIME", "millpond serve --history TABLE=TIME"),
    (r"Write find_event\(offset=\"views:0:7\"\)\.", "Give --offset views:0:7, or --file."),
    (r"take the lease over: take_over=True", "take the lease over: --take-over"),
    (r"Declare it with indexes=…, and ask", "Give --index to `millpond serve`, and ask"),
    (r"sort the rows of a scan", "use --order-by"),
    (r"with min_batch and wait_seconds", "with --min-batch and --wait"),
    (r"with `range\(start=…\)`", "with --start"),
    (r", or allow= of `millpond\.open`", ""),
    (r"Read the row by `get` or `scan`\.", "Read the row with `millpond get` or `millpond scan`."),
    (r"Use `get` or `range`\.", "Use `millpond get`, or `millpond scan` with --start and --end."),
    (r"of `start` and `end`", "of --start and --end"),
    (r"; ask for several (rows with several )?keys in one POST …/rows:get", ""),
    (r"GET /tables lists those that it opens", "`millpond tables` lists those that it opens"),
    (r"Send the header Authorization: Bearer TOKEN", "Give the token with --server-token or in MILLPOND_TOKEN"),
]


def hint_here(hint: str) -> str:
    """The hint for somebody at a terminal."""
    for there, here in _HERE:
        hint = re.sub(there, here, hint)
    return hint
