"""Rules of a query's plan: what bounds its state, by what it groups, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millpond.operate.doctor.rules.rule import CodeFacts, Found

if TYPE_CHECKING:
    from millpond.spark.review.facts import QueryOperator

_COMPLETE = "complete"
_AGGREGATION, _DEDUPE, _JOIN = "stateStoreSave", "dedupe", "symmetricHashJoin"
# Operators that go by the watermark of what they read, whatever their keys.
_BY_TIME = ("dedupeWithinWatermark", "applyInPandasWithState", "transformWithState", "FlatMapGroups", "sessionWindow")


def unbounded(facts: CodeFacts) -> Iterator[Found]:
    """Operators whose plan says that each new event, or each window, stays for ever."""
    for operator in facts.query.operators:
        if operator.watermarks:  # then the watermark should have removed it: watermark_unused
            continue
        if operator.name == _JOIN and operator.sides and not any(side.bounded for side in operator.sides):
            yield _found(
                operator,
                "Neither side of the join has a watermark, so Spark keeps every row of both.",
                "an event",
                "Give both sides a watermark, and the join a range of time between them.",
            )
        elif operator.name == _DEDUPE:
            yield _found(
                operator,
                f"dropDuplicates by {_names(operator)} has no watermark, so Spark remembers every value for ever.",
                "a value",
                "Use withWatermark and dropDuplicatesWithinWatermark.",
            )
        elif operator.name == _AGGREGATION and any(key.window for key in operator.keys):
            yield _found(
                operator,
                f"The rows are grouped by {_names(operator)}, a window of a column without a watermark: old windows stay.",
                "a window and group",
                "Call withWatermark on the time's column before the window.",
            )


def watermark_unused(facts: CodeFacts) -> Iterator[Found]:
    """A watermark that removes nothing from an operator's state."""
    query = facts.query
    keyed = [operator for operator in query.operators if operator.keys]
    if query.watermarks and keyed and not any(operator.watermarks for operator in query.operators):
        yield _found(
            keyed[-1],
            f"withWatermark on {', '.join(query.watermarks)} comes after every stateful operator.",
            "a group",
            "Call withWatermark before the operator whose state it should bound.",
        )
        return
    for operator in query.operators:
        if not operator.watermarks:
            continue
        if operator.name == _JOIN:
            yield from _one_sided(operator)
        elif operator.name == _AGGREGATION and query.output_mode == _COMPLETE and any(key.watermarked for key in operator.keys):
            yield _found(
                operator,
                "The output mode is complete, in which Spark keeps every group, whatever the watermark.",
                "a group",
                "Use the output mode update or append.",
            )
        elif operator.name in (_AGGREGATION, _DEDUPE) and operator.keys and not any(key.watermarked for key in operator.keys):
            if _is_used(facts, operator):
                continue
            yield _found(
                operator,
                f"withWatermark is on {', '.join(operator.watermarks)}, and the keys are {_names(operator)}: none of them has it.",
                "a group",
                "Group by the column of withWatermark itself, or a window of it: a cast or another computation makes a new column "
                "without it.",
            )


def _is_used(facts: CodeFacts, operator: QueryOperator) -> bool:
    """Whether another operator goes by the watermark."""
    return any(
        other is not operator
        and other.watermarks
        and (
            other.name.startswith(_BY_TIME)
            or any(key.watermarked for key in other.keys)
            or any(side.bounded for side in other.sides)
        )
        for other in facts.query.operators
    )


def _one_sided(operator: QueryOperator) -> Iterator[Found]:
    loose = [side.name for side in operator.sides if not side.bounded]
    if not loose:
        return
    without = [side.name for side in operator.sides if not side.watermarked]
    why = f"the {' and the '.join(without)} side has no watermark" if without else "its condition has no range of time between them"
    yield _found(
        operator,
        f"No watermark removes rows of the join's {' and '.join(loose)} side: {why}.",
        "an event",
        "Give both sides a watermark, and the join a condition such as b.at >= a.at AND b.at <= a.at + interval 1 hour.",
    )


def drawn_key(facts: CodeFacts) -> Iterator[Found]:
    """Keys that another function than the event gives."""
    for operator in facts.query.operators:
        for key in operator.keys:
            if key.drawn is None:
                continue
            yield Found(
                place=_place(operator),
                evidence=f"The key {key.name} comes from {key.drawn}: each event, or each batch, makes a new one, and a task that "
                "runs again makes others.",
                cost=f"at least {operator.row_bytes} bytes an event or a batch, and rows that are there twice or not at all",
                cost_bytes=operator.row_bytes or None,
                change="Take a key that the event has; for salts, a hash of the event (millpond.salted).",
            )


def growing_list(facts: CodeFacts) -> Iterator[Found]:
    """Lists of all events of a group that no window ends."""
    for operator in facts.query.operators:
        if facts.query.output_mode != _COMPLETE and any(key.watermarked for key in operator.keys):
            continue
        for kept in operator.lists:
            if kept.function != "collect_list" or kept.instead is not None:
                continue
            yield Found(
                place=_place(operator),
                evidence=f"{kept.call} keeps every value of a group, and no watermark ends a group.",
                cost="at least 8 bytes an event, all of which Spark writes again whenever a group changes",
                cost_bytes=8,
                change="Keep an aggregate in place of the list, or bound it by a window with a watermark.",
            )


def events_kept(facts: CodeFacts) -> Iterator[Found]:
    """Lists of which only a number is read."""
    for operator in facts.query.operators:
        for kept in operator.lists:
            if kept.instead is not None:
                yield Found(
                    place=_place(operator),
                    evidence=f"{kept.call} keeps the values of all events, and only a number is made of them.",
                    cost="at least 8 bytes an event, where 8 bytes a group would do",
                    cost_bytes=8,
                    change=f"Use {kept.instead}.",
                )


def unread_column(facts: CodeFacts) -> Iterator[Found]:
    """Fields that an aggregate keeps and nothing reads."""
    for operator in facts.query.operators:
        for kept in operator.unread:
            yield Found(
                place=_place(operator),
                evidence=f"{kept.call} keeps {', '.join(kept.unread)}, and only {', '.join(kept.read)} is read.",
                cost=f"at least {kept.bytes} bytes a group",
                cost_bytes=kept.bytes,
                change=f"Leave {', '.join(kept.unread)} out of the struct.",
            )


def _found(operator: QueryOperator, evidence: str, each: str, change: str) -> Found:
    return Found(
        place=_place(operator),
        evidence=evidence,
        cost=f"at least {operator.row_bytes} bytes {each}, for ever",
        cost_bytes=operator.row_bytes or None,
        change=change,
    )


def _place(operator: QueryOperator) -> str:
    return f"operator {operator.name}"


def _names(operator: QueryOperator) -> str:
    return ", ".join(key.name for key in operator.keys) or "none"
