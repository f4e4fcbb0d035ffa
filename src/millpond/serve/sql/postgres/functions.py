# ruff: noqa: S608 - the statements are ours
"""Functions of PostgreSQL's catalogue, as macros of DuckDB over the relations of `catalog`.

A statement that names one gets the macro of that name with `PREFIX` in front.
"""

from __future__ import annotations

from millpond.serve.sql.postgres import times
from millpond.serve.sql.postgres.names import KEYWORDS
from millpond.serve.sql.postgres.types import TYPES

PREFIX = "millpond_pg_"
# Of relations that must be named with their schema.
HIDDEN_OIDS = range(14_000, 16_384)
_SHOWN = ", ".join(f"{each.oid}: '{each.shown}'" for each in TYPES)
_NAMES = ", ".join(f"'{each.shown}': {each.oid}, '{each.name}': {each.oid}" for each in TYPES if each.shown != each.name)
_SAME = ", ".join(f"'{each.name}': {each.oid}" for each in TYPES if each.shown == each.name)
_VISIBLE = "type function operator opclass opfamily collation conversion ts_config ts_dict ts_parser ts_template statistics_obj"
_PRIVILEGES = "table schema database column any_column sequence function language tablespace type server foreign_data_wrapper"
_NULLS = (
    "obj_description col_description shobj_description pg_get_expr pg_get_partkeydef pg_get_serial_sequence "
    "pg_get_statisticsobjdef pg_get_statisticsobjdef_columns pg_get_triggerdef pg_get_ruledef pg_sequence_last_value "
    "pg_get_function_arguments pg_get_function_result pg_get_function_identity_arguments pg_get_functiondef "
    "pg_get_viewdef pg_collation_for inet_client_addr inet_server_addr inet_client_port inet_server_port "
    "pg_relation_filenode pg_relation_filepath pg_get_replica_identity_index pg_get_partition_constraintdef"
)
_ZEROS = (
    "pg_relation_size pg_total_relation_size pg_table_size pg_indexes_size pg_database_size pg_tablespace_size "
    "pg_stat_get_numscans pg_stat_get_tuples_returned pg_stat_get_live_tuples"
)


def _any(body: str, most: int) -> str:
    """A macro for up to so many arguments."""
    names = "abcdefg"
    return ", ".join(f"({', '.join(names[:count])}) AS {body}" for count in range(most + 1))


def _may(privilege: str) -> str:
    """Whether a privilege is one of reading."""
    return f"regexp_matches(upper({privilege}), 'SELECT|USAGE|CONNECT')"


def _regclass_oid(name: str) -> str:
    bare = f"replace(regexp_replace({name}, '^(\"?public\"?|\"?pg_catalog\"?)[.]', ''), '\"', '')"
    same = f"relname = {bare} OR (relname = lower({bare}) AND NOT contains({name}, '\"'))"
    return f"(SELECT max(oid) FROM {PREFIX}pg_class WHERE {same})"


