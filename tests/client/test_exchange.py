"""How a client reads a server's JSON: values of rows keep all their digits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.client.exchange import Exchange, Reply, error_of
from millpond.client.reads import ServerReads, TableReads
from millpond.errors import ReplicaError, StorageError
from millpond.schema.definition.table import TableDefinition, parse_definition
from millpond.schema.values import decode_json, encode_json
from millpond.settings import ClientSettings, Retention
from millpond.wire.answers import FromCut, error_json
from spark_files.golden import GOLDEN

DEFINITIONS = [
    parse_definition(data)
    for path in sorted([*GOLDEN.rglob("tables/*.json"), *GOLDEN.rglob("definition.json")])
    if "key_schema" in (data := json.loads(path.read_text()))
]
JSON_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.none() | st.floats(0, 1e300) | st.integers(0, 10**9)
RETENTIONS = st.builds(
    Retention,
    closed_seconds=SECONDS,
    closed_bytes=st.integers(0, 1 << 60),
    history_batches=st.none() | st.integers(0, 10**9),
    history_seconds=SECONDS,
)
OFFSETS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | JSON_FLOATS | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=6,
)


def _answered(exchange: Exchange[Any], data: Any) -> Any:
    """What an exchange of one request makes of a server's answer."""
    next(exchange)
    try:
        exchange.send(Reply(200, {"millpond-definition": "d"}, encode_json(data)))
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it asks more than once")


@given(st.sampled_from(DEFINITIONS), st.none() | RETENTIONS)
def test_a_definition_arrives_as_it_is(definition: TableDefinition, retention: Retention | None) -> None:
    definition = replace(definition, retention=retention)
    known = _answered(TableReads("t", ClientSettings()).load(), definition.to_json())
    assert known.definition == definition
    assert repr(known.definition) == repr(definition)  # also the types of its numbers: 0.5 == Decimal("0.5")


@given(st.dictionaries(st.sampled_from("0123"), OFFSETS, max_size=3), JSON_FLOATS)
def test_a_position_arrives_as_spark_wrote_it(offsets: dict[str, Any], age: float) -> None:
    position = {"offsets": offsets, "watermark_ms": None, "batch_started_ms": 5, "committed_ms": 6}
    lag = {"behind_batches": 0, "behind_seconds": 0.5, "age_seconds": age, "age_from": "commit", "event_lag_seconds": age}
    data = {"table": "t", "job": "j", "batch": 1, "position": position, "lag": lag, "job_state": "unknown"}
    cut = msgspec.convert(decode_json(encode_json(data)), FromCut).cut
    assert repr(cut.position.offsets) == repr(offsets)
    assert repr((cut.lag.age_seconds, cut.lag.event_lag_seconds)) == repr((age, age))


@given(st.dictionaries(st.text(min_size=1), st.none() | st.booleans() | st.integers(0, 2**53) | JSON_FLOATS, max_size=3))
def test_an_error_arrives_with_its_facts(context: dict[str, Any]) -> None:
    context = {name: fact for name, fact in context.items() if name not in ("condition", "message", "hint", "self")}
    raised = ReplicaError("NOT_UP_TO_BOUND", "m.", hint="h.", **context)
    error = error_of(Reply(503, {}, encode_json(error_json(raised))))
    assert error is not None
    assert repr(error.context) == repr(context)


def test_where_tables_are_aligned_arrives_as_batches() -> None:
    position = {"offsets": {}, "watermark_ms": None, "batch_started_ms": 5, "committed_ms": 6}
    lag = {"behind_batches": 0, "behind_seconds": 0, "age_seconds": 1, "age_from": "commit", "event_lag_seconds": None}
    entry = {"table": "t", "job": "j", "batch": 7, "position": position, "lag": lag, "job_state": "unknown"}
    assert _answered(ServerReads().at(["t"]), {"tables": [entry]}) == {"t": 7}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"rows": []}', b'{"tables": [{"table": 1}]}'])
def test_what_is_no_answer_is_said_to_be_no_server(body: bytes) -> None:
    exchange = ServerReads().at(["t"])
    next(exchange)
    with pytest.raises(StorageError) as refused:
        exchange.send(Reply(200, {}, body))
    assert refused.value.condition == "NOT_A_SERVER"
