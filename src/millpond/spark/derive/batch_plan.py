"""The plan of a micro-batch, made from the analyzed plan of a streaming query without running it.

`queryExecution().optimizedPlan()` refuses a streaming DataFrame.  Spark's optimizer alone would
replace the current time by a literal, which moves columns and filters, so its plan isn't the one
that runs.

1. Find columns that need a value that the state doesn't have: a time, a user, an unknown time zone.
2. Replace current_timestamp(), current_date() and localtimestamp() by the batch's time, as Spark
   does for each micro-batch.  Replace all that Spark evaluates again whenever it plans a batch by a
   fixed value, so that the plan is always the same.
3. Give dropDuplicates its columns in the order that the checkpoint pins, as Spark does when it
   starts a query: those of the state's key.  Before Spark 4.3 it was the order of a Scala set.
4. Analyze again, which moves the batch's time out of grouping expressions; then optimize.

Source:  MicroBatchExecution.constructNextBatch and runBatch, IncrementalExecution.optimizedPlan,
         ComputeCurrentTime, ReplaceCurrentLike and ResolveDeduplicate, Spark 4.3; compared with the plans of running
         queries in tests/spark/derive/test_batch_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from millpond.spark.derive.plan import Java, Zones, class_name, elements, zone_of_session

# Spark replaces these by the time of the batch, which its offsets record.
BATCH_TIMES = frozenset({"CurrentTimestamp", "CurrentTimestampNanos", "LocalTimestamp", "LocalTimestampNanos", "CurrentDate"})
# Spark evaluates these when it plans a batch, and records the value nowhere.
PLANNED = frozenset({"Now", "CurrentTime", "CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentPath", "CurrentTimeZone"})
_SPECIAL_TIMES = frozenset({"now", "today", "tomorrow", "yesterday"})
_KEY_ORDER = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"
_NO_ZONE = "Dummy TimeZoneId"
"""Spark's placeholder for the zone of a batch's timestamp, which needs none."""
_ABOVE = frozenset({"Project", "Filter", "Sort", "SubqueryAlias", "EventTimeWatermark", "ResolvedHint"})
# 2100-01-01 in microseconds: later than any time with which today's queries compare.
_FIXED_TIME_MICROS = 4_102_444_800_000_000


@dataclass(slots=True)
class BatchPlan:
    """The optimized plan of a query's micro-batches, and the limits of what it says.

    plan:     the plan
    analyzed: the same before Spark's optimizer
    outputs:  the query's columns, by name and expression id, as Spark orders them
    foreign:  expression id -> why the state alone doesn't give the column
    filtered: why the state alone doesn't give a filter above the aggregation; None if it does
    mixed:    why the aggregation's buffers may differ between batches; None if they can't
    """

    plan: Java
    analyzed: Java
    outputs: tuple[tuple[str, int], ...]
    foreign: dict[int, str] = field(default_factory=dict)
    filtered: str | None = None
    mixed: str | None = None


def batch_plan(
    jsession: Java,
    jvm: Java,
    analyzed: Java,
    *,
    time_zone: str | None,
    moved: bool = False,
    pinned: Mapping[str, str] | None = None,
) -> BatchPlan:
    """The plan that Spark's optimizer makes of an analyzed plan in a micro-batch.

    time_zone:  of the job's session, None if it isn't known
    moved:      whether the query was analyzed in another session than the job's, so that its
                expressions have another zone
    pinned:     the settings that the query's checkpoint pins; None or empty for the session's
    """
    while class_name(analyzed).startswith("WriteTo"):
        analyzed = analyzed.children().apply(0)
    here = zone_of_session(jsession)
    lineage = _Lineage(jvm, foreign_zone=moved and time_zone != here, zone=time_zone)
    lineage.visit(analyzed)  # 1
    replaced = analyzed
    if lineage.replacements:
        replaced = analyzed.transformAllExpressions(scala_map(jvm, lineage.replacements))  # 2
    session = jsession.sessionState()
    replaced = _with_key_order(jsession, jvm, replaced, pinned or {})  # 3
    replaced = session.analyzer().execute(replaced)  # 4
    plan = session.optimizer().execute(replaced)
    outputs = tuple((str(a.name()), int(a.exprId().id())) for a in elements(analyzed.output()))
    return BatchPlan(plan, replaced, outputs, lineage.foreign, lineage.filtered, lineage.mixed)


def _with_key_order(jsession: Java, jvm: Java, analyzed: Java, pinned: Mapping[str, str]) -> Java:
    """The plan with the columns of each dropDuplicates in their order in the state's key."""
    from py4j.protocol import Py4JError

    nodes = [node for node, _ in _nodes(analyzed, True) if class_name(node) in ("Deduplicate", "DeduplicateWithinWatermark")]
    # A checkpoint that was begun before Spark had the setting goes on in the old order.
    ordered = pinned.get(_KEY_ORDER, "false") if pinned else jsession.conf().get(_KEY_ORDER, "true")
    resolver, replaced = jsession.sessionState().conf().resolver(), []
    for node in nodes:
        try:
            wanted = node.dedupSpec()
        except Py4JError:  # before Spark 4.3 there is one order
            return analyzed
        if wanted.isEmpty():
            continue
        rule = getattr(getattr(jvm.org.apache.spark.sql.catalyst.analysis, "ResolveDeduplicate$"), "MODULE$")
        before, child = node.keys(), node.child()
        keys = rule.recomputeKeysPreservingMetadataBoundary(before, child, wanted.get(), ordered == "true", resolver)
        kind = getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, class_name(node))
        if not keys.equals(before):
            replaced.append((node, kind(keys, child, wanted)))
    return analyzed.transform(scala_map(jvm, replaced)) if replaced else analyzed


