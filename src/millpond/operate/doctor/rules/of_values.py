"""Rules of what rows hold: texts, lists that grow, one key with a large share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from millpond.operate.doctor.rows import shown_key
from millpond.operate.doctor.rules.rule import Found
from millpond.operate.doctor.state import StateFacts, name_of
from millpond.operate.units import size_text

# A smaller key is no burden, whatever its share.
_HOT_LEAST_BYTES = 1 << 20
_SALTS = 8
_FORMS = {"bigint": "whole numbers", "date": "dates", "timestamp": "times"}
# What a user's function keeps for a key can't be merged by anybody else.
_SALTED = "stateStoreSave"


def text_value(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """Columns whose texts are all numbers, dates or times."""
    for each in facts.stores:
        rows = each.rows
        if rows is None:
            continue
        for (side, column), texts in rows.texts.items():
            if texts.form is None:
                continue
            saved = rows.scaled(rows.rows * texts.saved_bytes / texts.rows)
            if saved <= threshold:
                continue
            yield Found(
                place=f"{name_of(each.store)}, {side} column {column}",
                evidence=f"All {texts.tried} texts that were tried are {_FORMS[texts.form]}, such as {texts.example.decode()!r}.",
                cost=f"about {size_text(saved)} of {size_text(rows.scaled(rows.row_bytes))} of rows",
                cost_bytes=saved,
                change=f"Cast it to {texts.form} before the stateful operator.  The state's schema changes: docs/upgrades.md.",
            )


def growing_list(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """A key whose value becomes ever larger."""
    for each in facts.stores:
        rows, growth = each.rows, each.growth
        if rows is None or growth is None or rows.heaviest is None or growth.heaviest is None:
            continue
        if each.store.watermarked:  # a window ends it
            continue
        sizes = growth.heaviest
        first, half, last = sizes[0], sizes[len(sizes) // 2], sizes[-1]
        if last <= threshold or not all(one < other for one, other in pairwise(sizes)):
            continue
        yield Found(
            place=name_of(each.store),
            evidence=f"The value of {shown_key(each.store, rows.heaviest.row)} grew from {size_text(first)} at batch "
            f"{growth.first} to {size_text(half)} halfway and {size_text(last)} at batch {facts.batch.batch}.",
            cost=f"{size_text(last)} for this key, and {size_text((last - first) / growth.batches)} more each batch",
            cost_bytes=last,
            change="Keep an aggregate in place of a list (count, max_by, a sketch, mp.top_k), or bound it by a window.",
        )


def hot_key(facts: StateFacts, threshold: float) -> Iterator[Found]:
    """A key with a large share of an operator's bytes: one task reads, keeps and writes all of them."""
    for each in facts.stores:
        rows = each.rows
        if rows is None or rows.heaviest is None or not rows.is_whole or rows.partitions == 1:
            continue
        share = rows.heaviest.bytes / max(1, rows.row_bytes)
        if rows.heaviest.bytes < _HOT_LEAST_BYTES or share <= max(threshold, 2 / rows.partitions):
            continue
        even = rows.row_bytes / rows.partitions
        if each.store.operator_name == _SALTED:
            change = (
                f"Aggregate it by millpond.salted with {_SALTS} salts (docs/hot-keys.md): each part then has about "
                f"{size_text(rows.heaviest.bytes / _SALTS)}."
            )
        else:
            change = "Group or join by a salt of your own as well, and merge what is emitted (docs/hot-keys.md)."
        yield Found(
            place=f"{name_of(each.store)}, partition {rows.heaviest.partition}",
            evidence=f"{shown_key(each.store, rows.heaviest.row)} has {share:.0%} of the bytes of all keys: "
            f"{size_text(rows.heaviest.bytes)} in {rows.heaviest.rows} rows.",
            cost=f"{size_text(rows.heaviest.bytes)} in one task, where an even share is {size_text(even)}",
            cost_bytes=int(rows.heaviest.bytes - even),
            change=change,
        )
