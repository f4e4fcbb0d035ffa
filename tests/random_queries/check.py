"""Compares a table with what Spark emitted, batch by batch, through every door.

1. Remove the checkpoint's commits and put them back one by one, so that a follower applies each batch.
2. At each batch: the table has the rows that Spark emitted, bit by bit; all other rows are unchanged; and there are as many as
   Spark counted in its state.  `read_arrow`, which needs no follower, gives the same.
3. Read the last batch through all doors, which must agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import millpond
from millpond.errors import MillpondError
from millpond.schema.convert import to_python
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import Field, SparkType
from oracles.emitted import bits
from random_queries.case import Case
from random_queries.doors import arrow_rows, ask_table, cells, has_arrow
from random_queries.run import Batch, QueryRun

_WAIT_SECONDS = 60
_BETWEEN = " | "


class WrongError(AssertionError):
    """A table differs from Spark.

    kind:  a short word for the kind of failure, which a minimised case shares
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class Shown(NamedTuple):
    """An output column of Spark's, and its columns in the table as `parts`: one column, or the members of a window."""

    place: int
    field: Field
    parts: tuple[str, ...]
    as_set: bool


def check_run(run: QueryRun, twin: QueryRun | None = None) -> list[str]:
    """Raise WrongError if the table and Spark differ; returns the reasons of what was refused by name.

    twin:  for a run in append mode, the same query in update mode, which shows the state's rows before they are emitted
    """
    if isinstance(run.error, MillpondError):
        if run.error.condition in ("NOT_DERIVABLE", "SPARK_CONNECT"):
            return [_reason(run.error.message)]
        if run.error.condition == "DEFINITION_CHANGED" and run.goes_on is False:
            return ["Another state than the checkpoint's."]
        raise WrongError(f"refused {run.error.condition}", run.error.message)
    if not isinstance(run.definition, TableDefinition):
        return [] if run.refused or run.failed or run.definition is not None else ["no definition"]
    commits = run.checkpoint / "commits"
    numbers = sorted(int(p.name) for p in commits.glob("*") if p.name.isdecimal()) if commits.exists() else []
    if not numbers:
        return []
    away = commits.with_name("commits-away")
    commits.rename(away)
    commits.mkdir()
    definition = run.definition
    check = Check(run, twin, definition)
    pond = None
    try:
        for number in numbers:
            (away / str(number)).rename(commits / str(number))
            if pond is None:
                pond = millpond.open(run.pond, replica_dir="memory://", wait_seconds=_WAIT_SECONDS)
            pond.catch_up(_WAIT_SECONDS)
            if number >= (run.restarted_at or 0):
                check.batch(number, pond[run.table])
        check.first_doors(pond[run.table])
    except MillpondError as error:
        raise WrongError(f"error {error.condition}", str(error)) from error
    finally:
        if pond is not None:
            pond.close()
        for left in away.iterdir():
            left.rename(commits / left.name)
        away.rmdir()
    return sorted({_reason(w) for w in definition.warnings})


def _reason(sentence: str) -> str:
    """A warning without the names of its columns."""
    return re.sub(r"(?<!\w)'.*?'(?!\w)|\"[^\"]*\"", "…", sentence)


