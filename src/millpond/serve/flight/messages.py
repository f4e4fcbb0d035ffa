"""The messages of Flight SQL, declared for protobuf's own library.

Source:  Arrow's format/FlightSql.proto and Flight.proto.  Only the fields that are read or written
         here are declared; others are skipped.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from millpond.errors import RequestError

_PACKAGE = "arrow.flight.protocol.sql"
_PREFIX = "type.googleapis.com/"
_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
}
# Message -> its fields in the order of their numbers: name and kind.  `?` says optional, `*` repeated.
_MESSAGES = {
    "CommandGetSqlInfo": ["info uint32*"],
    "CommandGetXdbcTypeInfo": ["data_type int32?"],
    "CommandGetCatalogs": [],
    "CommandGetDbSchemas": ["catalog string?", "db_schema_filter_pattern string?"],
    "CommandGetTables": [
        "catalog string?",
        "db_schema_filter_pattern string?",
        "table_name_filter_pattern string?",
        "table_types string*",
        "include_schema bool",
    ],
    "CommandGetTableTypes": [],
    "CommandGetPrimaryKeys": ["catalog string?", "db_schema string?", "table string"],
    "CommandGetExportedKeys": ["catalog string?", "db_schema string?", "table string"],
    "CommandGetImportedKeys": ["catalog string?", "db_schema string?", "table string"],
    "CommandGetCrossReference": [],
    "CommandStatementQuery": ["query string", "transaction_id bytes?"],
    "CommandStatementUpdate": ["query string"],
    "CommandStatementIngest": [],
    "CommandStatementSubstraitPlan": [],
    "CommandPreparedStatementQuery": ["prepared_statement_handle bytes"],
    "CommandPreparedStatementUpdate": ["prepared_statement_handle bytes"],
    "TicketStatementQuery": ["statement_handle bytes"],
    "ActionCreatePreparedStatementRequest": ["query string", "transaction_id bytes?"],
    "ActionCreatePreparedStatementResult": ["prepared_statement_handle bytes", "dataset_schema bytes", "parameter_schema bytes"],
    "ActionClosePreparedStatementRequest": ["prepared_statement_handle bytes"],
    "ActionCancelQueryRequest": ["info bytes"],
    "ActionCancelQueryResult": ["result int32"],
    "CancelFlightInfoRequest": ["info bytes"],
    "CancelFlightInfoResult": ["status int32"],
    "DoPutPreparedStatementResult": ["prepared_statement_handle bytes?"],
    # Of Flight itself, with its descriptor as bytes: any message of a client can be read as one.
    "FlightData": ["flight_descriptor bytes", "data_header bytes", "app_metadata bytes"],
}


def _declare() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="millpond/flight_sql.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, 1):
            field, kind = text.split(" ")
            made = message.field.add(name=field, number=number, type=_KINDS[kind.rstrip("?*")], label=_FIELD.LABEL_OPTIONAL)
            if kind.endswith("*"):
                made.label = _FIELD.LABEL_REPEATED
            elif kind.endswith("?"):
                made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    pool = descriptor_pool.DescriptorPool()  # of our own: another library may declare the same names
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


MESSAGES = _declare()


def parse_any(data: bytes) -> tuple[str, Any]:
    """The name and the fields of a message in an Any.  Raises INVALID_REQUEST for others than those above."""
    packed = any_pb2.Any()
    try:
        packed.ParseFromString(data)
    except DecodeError:
        raise _invalid("It isn't a message of Flight SQL.") from None
    name = packed.type_url.rpartition(f"{_PACKAGE}.")[2] if packed.type_url.startswith(_PREFIX + _PACKAGE) else ""
    if name not in MESSAGES:
        raise _invalid(f"The message {packed.type_url[:120]!r} isn't known.")
    return name, parse(name, packed.value)


def parse(name: str, data: bytes) -> Any:
    """A message by its name.  Raises INVALID_REQUEST."""
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError:
        raise _invalid(f"It isn't a message {name}.") from None


def packed(name: str, **fields: Any) -> bytes:
    """A message in an Any."""
    data: bytes = any_pb2.Any(type_url=f"{_PREFIX}{_PACKAGE}.{name}", value=plain(name, **fields)).SerializeToString()
    return data


def plain(name: str, **fields: Any) -> bytes:
    """The bytes of a message."""
    data: bytes = MESSAGES[name](**fields).SerializeToString()
    return data


def _invalid(found: str) -> RequestError:
    return RequestError("INVALID_REQUEST", found, hint="Ask with a client of Flight SQL, such as adbc-driver-flightsql.")
