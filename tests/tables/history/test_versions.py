"""Versions of a part of the keys, of one key and of all agree with what each batch wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import millpond
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint

TABLE = "job.aggregate_0"
ALL = millpond.Retention(history_batches=None)
BATCHES = 12
# Long keys share more bytes than the replica keeps of a key, so they lie by their hashes.
LONG = ["x" * size + end for size in (478, 480, 495, 511, 600) for end in ("", "a", "ab", "b")]
WORDS = ["", "a", "a\x00", "aa", "b", "ü", *LONG]
KEYS = [(word, number) for word in WORDS for number in (-1, 2)]
Written = dict[tuple[str, int], list[tuple[int, int | None]]]
"""key -> (batch, value) of each write; a value of None deletes"""


@pytest.fixture(scope="module")
def written() -> tuple[list[list[tuple[Any, int | None]]], Written]:
    """The changes of each batch, and the same by key."""
    chance, batches, by_key = random.Random(7), [], {}
    there: set[tuple[str, int]] = set()
    for batch in range(BATCHES):
        rows: list[tuple[Any, int | None]] = []
        for key in chance.sample(KEYS, 12):
            value = None if key in there and chance.random() < 0.3 else batch * 100 + len(rows)
            there = there - {key} if value is None else there | {key}
            rows.append((key, value))
            by_key.setdefault(key, []).append((batch, value))
        batches.append(rows)
    return batches, by_key


@pytest.fixture(scope="module")
def table(written: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("versions")
    job = WrittenCheckpoint(folder / "job", key=(Field("word", atomic("string")), Field("number", atomic("long"))))
    job.plan(written[0][0], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=folder / "home", retention=ALL, wait_seconds=60) as pond:
        assert pond[TABLE].count() == 12
        for rows in written[0][1:]:
            job.plan(rows, snapshot=False)
            job.commit()
            pond.catch_up(60)
        yield pond[TABLE]


def expected(by_key: Written, keys: list[tuple[str, int]], since: int, until: int) -> list[Any]:
    """(word, number, value, batch, until_batch, kind), by key; the replica was built at batch 0.

    A row of an aggregation expires when it is deleted: its last version has the final values.
    """
    out = []
    for key in sorted(keys, key=lambda key: (key[0].encode(), key[1])):
        steps, last = [], None
        for batch, value in by_key.get(key, []):
            kind = "expire" if value is None else "insert" if last is None else "update"
            steps.append((last if value is None else value, batch, kind))
            last = value
        steps = [step for step in steps if step[1] <= until]
        for place, (value, batch, kind) in enumerate(steps):
            end = steps[place + 1][1] if place + 1 < len(steps) else None
            if (end is None or end > since) and not (kind == "expire" and batch <= since):
                out.append((*key, value, batch or None, end, kind if batch > since else None))
    return out


def shown(versions: Any) -> list[Any]:
    return [(v.row["word"], v.row["number"], v.row["v"], v.batch, v.until_batch, v.kind) for v in versions]


def test_versions_of_a_part_of_the_keys_are_what_the_batches_wrote(table: Any, written: Any) -> None:
    _, by_key = written
    chance = random.Random(11)
    found = 0
    for _ in range(300):
        since, until = sorted(chance.choices(range(BATCHES), k=2))
        span: dict[str, Any] = {}
        low, high = sorted(chance.sample(WORDS, 2), key=str.encode)
        kind = chance.choice(["key", "prefix", "range", "from", "below", "all"])
        if kind == "key":
            keys = [chance.choice(KEYS)]
            span["key"] = {"word": keys[0][0], "number": keys[0][1]}
        elif kind == "prefix":
            keys = [key for key in KEYS if key[0] == low]
            span["key"] = {"word": low}
        else:
            span |= {"start": {"word": low}} if kind in ("range", "from") else {}
            span |= {"end": {"word": high}} if kind in ("range", "below") else {}
            begin, end = (span[edge]["word"].encode() if edge in span else None for edge in ("start", "end"))
            keys = [k for k in KEYS if (begin is None or k[0].encode() >= begin) and (end is None or k[0].encode() < end)]
        found_versions = shown(table.history(span.pop("key", None), since=since, until=until, **span))
        assert found_versions == expected(by_key, keys, since, until), (kind, since, until)
        found += len(found_versions)
    assert found > 1000


def test_versions_as_of_a_batch_are_those_until_then(table: Any, written: Any) -> None:
    _, by_key = written
    for batch in (0, 3, BATCHES - 2):
        for word in WORDS:
            found_versions = shown(table.at(batch=batch).history({"word": word}))
            assert found_versions == expected(by_key, [key for key in KEYS if key[0] == word], 0, batch), (batch, word)