class Check:
    """Checks the batches of one table, one after the other."""

    def __init__(self, run: QueryRun, twin: QueryRun | None, definition: TableDefinition) -> None:
        self.run = run
        self.definition = definition
        self.batches = run.batches if twin is None else twin.batches
        self.strict = twin is not None or run.case.mode != "append"
        # In a second run the earlier rows may have other names.
        self.before: Counter[str] | None = Counter() if run.restarted_at is None else None
        self.unknown: set[str] = set()
        words = " ".join(str(s) for s in (run.case.aggregates, run.case.after, run.case.restart))
        self._filtered = "'where'" in words
        self._sorted = "'orderBy'" in words
        self._sets = _sets_of(run.case)

    def batch(self, number: int, table: Any) -> None:
        """Check the table at its present batch."""
        rows = table.scan()
        definition = table.definition
        if rows.cut.position.batch != number:
            raise WrongError("batch", f"the table is at {rows.cut.position.batch}, committed is {number}")
        if len(set(definition.columns)) != len(definition.columns):
            raise WrongError("names", f"two columns have one name: {definition.columns}")
        counted = self.run.batches.get(number, Batch()).state_rows
        living = sum(1 for row in rows if not row.final)
        # To sort, Spark runs the batch twice, and counts twice.
        if counted not in (None, living, 2 * living if self._sorted else None) and not self._filtered and definition.having is None:
            raise WrongError("count", f"batch {number}: {living} rows where Spark counts {counted} in its state")
        self._leave_out_what_goes_by_java(rows)
        batch = self.batches.get(number)
        if batch is not None and self.strict:
            self._compare(number, batch, definition, [cells(row) for row in rows])
        if not has_arrow(definition):
            for read in (lambda: millpond.read_arrow(self.run.pond, self.run.table), table.to_arrow):
                _refuses(read)
            return
        cold = millpond.read_arrow(self.run.pond, self.run.table)
        warm = table.to_arrow()
        self._arrow(number, definition, [row for row in rows if not row.final], cold, "read_arrow")
        self._arrow(number, definition, rows, warm, "to_arrow")

    def _leave_out_what_goes_by_java(self, rows: Any) -> None:
        """If `define` doesn't know the job's Java, a value that depends on it is an error; leave such columns out."""
        if self.run.case.door == "define":
            errors = [(name, error.condition) for row in rows for name, error in row.errors.items()]
            found = {name for name, condition in errors if condition == "JAVA_UNKNOWN"}
            if found - self.unknown:
                self.unknown |= found
                self.before = None

    def first_doors(self, table: Any) -> None:
        """Check reads of Python besides the scan."""
        ask_table(table, WrongError)

    def _compare(self, number: int, batch: Batch, definition: TableDefinition, rows: list[dict[str, Any]]) -> None:
        shown = [s for s in self.shown(batch.fields, definition) if s.field.name not in self.unknown]
        if not shown:
            return
        volatile = set(self.run.case.volatile)
        ours = [self._ours(row, shown) for row in rows]
        theirs = [self._theirs(row, shown) for row in batch.rows]
        have, emitted = Counter(ours), Counter(theirs)
        lost = emitted - have
        if lost and not (
            self.run.case.watermark and sum(have.values()) < sum(emitted.values()) + sum((self.before or Counter()).values())
        ):
            raise WrongError(*_difference(number, shown, lost, have - emitted, self.run))
        if self.run.case.mode == "complete" and have != emitted:
            raise WrongError(*_difference(number, shown, lost, have - emitted, self.run))
        if self.before is not None:
            # Rows that weren't emitted are unchanged, except for columns that change with the batch.
            steady = [s for s in shown if s.field.name not in volatile]
            rest = Counter(self._ours(row, steady) for row in rows) - Counter(self._theirs(row, steady) for row in batch.rows)
            if new := rest - self.before:
                raise WrongError(*_difference(number, steady, Counter(), new, self.run))
        steady = [s for s in shown if s.field.name not in volatile]
        self.before = Counter(self._ours(row, steady) for row in rows)

    def shown(self, fields: tuple[Field, ...], definition: TableDefinition) -> Iterator[Shown]:
        """The place of each output column in the table.  Raises WrongError if a column is missing and no warning names it."""
        types = {c.name: c.type for c in (*definition.key, *definition.values)}
        raw = {v.name for v in definition.values if v.raw is not None}
        warned = " ".join(definition.warnings)
        # A table of raw buffers has Spark's own names, and says so.
        is_raw = bool(warned) and len(definition.values) == len(raw) and "The column" not in warned
        order = []
        for place, field in enumerate(fields):
            as_set = field.type.kind == "array" and (field.name in self._sets or field.name.startswith("collect_set("))
            word = _word(field.name, fields, definition)
            members = tuple(_beside(f"{word}_{f.name}", {f.name for f in fields}) for f in field.type.fields)
            if is_raw or (not self.run.case.aggregates and field.name not in types):
                continue
            if repr(field.name) in warned and field.name not in types:
                continue
            if field.name in types and field.name not in raw:
                if _plain(types[field.name]) != _plain(field.type):
                    raise WrongError("type", f"{field.name!r} is {types[field.name]}, Spark has {field.type}")
                order.append(field.name)
                yield Shown(place, field, (field.name,), as_set)
            elif self._is_window(field) and all(m in types for m in members):
                yield Shown(place, field, members, as_set)
            else:
                raise WrongError("missing", f"{field.name!r} isn't among {definition.columns}; warnings: {definition.warnings}")
        values = [v.name for v in definition.values if v.name in order]
        if values != [name for name in order if name in values]:
            raise WrongError("order of columns", f"{values} where Spark has {order}")

    def _is_window(self, field: Field) -> bool:
        """Whether it may be a window, whose members are columns of the table; any other struct is one column."""
        members = field.type.fields
        is_one = [f.name for f in members] == ["start", "end"] and all(f.type.kind.startswith("timestamp") for f in members)
        return is_one and any("window(" in key for key in (*self.run.case.keys, *map(str, self.run.case.after)))

    def _theirs(self, row: tuple[Any, ...], shown: list[Shown]) -> str:
        out: list[Any] = []
        for s in shown:
            value = row[s.place]
            if not self.run.case.aggregates and value == 0.0 and isinstance(value, float):
                value = 0.0  # the state of dropDuplicates has one kind of zero, the emitted row has the input's
            if len(s.parts) > 1 or (s.parts and s.parts[0] != s.field.name):
                members = value if value is not None else (None,) * len(s.field.type.fields)
                out += [bits(to_python(f.type)(v)) for f, v in zip(s.field.type.fields, members, strict=True)]
            else:
                out.append(bits(to_python(s.field.type)(value), as_set=s.as_set))
        return _BETWEEN.join(map(repr, out))

    def _ours(self, row: dict[str, Any], shown: list[Shown]) -> str:
        return _BETWEEN.join(repr(bits(row[part], as_set=s.as_set)) for s in shown for part in s.parts)

    def _arrow(self, number: int, definition: TableDefinition, rows: Any, table: Any, door: str) -> None:
        """Check the same rows through Arrow; those of `read_arrow` come in any order."""
        named = [(c.name, c.type) for c in (*definition.key, *definition.values)]
        if [n for n, _ in named] != table.column_names:
            raise WrongError(f"{door} names", f"{table.column_names} where the table has {[n for n, _ in named]}")
        volatile = set(self.run.case.volatile)
        kept = [(n, t) for n, t in named if n not in volatile]
        ours = [repr([bits(row[name]) for name, _ in kept]) for row in map(cells, rows)]
        found = [
            repr([bits(to_python(t)(v)) for (n, t), v in zip(named, row, strict=True) if n not in volatile])
            for row in arrow_rows(table, [t for _, t in named])
        ]
        if door == "read_arrow":
            ours, found = sorted(ours), sorted(found)
        if ours != found:
            wrong = next(((a, b) for a, b in zip(ours, found, strict=False) if a != b), (len(ours), len(found)))
            raise WrongError(door, f"batch {number}: scan has {wrong[0]}, {door} has {wrong[1]}; columns {[n for n, _ in kept]}")


