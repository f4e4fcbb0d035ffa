"""The catalogue that clients ask: pg_catalog and information_schema, of the tables that a reader may read.

`catalog.txt` has the columns of PostgreSQL 15's own relations, of which most are empty here.  A line
is a relation and its columns with a letter for the type, see `_TYPES`.

Shape:  a catalogue is JSON, {"database": …, "user": …, "tables": [{"name": …, "key": [names],
        "columns": [[name, name of the type, modifier]]}]}.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from millpond.serve.sql.postgres.functions import HIDDEN_OIDS
from millpond.serve.sql.postgres.names import quoted
from millpond.serve.sql.postgres.types import BY_NAME, TYPES, PgType

# The letters of catalog.txt: a name of a type of pyarrow, and the value of a column that nobody gives.
_TYPES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "o": (lambda pa: pa.uint32(), 0),
    "s": (lambda pa: pa.string(), None),
    "b": (lambda pa: pa.bool_(), False),
    "h": (lambda pa: pa.int16(), 0),
    "i": (lambda pa: pa.int32(), 0),
    "q": (lambda pa: pa.int64(), 0),
    "f": (lambda pa: pa.float32(), 0.0),
    "d": (lambda pa: pa.float64(), 0.0),
    "t": (lambda pa: pa.timestamp("us", tz="UTC"), None),
    "H": (lambda pa: pa.list_(pa.int16()), None),
    "O": (lambda pa: pa.list_(pa.uint32()), None),
    "S": (lambda pa: pa.list_(pa.string()), None),
    "F": (lambda pa: pa.list_(pa.float32()), None),
}
# Columns that PostgreSQL's relations don't have: what macros show.
_OWN = {"pg_class": "indexdef:s indexcolumns:S", "pg_constraint": "condef:s"}


def _read() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in (Path(__file__).parent / "catalog.txt").read_text().splitlines():
        name, *columns = line.split()
        found[name] = dict(each.rsplit(":", 1) for each in (*columns, *_OWN.get(name, "").split()))
    found["pg_get_keywords"] = {"word": "s", "catcode": "s", "barelabel": "b", "catdesc": "s", "baredesc": "s"}
    return found


RELATIONS = _read()
"""relation -> column -> letter of its type"""

_CATALOG, _PUBLIC, _INFORMATION = 11, 2200, 13_000
_OWNER, _DATABASE, _HEAP, _BTREE, _TABLESPACE = 10, 5, 2, 403, 1663
_FIRST_OID, _FIRST_RELATION = 16_384, 12_000
Row = dict[str, Any]


class Catalog:
    """The relations of one reader.

    known:     the catalogue as JSON
    settings:  of the session
    """

    def __init__(self, known: dict[str, Any], settings: dict[str, str]) -> None:
        self._tables: list[dict[str, Any]] = known["tables"]
        self._database, self._user, self._settings = known["database"], known["user"], settings

    def arrow(self, relation: str) -> Any:
        """A relation as a pyarrow.Table."""
        import pyarrow as pa

        columns = RELATIONS[relation]
        make = getattr(self, "_" + relation.replace("information_schema.", "is_"), None)
        rows = list(make()) if make is not None else []
        shape = pa.schema([pa.field(name, _TYPES[letter][0](pa)) for name, letter in columns.items()])
        absent = {name: None if relation.startswith("information_schema.") else _TYPES[columns[name]][1] for name in columns}
        found = {name: pa.array([row.get(name, absent[name]) for row in rows], shape.field(name).type) for name in columns}
        return pa.table(found, schema=shape)

    @cached_property
    def _oids(self) -> dict[str, int]:
        """A number for each table and index, which stays as long as its name does."""
        taken, found = set[int](), {}
        names = sorted(each["name"] for each in self._tables)
        for name in [*names, *(f"{name}_pkey" for name in names), *(f"constraint {name}" for name in names)]:
            number = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4).digest()) >> 1
            while number < _FIRST_OID or number in taken:
                number += 1
            taken.add(number)
            found[name] = number
        return found

    def _keyed(self) -> Iterator[dict[str, Any]]:
        return (table for table in self._tables if table["key"])

    def _places(self, table: dict[str, Any]) -> list[int]:
        """The numbers of the key's columns."""
        order = [column[0] for column in table["columns"]]
        return [order.index(name) + 1 for name in table["key"]]

    # ------------------------------------------------------------ pg_catalog

    def _pg_namespace(self) -> Iterator[Row]:
        for oid, name in ((_CATALOG, "pg_catalog"), (_PUBLIC, "public"), (_INFORMATION, "information_schema")):
            yield {"oid": oid, "nspname": name, "nspowner": _OWNER}

    def _pg_class(self) -> Iterator[Row]:
        plain = {
            "relowner": _OWNER,
            "relpersistence": "p",
            "relreplident": "n",
            "relispopulated": True,
            "reltuples": -1.0,
            "relacl": ["=r/millpond"],
            "relnamespace": _PUBLIC,
        }
        for number, full in enumerate(sorted(RELATIONS), _FIRST_RELATION):
            schema, _, name = full.rpartition(".")
            place, oid = (_INFORMATION, number + HIDDEN_OIDS.start - _FIRST_RELATION) if schema else (_CATALOG, number)
            yield {**plain, "oid": oid, "relname": name, "relkind": "v" if schema else "r", "relnamespace": place}
        for table in self._tables:
            yield {
                **plain,
                "oid": self._oids[table["name"]],
                "relname": table["name"],
                "relam": _HEAP,
                "relkind": "r",
                "relnatts": len(table["columns"]),
                "relhasindex": bool(table["key"]),
                "relreplident": "d",
            }
        for table in self._keyed():
            name, keys = f"{table['name']}_pkey", [quoted(each) for each in table["key"]]
            definition = f"CREATE UNIQUE INDEX {quoted(name)} ON public.{quoted(table['name'])} USING btree ({', '.join(keys)})"
            yield {
                **plain,
                "oid": self._oids[name],
                "relname": name,
                "relam": _BTREE,
                "relkind": "i",
                "relnatts": len(keys),
                "indexdef": definition,
                "indexcolumns": keys,
            }

    def _pg_attribute(self) -> Iterator[Row]:
        for table in self._tables:
            places = self._places(table)
            yield from self._attributes(self._oids[table["name"]], table["columns"])
            if places:
                yield from self._attributes(self._oids[f"{table['name']}_pkey"], [table["columns"][n - 1] for n in places])

    def _attributes(self, oid: int, columns: list[list[Any]]) -> Iterator[Row]:
        for number, (name, type_name, modifier) in enumerate(columns, 1):
            type_ = BY_NAME[type_name]
            is_text = type_name in ("text", "varchar", "name")
            yield {
                "attrelid": oid,
                "attname": name,
                "atttypid": type_.oid,
                "attlen": type_.length,
                "attnum": number,
                "attcacheoff": -1,
                "atttypmod": modifier,
                "attndims": int(type_.element is not None),
                "attbyval": 0 < type_.length <= 8,
                "attstorage": "p" if type_.length > 0 else "x",
                "attalign": "i",
                "attislocal": True,
                "attstattarget": -1,
                "attcollation": 100 if is_text else 0,
                "attidentity": "",
                "attgenerated": "",
                "attcompression": "",
            }

    def _pg_type(self) -> Iterator[Row]:
        yield from map(_type_row, TYPES)

    def _pg_index(self) -> Iterator[Row]:
        for table in self._keyed():
            places = self._places(table)
            yield {
                "indexrelid": self._oids[f"{table['name']}_pkey"],
                "indrelid": self._oids[table["name"]],
                "indnatts": len(places),
                "indnkeyatts": len(places),
                "indisunique": True,
                "indisprimary": True,
                "indimmediate": True,
                "indisvalid": True,
                "indisready": True,
                "indislive": True,
                "indkey": places,
                "indcollation": [0] * len(places),
                "indclass": [0] * len(places),
                "indoption": [0] * len(places),
            }

    def _pg_constraint(self) -> Iterator[Row]:
        for table in self._keyed():
            keys = ", ".join(map(quoted, table["key"]))
            yield {
                "oid": self._oids[f"constraint {table['name']}"],
                "conname": f"{table['name']}_pkey",
                "connamespace": _PUBLIC,
                "contype": "p",
                "convalidated": True,
                "conrelid": self._oids[table["name"]],
                "conindid": self._oids[f"{table['name']}_pkey"],
                "confupdtype": " ",
                "confdeltype": " ",
                "confmatchtype": " ",
                "conislocal": True,
                "connoinherit": True,
                "conkey": self._places(table),
                "condef": f"PRIMARY KEY ({keys})",
            }

    def _pg_database(self) -> Iterator[Row]:
        yield {
            "oid": _DATABASE,
            "datname": self._database,
            "datdba": _OWNER,
            "encoding": 6,
            "datlocprovider": "c",
            "datallowconn": True,
            "datconnlimit": -1,
            "dattablespace": _TABLESPACE,
            "datcollate": "C",
            "datctype": "C",
        }

    def _pg_tablespace(self) -> Iterator[Row]:
        yield {"oid": _TABLESPACE, "spcname": "pg_default", "spcowner": _OWNER}

    def _pg_am(self) -> Iterator[Row]:
        yield {"oid": _HEAP, "amname": "heap", "amhandler": "heap_tableam_handler", "amtype": "t"}
        yield {"oid": _BTREE, "amname": "btree", "amhandler": "bthandler", "amtype": "i"}

    def _pg_collation(self) -> Iterator[Row]:
        for oid, name in ((100, "default"), (950, "C")):
            yield {"oid": oid, "collname": name, "collnamespace": _CATALOG, "collowner": _OWNER, "collencoding": -1}

    def _pg_roles(self) -> Iterator[Row]:
        for oid, name in ((_OWNER, "millpond"), (_FIRST_OID, self._user)):
            yield {"oid": oid, "rolname": name, "rolinherit": True, "rolcanlogin": oid != _OWNER, "rolconnlimit": -1}

    _pg_authid = _pg_roles

    def _pg_user(self) -> Iterator[Row]:
        yield {"usename": self._user, "usesysid": _FIRST_OID}

    def _pg_settings(self) -> Iterator[Row]:
        for name, value in sorted(self._settings.items()):
            yield {"name": name, "setting": value, "category": "", "context": "user", "vartype": "string", "source": "session"}

    def _pg_tables(self) -> Iterator[Row]:
        for table in self._tables:
            yield {"schemaname": "public", "tablename": table["name"], "tableowner": "millpond", "hasindexes": bool(table["key"])}

    def _pg_indexes(self) -> Iterator[Row]:
        for row in self._pg_class():
            if row["relkind"] == "i":
                name = row["relname"]
                place = {"schemaname": "public", "tablename": name.removesuffix("_pkey"), "indexname": name}
                yield {**place, "indexdef": row["indexdef"]}

    def _pg_stat_user_tables(self) -> Iterator[Row]:
        for table in self._tables:
            yield {"relid": self._oids[table["name"]], "schemaname": "public", "relname": table["name"]}

    _pg_stat_all_tables = _pg_stat_user_tables

    # ------------------------------------------------------------ information_schema

    def _is_schemata(self) -> Iterator[Row]:
        for row in self._pg_namespace():
            yield {"catalog_name": self._database, "schema_name": row["nspname"], "schema_owner": "millpond"}

    def _is_information_schema_catalog_name(self) -> Iterator[Row]:
        yield {"catalog_name": self._database}

    def _is_tables(self) -> Iterator[Row]:
        for table in self._tables:
            yield {**self._place(table), "table_type": "BASE TABLE", "is_insertable_into": "NO", "is_typed": "NO"}

    def _is_columns(self) -> Iterator[Row]:
        for table in self._tables:
            for number, (name, type_name, modifier) in enumerate(table["columns"], 1):
                type_ = BY_NAME[type_name]
                yield {
                    **self._place(table),
                    "column_name": name,
                    "ordinal_position": number,
                    "is_nullable": "YES",
                    "data_type": "ARRAY" if type_.element is not None else type_.shown,
                    **_precision(type_, modifier),
                    "udt_catalog": self._database,
                    "udt_schema": "pg_catalog",
                    "udt_name": type_name,
                    "dtd_identifier": str(number),
                    "is_self_referencing": "NO",
                    "is_identity": "NO",
                    "is_generated": "NEVER",
                    "is_updatable": "NO",
                }

    def _is_table_constraints(self) -> Iterator[Row]:
        for table in self._keyed():
            yield {
                **self._constraint(table),
                **self._place(table),
                "constraint_type": "PRIMARY KEY",
                "is_deferrable": "NO",
                "initially_deferred": "NO",
                "enforced": "YES",
            }

    def _is_key_column_usage(self) -> Iterator[Row]:
        for table in self._keyed():
            for number, name in enumerate(table["key"], 1):
                yield {**self._constraint(table), **self._place(table), "column_name": name, "ordinal_position": number}

    def _is_constraint_column_usage(self) -> Iterator[Row]:
        yield from self._is_key_column_usage()

    def _is_table_privileges(self) -> Iterator[Row]:
        for table in self._tables:
            yield {**self._place(table), "grantor": "millpond", "grantee": self._user, "privilege_type": "SELECT"}

    _is_role_table_grants = _is_table_privileges

    def _place(self, table: dict[str, Any]) -> Row:
        return {"table_catalog": self._database, "table_schema": "public", "table_name": table["name"]}

    def _constraint(self, table: dict[str, Any]) -> Row:
        return {
            "constraint_catalog": self._database,
            "constraint_schema": "public",
            "constraint_name": f"{table['name']}_pkey",
        }


