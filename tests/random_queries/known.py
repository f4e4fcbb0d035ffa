"""What is known to fail: each class with how it shows, until it is mended."""

from __future__ import annotations

import re

from random_queries.case import Case

KNOWN: list[tuple[str, str, str]] = [
    ("a date or time that Python lacks ends the scan", "VALUE_OUT_OF_RANGE", ""),
    (
        "NULL structs in keys are like structs of NULLs",
        r"^(client )?(get|pages|range|lost|extra|value)",
        r'"keys": [^\n]*struct|struct<[^\n]*\n "keys"',
    ),
    ("struct keys are taken apart", "^missing", r'"keys": [^\n]*struct|struct<[^\n]*\n "keys"|"[^"\n]*": "struct<'),
    ("current_timestamp and current_date: the plan isn't the one that the batch runs", "", r'"volatile"|current_date\(\)'),
    ("another HAVING, name or select over a checkpoint is refused", "DEFINITION_CHANGED", '"restart"'),
    ("a user's column called as a window's", "", r'"keys": [^\n]*window\(.*(AS `window|`window|`w_start|`w_end|`start|`end)'),
    ("corr: NaN for NULL", r"^value.*corr", "corr"),
    ("ties in max_by(x, y, k)", r"^value.*(max_by|min_by)", r"(max|min)_by\([^\n]*, \d\)"),
    ("a raw buffer under a user's name", r"^(missing|type).*warnings: \(\"", ""),
    ("a key shown under the name of an expression over it", "^value", r'"withColumn", "(k|s)"'),
    ("text of a double, and what goes by it", r"^value", r"(?i)cast\(|bround|round"),
    ("the definer's time zone", "^value", '"definer"'),
    ("a map as key is called _groupingmapsort", "^missing", r"map<"),
]
"""reason, pattern of the kind of failure with its detail, pattern of the case's text"""


def known_reason(case: Case, kind: str, detail: str) -> str | None:
    """Which known class a failure is of; None for a new one."""
    shown, text = f"{kind}: {detail}", case.to_json()
    for reason, failure, query in KNOWN:
        if re.search(failure, shown, re.DOTALL) and re.search(query, text, re.DOTALL):
            return reason
    return None