def _refuses(read: Callable[[], Any]) -> None:
    try:
        read()
    except MillpondError as refused:
        if refused.condition == "WRONG_TYPE":
            return
        raise
    raise WrongError("arrow", "a column that Arrow hasn't is read")


def _plain(type_: SparkType) -> str:
    """The type without collations, which a schema has elsewhere."""
    return re.sub(r" collate \w+", "", str(type_))


def _sets_of(case: Case) -> set[str]:
    """Columns of collect_set, or of what Spark may simplify to it: the order of the elements isn't compared."""
    found: set[str] = set()

    def note(text: str, name: str) -> None:
        if "collect_set(" in text or any(s in text for s in found):
            found.add(name)

    steps = [*case.after, *(case.restart or {}).get("after", [])]
    for texts in (case.aggregates, *(t for word, *given in steps if word in ("select", "groupBy") for t in given)):
        for text in texts:
            note(text, re.sub(r".* AS ", "", text, flags=re.DOTALL).strip("`").replace("``", "`"))
    for _ in steps:  # a name may mean the column of a later step
        for word, *given in steps:
            if word == "withColumn":
                note(given[1], given[0])
            elif word == "withColumnRenamed":
                note(given[0], given[1])
            elif word == "select":
                for text in given[0]:
                    note(text, re.sub(r".* AS ", "", text, flags=re.DOTALL).strip("`").replace("``", "`"))
    return found


def _word(name: str, fields: tuple[Field, ...], definition: TableDefinition) -> str:
    """The word in the names of a window's members: "session" for a session with Spark's own name, if no other column has it."""
    taken = {"session_start", "session_end"} & {f.name for f in fields}
    return "session" if name == "session_window" and not taken and "session_start" in definition.columns else name


def _beside(name: str, users: set[str]) -> str:
    """The name of a window's member; it gets a number if the query uses it for another column."""
    given, n = name, 2
    while given in users:
        given, n = f"{name}_{n}", n + 1
    return given


def _difference(number: int, shown: list[Shown], lost: Counter[str], extra: Counter[str], run: QueryRun) -> tuple[str, str]:
    """Which columns differ, found by comparing similar rows."""
    names = [part for s in shown for part in s.parts]
    best = names
    for a in list(lost)[:8]:
        for b in list(extra)[:8]:
            pairs = zip(names, a.split(_BETWEEN), b.split(_BETWEEN), strict=True)
            best = min(best, [n for n, v, w in pairs if v != w], key=len)
    kind = "value" if lost and extra else "lost" if lost else "extra"
    words = sorted({re.sub(r"\W.*", "", a) for a in run.case.aggregates for n in best if f"`{n}`" in a or n in a})
    samples = [[row.replace(_BETWEEN, ", ") for row in list(rows)[:3]] for rows in (lost, extra)]
    return (
        f"{kind} {' '.join(words)}".strip(),
        f"batch {number}, columns {best} of {names}\n  Spark: {samples[0]}\n  table: {samples[1]}",
    )