def _type_row(type_: PgType) -> Row:
    return {
        "oid": type_.oid,
        "typname": type_.name,
        "typnamespace": _CATALOG,
        "typowner": _OWNER,
        "typlen": type_.length,
        "typbyval": 0 < type_.length <= 8,
        "typtype": "b",
        "typcategory": type_.category,
        "typispreferred": type_.name in ("bool", "text", "oid", "float8", "timestamptz", "interval"),
        "typisdefined": True,
        "typdelim": ",",
        "typelem": type_.element.oid if type_.element is not None else 0,
        "typarray": type_.array_oid,
        "typinput": "array_in" if type_.element is not None else f"{type_.name}in",
        "typoutput": "array_out" if type_.element is not None else f"{type_.name}out",
        "typreceive": "array_recv" if type_.element is not None else f"{type_.name}recv",
        "typsend": "array_send" if type_.element is not None else f"{type_.name}send",
        "typmodin": "-",
        "typmodout": "-",
        "typanalyze": "-",
        "typalign": "i",
        "typstorage": "p" if type_.length > 0 else "x",
        "typtypmod": -1,
        "typcollation": 100 if type_.name in ("text", "varchar", "name") else 0,
    }


def _precision(type_: PgType, modifier: int) -> Row:
    bits = {"int2": 16, "int4": 32, "int8": 64, "float4": 24, "float8": 53}.get(type_.name)
    if bits is not None:
        is_whole = type_.name.startswith("int")
        return {"numeric_precision": bits, "numeric_precision_radix": 2, "numeric_scale": 0 if is_whole else None}
    if type_.name == "numeric" and modifier >= 4:
        packed = modifier - 4
        return {"numeric_precision": packed >> 16, "numeric_precision_radix": 10, "numeric_scale": packed & 65535}
    if type_.name == "date":
        return {"datetime_precision": 0}
    return {"datetime_precision": 6} if type_.name in ("timestamp", "timestamptz", "time", "interval") else {}