def scala_map(jvm: Java, pairs: list[tuple[Java, Java]]) -> Java:
    """A Scala Map, which is a partial function as well."""
    java = jvm.java.util.HashMap()
    for before, after in pairs:
        java.put(before, after)
    return jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java)


@dataclass(slots=True)
class _Found:
    """What an expression depends on.

    reason:   why the state alone doesn't give its value; None if it does
    planned:  whether it is evaluated when a batch is planned, so that Spark folds it
    of_batch: whether it uses the batch's own time, which Spark doesn't fold
    refers:   whether it uses any other value of the row
    """

    reason: str | None = None
    planned: bool = False
    of_batch: bool = False
    refers: bool = False

    def __or__(self, other: _Found) -> _Found:
        return _Found(
            self.reason or other.reason,
            self.planned or other.planned,
            self.of_batch or other.of_batch,
            self.refers or other.refers,
        )

    @property
    def is_stored(self) -> bool:
        """Whether Spark stores it as a grouping column: Spark drops grouping columns that it folds."""
        return self.refers or (self.of_batch and not self.planned)


class _Lineage:
    """A walk from the sources to the sink."""

    def __init__(self, jvm: Java, *, foreign_zone: bool, zone: str | None) -> None:
        self.foreign: dict[int, str] = {}
        self.filtered: str | None = None
        self.mixed: str | None = None
        self.replacements: list[tuple[Java, Java]] = []
        self._planned: set[int] = set()
        self._jvm = jvm
        self._foreign_zone = foreign_zone
        self._zone = zone
        self._zones = Zones(jvm)

    def visit(self, plan: Java) -> None:
        chain = list(_nodes(plan, True))
        last = next((i for i, (node, on_top) in enumerate(chain) if on_top and _is_aggregation(node)), None)
        for place, (node, on_top) in reversed(list(enumerate(chain))):
            above = on_top and last is not None and place <= last
            for expression in elements(node.expressions()):
                self._visit(node, expression, above=above)

    def _visit(self, node: Java, expression: Java, *, above: bool) -> None:
        kind = class_name(node)
        grouping = elements(node.groupingExpressions()) if above and kind == "Aggregate" else []
        found = self._find(expression, grouping)
        if not above:
            # Values of rows below the aggregation are stored, unless Spark folds them to literals.
            if class_name(expression) == "Alias" and found.reason is not None and not found.is_stored:
                self._mark(expression, found)
            return
        if found.reason is None:
            return
        if found.planned and found.refers:
            self.mixed = self.mixed or found.reason
        if kind == "Filter":
            self.filtered = self.filtered or found.reason
        elif class_name(expression) == "Alias":
            self._mark(expression, found)

    def _mark(self, alias: Java, found: _Found) -> None:
        assert found.reason is not None
        self.foreign[int(alias.exprId().id())] = found.reason
        if found.planned:
            self._planned.add(int(alias.exprId().id()))

    def _find(self, e: Java, grouping: list[Java]) -> _Found:
        """What an expression needs besides the state; this also adds its replacements.

        grouping:  the aggregation's grouping columns, which are stored, if this is one of its
                   results
        """
        name = class_name(e)
        if name == "AttributeReference":
            identity = int(e.exprId().id())
            reason = self.foreign.get(identity)
            return _Found(reason, identity in self._planned, refers=reason is None)
        found = self._own(e, name)
        for child in elements(e.children()):
            found |= self._find(child, grouping)
        if name == "AggregateExpression":
            return _Found(refers=True)
        if found.reason and found.is_stored and any(e.semanticEquals(g) for g in grouping):
            return _Found(refers=True)
        return found

    def _own(self, e: Java, name: str) -> _Found:
        """What the expression's own node needs besides the state."""
        if name in BATCH_TIMES:
            self.replacements.append((e, self._batch_time(e)))
            reason = f"{_called(e)} is the time of the batch that a row was emitted in, which the state doesn't keep"
            return _Found(reason, of_batch=True)
        if name in PLANNED or _is_special_time(e, name):
            self.replacements.append((e, self._fixed(e)))
            return _Found(f"{_called(e)} is evaluated when a batch is planned, and the state doesn't keep it", planned=True)
        if name == "Literal":
            if self._foreign_zone and str(e.dataType().typeName()) == "timestamp":
                return _Found("its timestamp was read in this session, and the job's has another time zone, or an unknown one")
            return _Found()
        if self._zones.used_by(e):
            if self._zone is None:
                return _Found("it depends on the session's time zone, and the job's isn't known")
            if self._foreign_zone:
                self.replacements.append((e, e.withTimeZone(self._zone)))
        return _Found()

    def _batch_time(self, e: Java) -> Java:
        name = class_name(e)
        option = self._jvm.scala.Option.apply(_NO_ZONE if name.startswith("CurrentTimestamp") else self._zone_of(e))
        return self._jvm.org.apache.spark.sql.catalyst.expressions.CurrentBatchTimestamp(
            _FIXED_TIME_MICROS // 1000, e.dataType(), option
        )

    def _zone_of(self, e: Java) -> str:
        return self._zone if self._zone and self._foreign_zone else str(e.timeZoneId().get())

    def _fixed(self, e: Java) -> Java:
        literals = self._jvm.org.apache.spark.sql.catalyst.expressions.Literal
        if str(e.dataType().typeName()) == "timestamp":
            return literals.create(self._jvm.java.lang.Long.valueOf(_FIXED_TIME_MICROS), e.dataType())
        return literals.default(e.dataType())


def _nodes(node: Java, on_top: bool) -> Iterator[tuple[Java, bool]]:
    """All nodes, parents first, each with whether all nodes above it may stand above an aggregation."""
    yield node, on_top
    below = on_top and class_name(node) in _ABOVE
    for child in elements(node.children()):
        yield from _nodes(child, below)


def _is_aggregation(node: Java) -> bool:
    return class_name(node) == "Aggregate" and bool(node.isStreaming())


def _is_special_time(e: Java, name: str) -> bool:
    """Whether it is a cast of 'now', 'today' and the like, which Spark turns into a time when it plans."""
    if name != "Cast" or class_name(e.child()) != "Literal" or str(e.dataType().typeName()) not in ("date", "timestamp"):
        return False
    # The gateway returns texts as Java objects, and numbers as Python's.
    return str(e.child().value()).strip().lower() in _SPECIAL_TIMES


def _called(e: Java) -> str:
    return str(e.prettyName()) + "()"
