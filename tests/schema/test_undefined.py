"""Columns that Millpond names keep their names.  A user's column of the same name gets a number; none is lost."""

from __future__ import annotations

from millpond.schema.definition.default_table import undefined_table
from millpond.schema.definition.table import TableDefinition, parse_definition
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType, atomic, struct_of

LONG, TEXT, TIME, FLAG = atomic("long"), atomic("string"), atomic("timestamp"), atomic("boolean")


def table(name: str, key: tuple[Field, ...], value: tuple[Field, ...], *, family: str = "", **more: object) -> TableDefinition:
    schema = StoreSchema(
        operator=0, operator_name=name, store="default", index=0, single=False, family=family, key=key, value=value, **more
    )
    definition = undefined_table("t", schema, "nobody defined it")
    assert len(set(definition.columns)) == len(definition.columns)
    assert parse_definition(definition.to_json()) == definition
    return definition


def test_a_join_whose_rows_have_columns_called_as_ours() -> None:
    key = (Field("field0", TEXT), Field("index", LONG))
    value = tuple(Field(n, t) for n, t in (("key", TEXT), ("index", LONG), ("matched", LONG), ("v", LONG), ("matched", FLAG)))
    assert table("symmetricHashJoin", key, value).columns == ("key", "index", "key_2", "index_2", "matched_2", "v", "matched")


def test_a_list_of_rows_with_a_column_index_and_a_ttl() -> None:
    element = struct_of((Field("index", LONG), Field("expires_at", LONG)))
    value = (Field("value", element), Field("ttlExpirationMs", LONG))
    key = (Field("index", TEXT),)
    shown = table("transformWithStateInPandasExec", key, value, variable="list", ttl=True, many=True, family="l")
    assert shown.columns == ("index_2", "index", "index_3", "expires_at_2", "expires_at")
    assert [c.name for c in shown.key] == ["index_2", "index"]


def test_sessions_beside_another_window_of_the_same_type() -> None:
    window = struct_of((Field("start", TIME), Field("end", TIME)))
    key = (Field("window", window, window=True), Field("session_start", TEXT), Field("sessionStartTime", TIME))
    value = (Field("window", window), Field("session_start", TEXT), Field("session_window", window), Field("count", LONG))
    shown = table("sessionWindowStateStoreSaveExec", key, value)
    assert shown.columns == ("window_start", "window_end", "session_start_2", "session_start", "session_end", "count")
    assert shown.values[0].expression.args[0].options == {"index": 2}


def test_a_store_that_isnt_as_it_is_known_to_be_shows_all_of_it() -> None:
    key = (Field("user", TEXT), Field("sessionStartTime", TIME))
    value = (Field("a", LONG), Field("b", SparkType("array", "array", element=LONG)))
    assert table("sessionWindowStateStoreSaveExec", key, value).columns == ("user", "sessionStartTime", "a", "b")


def test_a_limit_has_no_key_and_a_dummy_is_no_column() -> None:
    assert table("globalLimit", (Field("key", atomic("void")),), (Field("value", LONG),)).columns == ("rows_so_far",)
    assert table("dedupe", (Field("k", TEXT),), (Field("__dummy__", atomic("void")),)).columns == ("k",)