_REGCLASS = (
    "coalesce(CAST(TRY_CAST(CAST(x AS VARCHAR) AS UINTEGER) AS UINTEGER), "
    f"{_regclass_oid('CAST(x AS VARCHAR)')}, "
    "CASE WHEN x IS NULL THEN NULL ELSE "
    "CAST(error('relation \"' || CAST(x AS VARCHAR) || '\" does not exist') AS UINTEGER) END)"
)
_REGTYPE = (
    "coalesce(CAST(TRY_CAST(CAST(x AS VARCHAR) AS UINTEGER) AS UINTEGER), "
    f"CAST(MAP {{{_NAMES}, {_SAME}}}[replace(lower(CAST(x AS VARCHAR)), 'pg_catalog.', '')] AS UINTEGER))"
)
_FORMAT = (
    f"CASE WHEN a = 1700 AND b >= 4 THEN 'numeric(' || ((b - 4) >> 16) || ',' || ((b - 4) & 65535) || ')' "
    f"ELSE coalesce(MAP {{{_SHOWN}}}[a], CASE WHEN a IS NOT NULL THEN '???' END) END"
)
# A number in the type that `numeric` without digits has here.  A float has the digits that PostgreSQL
# gives it.  Digits that don't fit are an error; only floats are rounded.
_NUMERIC = "DECIMAL(38, 10)"
_DIGITS = "regexp_extract(CAST(x AS VARCHAR), '^[-+ ]*([0-9]*)', 1)"
_PART = "rtrim(regexp_extract(CAST(x AS VARCHAR), '[.]([0-9]*)', 1), '0')"
_EXPONENT = (
    "CASE WHEN regexp_matches(CAST(x AS VARCHAR), '[eE]') "
    "THEN coalesce(TRY_CAST(regexp_extract(CAST(x AS VARCHAR), '[eE]([-+]?[0-9]+)', 1) AS INTEGER), -1000000) ELSE 0 END"
)
# Places after the point without zeros at the end; of a whole number minus the zeros at its end.
_PLACES = f"CASE WHEN {_PART} = '' THEN len(rtrim({_DIGITS}, '0')) - len({_DIGITS}) ELSE len({_PART}) END"
_HAS_MORE = f"({_PLACES}) - ({_EXPONENT}) > 10 AND regexp_matches(CAST(x AS VARCHAR), '^[^eE]*[1-9]')"
_AS_NUMERIC = (
    f"CASE WHEN typeof(x) = 'DOUBLE' THEN CAST(printf('%.15g', TRY_CAST(x AS DOUBLE)) AS {_NUMERIC}) "
    f"WHEN typeof(x) = 'FLOAT' THEN CAST(printf('%.6g', TRY_CAST(x AS DOUBLE)) AS {_NUMERIC}) "
    f"WHEN {_HAS_MORE} THEN CAST(error('numeric without digits has ten places here, and ' || CAST(x AS VARCHAR) || ' has more: "
    f"write numeric(38, 20)') AS {_NUMERIC}) ELSE CAST(x AS {_NUMERIC}) END"
)
_CLASS = f"FROM {PREFIX}pg_class WHERE oid = TRY_CAST(CAST(a AS VARCHAR) AS UINTEGER)"


def _quoted(name: str) -> str:
    words = ", ".join(f"'{word}'" for word in sorted(KEYWORDS))
    is_plain = f"regexp_full_match({name}, '[a-z_][a-z0-9_$]*') AND {name} NOT IN ({words})"
    return f"CASE WHEN {is_plain} THEN {name} ELSE '\"' || replace({name}, '\"', '\"\"') || '\"' END"


_QUOTED = _quoted("relname")

