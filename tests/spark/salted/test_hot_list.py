"""Which groups are hot, judged from the rows of batches, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.schema.definition.hot_keys import HotKey, from_bytes, to_bytes
from millpond.schema.types import atomic
from millpond.spark.salted.hot_list import HotList

COLUMNS = {"page": atomic("string")}


def hashes(judged: HotList) -> list[int]:
    return [key.hash for key in judged.keys]


def test_a_group_is_hot_from_its_share_on_and_until_half_of_it() -> None:
    judged = HotList(0.2, COLUMNS)
    assert not judged.take(0, 10_000, [(1, 1999), (2, 500)], [])
    assert judged.take(1, 10_000, [(1, 2100)], [])
    assert judged.keys == [HotKey(1, None, pytest.approx(0.2055, abs=1e-3), 1)]
    seen = []
    for batch in range(2, 9):
        judged.take(batch, 10_000, [(2, 500)], [])
        seen.append(hashes(judged))
    assert seen == [[1], [], [], [], [], [], []]


def test_few_rows_say_nothing() -> None:
    judged = HotList(0.05, COLUMNS)
    assert not any(judged.take(batch, 150, [(7, 150)], []) for batch in range(40))
    assert judged.keys == []
    assert judged.take(40, 900, [(7, 450)], [])
    assert hashes(judged) == [7]


def test_an_empty_batch_changes_nothing() -> None:
    judged = HotList(0.1, COLUMNS)
    judged.take(0, 5000, [(1, 5000)], [])
    before = judged.keys
    assert not any(judged.take(batch, 0, [], []) for batch in range(1, 50))
    assert judged.keys == before


def test_a_name_is_taken_once_and_kept() -> None:
    judged = HotList(0.1, COLUMNS)
    judged.take(0, 5000, [(-3, 4000)], [])
    assert judged.take(1, 5000, [(-3, 4000)], ['-3 {"page":"a b"}', '9 {"page":"never hot"}'])
    assert judged.take(2, 5000, [(-3, 4000)], []), "as long as nobody says that it was written"
    judged.written()
    assert judged.keys[0].key == {"page": "a b"}
    assert not judged.take(3, 5000, [(-3, 4000)], [])
    assert judged.keys[0].key == {"page": "a b"}


def test_the_list_of_an_earlier_run_holds_until_rows_say_otherwise() -> None:
    before = HotKey(5, {"page": "/"}, 0.5, 17)
    judged = HotList(0.1, COLUMNS, [before])
    assert judged.keys == [before]
    judged.take(20, 500, [(5, 0)], [])
    assert judged.keys == [before]
    assert judged.take(21, 5000, [(6, 100)], [])
    assert judged.keys == []


counts = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(1, 10**6)), max_size=12, unique_by=lambda pair: pair[0])


@given(st.lists(counts, max_size=12), st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_no_more_groups_are_hot_than_there_is_room_for(batches: list[list[tuple[int, int]]], share: float) -> None:
    judged = HotList(share, COLUMNS)
    written: list[HotKey] = []
    for batch, counted in enumerate(batches):
        if judged.take(batch, sum(count for _, count in counted), counted, []):
            written = from_bytes(to_bytes(judged.keys, COLUMNS))
            judged.written()
        shares = [key.share for key in judged.keys]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1 + 1e-9
        assert all(one >= share / 2 for one in shares)
        # A reader of the file gets the same groups.
        assert {key.hash for key in written} == set(hashes(judged))


def test_the_file_is_read_as_it_was_written() -> None:
    columns = {"page": atomic("string"), "n": atomic("long"), "price": atomic("decimal(38,18)"), "at": atomic("timestamp")}
    values = {"page": None, "n": 2**63 - 1, "price": Decimal("0.100000000000000001"), "at": datetime(2026, 3, 1, 12, tzinfo=UTC)}
    keys = [HotKey(-(2**63), values, 0.25, 3), HotKey(2**63 - 1, None, 0.1, 4)]
    assert from_bytes(to_bytes(keys, columns)) == keys
    written = json.loads(to_bytes(keys, columns))
    assert (written["hot"], written["unnamed"]) == ([-(2**63), 2**63 - 1], [2**63 - 1])


BROKEN = [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [{}]}', b'{"keys": [{"hash": "x"}]}', b"[" * 100_000]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_list_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="list of hot keys"):
        from_bytes(content)


def test_a_group_whose_values_cant_be_read_stays_without_a_name() -> None:
    judged = HotList(0.1, {"n": atomic("long")})
    judged.take(0, 5000, [(1, 4000)], [])
    for named in ('1 {"n":"many"}', "1 {", '1 {"n":1e99}'):
        judged.take(1, 5000, [(1, 4000)], [named])
        assert judged.keys[0].key is None
        assert judged.naming_error is not None
    judged.take(2, 5000, [(1, 4000)], ['1 {"n":7}'])
    assert judged.keys[0].key == {"n": 7}
    assert judged.naming_error is None