_PLAIN: dict[str, str] = {
    "numeric": f"(x) AS {_AS_NUMERIC}",
    "format_type": f"(a, b) AS {_FORMAT}",
    "pg_get_userbyid": "(a) AS 'millpond'",
    "pg_encoding_to_char": "(a) AS 'UTF8'",
    "pg_char_to_encoding": "(a) AS 6",
    "pg_client_encoding": "() AS 'UTF8'",
    "current_schemas": "(a) AS CASE WHEN a THEN ['pg_catalog', 'public'] ELSE ['public'] END",
    "pg_my_temp_schema": "() AS 0",
    "pg_is_other_temp_schema": "(a) AS false",
    "pg_is_in_recovery": "() AS true",
    "pg_is_wal_replay_paused": "() AS false",
    "pg_postmaster_start_time": "() AS now()",
    "pg_conf_load_time": "() AS now()",
    "pg_tablespace_location": "(a) AS ''",
    "pg_size_pretty": "(a) AS a || ' bytes'",
    "pg_relation_is_updatable": "(a, b) AS 0",
    "pg_relation_is_publishable": "(a) AS false",
    "pg_column_is_updatable": "(a, b, c) AS false",
    "pg_has_role": f"{_any('true', 3)}",
    "row_security_active": "(a) AS false",
    "generate_subscripts": "(a, b) AS unnest(range(1, len(a) + 1))",
    "_pg_expandarray": "(a) AS unnest(list_transform(a, lambda x, i: {'x': x, 'n': i}))",
    "array_upper": "(a, b) AS CASE WHEN b = 1 AND len(a) > 0 THEN len(a) END",
    "array_lower": "(a, b) AS CASE WHEN b = 1 AND len(a) > 0 THEN 1 END",
    "array_to_string": "(a, b) AS list_aggregate(list_filter(list_transform(a, lambda x: CAST(x AS VARCHAR)), "
    "lambda x: x IS NOT NULL), 'string_agg', b), "
    "(a, b, c) AS list_aggregate(list_transform(a, lambda x: coalesce(CAST(x AS VARCHAR), c)), 'string_agg', b)",
    "quote_ident": f"(a) AS {_quoted('a')}",
    "parse_ident": '(a) AS list_transform(regexp_extract_all(a, \'"[^"]*"|[^."]+\'), lambda x: '
    "CASE WHEN starts_with(x, '\"') THEN replace(x, '\"', '') ELSE lower(x) END)",
    "quote_literal": "(a) AS '''' || replace(a, '''', '''''') || ''''",
    "txid_current": "() AS 1",
    "pg_export_snapshot": "() AS ''",
    "to_regtype": f"(x) AS {_REGTYPE}",
    "regtype": f"(x) AS {_REGTYPE}",
    "regtype_name": f"(a) AS coalesce(MAP {{{_SHOWN}}}[TRY_CAST(CAST(a AS VARCHAR) AS INTEGER)], CAST(a AS VARCHAR))",
    **{f"pg_{kind}_is_visible": "(a) AS true" for kind in _VISIBLE.split()},
    "pg_table_is_visible": f"(a) AS a NOT BETWEEN {HIDDEN_OIDS.start} AND {HIDDEN_OIDS.stop - 1}",
    **{name: _any("CAST(NULL AS VARCHAR)", 4) for name in _NULLS.split()},
    **{name: _any("CAST(0 AS BIGINT)", 2) for name in _ZEROS.split()},
    **{
        f"has_{kind}_privilege": f"(a, b) AS {_may('b')}, (a, b, c) AS {_may('c')}, (a, b, c, d) AS {_may('d')}"
        for kind in _PRIVILEGES.split()
    },
}
# These read relations, so a statement's connection makes them itself.
_OF_RELATIONS: dict[str, str] = {
    "regclass": f"(x) AS {_REGCLASS}",
    "to_regclass": f"(x) AS {_regclass_oid('CAST(x AS VARCHAR)')}",
    "regclass_name": f"(a) AS coalesce((SELECT {_QUOTED} {_CLASS}), (SELECT {_QUOTED} FROM {PREFIX}pg_class WHERE oid = "
    f"{_regclass_oid('CAST(a AS VARCHAR)')}), CAST(a AS VARCHAR))",
    "pg_get_indexdef": f"(a) AS (SELECT indexdef {_CLASS}), "
    f"(a, b, c) AS CASE WHEN b = 0 THEN (SELECT indexdef {_CLASS}) ELSE (SELECT indexcolumns[b] {_CLASS}) END",
    "pg_get_constraintdef": f"(a) AS (SELECT condef FROM {PREFIX}pg_constraint WHERE oid = a), "
    f"(a, b) AS (SELECT condef FROM {PREFIX}pg_constraint WHERE oid = a)",
}
MACROS = frozenset({*_PLAIN, *_OF_RELATIONS})
"""Functions of PostgreSQL that DuckDB lacks, or has otherwise."""
OF_RELATIONS = frozenset(_OF_RELATIONS)
_ALL = {**_PLAIN, **_OF_RELATIONS, **times.MACROS}


def macro(name: str) -> str:
    """The statement that makes a macro; the relations are there already."""
    return f"CREATE OR REPLACE TEMP MACRO {PREFIX}{name}{_ALL[name]}"
