"""The calls of Flight, answered by pyarrow's server, in a thread each.

1. A statement, or a call of the catalogue, is described by a message: GetFlightInfo gives a ticket.
2. DoGet takes the answer of a ticket, in record batches.
3. A prepared statement is a handle that the client carries; its parameters make another one.  It
   comes with the schemas of answer and parameters: JDBC's driver takes a statement without columns
   for one that writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import structs

from millpond.errors import RequestError
from millpond.serve.flight import messages
from millpond.serve.flight.call import Call
from millpond.serve.flight.catalogue import catalogue_batch, catalogue_schema
from millpond.serve.flight.described import Descriptions
from millpond.serve.flight.errors import WRITES, NotTaken, flight_error
from millpond.serve.flight.login import NAME, middleware, no_handler
from millpond.serve.flight.streams import answer, pieces
from millpond.serve.flight.tickets import Signer
from millpond.tables.forms.arrow import pyarrow
from millpond.tables.sql.statement import MOST_BYTES

_QUERIES = ("CommandStatementQuery", "CommandPreparedStatementQuery")
# Of parameters in Arrow's form, with the handle that has them.
_MOST_VALUE_BYTES = 1 << 20
_CANCELLED, _NOT_CANCELLABLE = 1, 3
_ACTIONS = {
    "CreatePreparedStatement": "A handle for a statement.",
    "ClosePreparedStatement": "Ends a handle; the server keeps nothing for it.",
    "CancelFlightInfo": "Cancels a statement.",
    "CancelQuery": "The same, as older clients ask.",
}


class Owner(Protocol):
    """The part of `door.FlightDoor` that the server uses."""

    signer: Signer
    descriptions: Descriptions

    def begin(self, context: Any, /) -> Call:
        """A new call.  Raises TOO_MANY_CONNECTIONS."""

    def end(self, call: Call, error: BaseException | None, /) -> None:
        """A call has ended."""

    def failed(self, error: BaseException, /) -> None:
        """An unexpected error."""

    def cancel(self, number: str, reader: str, /) -> bool:
        """Cancel the running calls of a statement; False if there are none here."""


def start_server(owner: Owner, access: Any, place: str) -> Any:
    """pyarrow's server at a Unix socket, which answers from here on."""
    pa = pyarrow()
    from pyarrow import flight

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        """See the module."""

        def get_flight_info(self, context: Any, descriptor: Any) -> Any:
            with _called(owner, context) as call:
                return _info(call, owner.signer, descriptor)

        def get_schema(self, context: Any, descriptor: Any) -> Any:
            with _called(owner, context) as call:
                name, command = messages.parse_any(_command(descriptor))
                known = catalogue_schema(name, command)
                if known is None:
                    if name not in _QUERIES:
                        raise NotTaken(WRITES)
                    known, _ = owner.descriptions.find(call, _statement(call, owner.signer, name, command))
                return flight.SchemaResult(known)

        def do_get(self, context: Any, ticket: Any) -> Any:
            batches = _batches(owner, context, ticket.ticket)
            return flight.GeneratorStream(next(batches), batches)

        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            with _called(owner, context) as call:
                _bind(pa, call, owner.signer, descriptor, reader, writer)

        def do_action(self, context: Any, action: Any) -> list[bytes]:
            with _called(owner, context) as call:
                return _act(owner, call, action.type, action.body.to_pybytes())

        def list_actions(self, context: Any) -> list[tuple[str, str]]:
            with _called(owner, context):
                return list(_ACTIONS.items())

        def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:  # noqa: ARG002 - pyarrow's
            with _called(owner, context):
                return iter(())

        def do_exchange(self, context: Any, *_: Any) -> None:
            with _called(owner, context):
                raise NotTaken(WRITES)

    return Server(place, auth_handler=no_handler(), middleware={NAME: middleware(access, flight_error)})


@contextmanager
def _called(owner: Owner, context: Any) -> Iterator[Call]:
    """A call that is answered within this context.  Raises pyarrow's errors."""
    call: Call | None = None
    found: BaseException | None = None
    try:
        call = owner.begin(context)
        call.admit()
        yield call
    except BaseException as error:  # noqa: BLE001 - gRPC's thread has no other end
        found = error
        _note(owner, error)
        raise flight_error(error) from None
    finally:
        if call is not None:
            owner.end(call, found)


def _batches(owner: Owner, context: Any, ticket: bytes) -> Iterator[Any]:
    """The schema of an answer, then its record batches.  Raises pyarrow's errors."""
    call: Call | None = None
    found: BaseException | None = None
    try:
        call = owner.begin(context)
        call.admit()
        schema, batches = _taken(call, owner.signer, ticket)
        yield schema
        call.check()
        for batch in batches:
            for piece in pieces(batch):
                call.given_at = time.monotonic()
                yield piece
                call.given_at = None
                call.check()
    except GeneratorExit as gone:
        found = gone
        raise
    except BaseException as error:  # noqa: BLE001 - gRPC's thread has no other end
        found = error
        _note(owner, error)
        raise flight_error(error) from None
    finally:
        if call is not None:
            owner.end(call, found)


def _note(owner: Owner, error: BaseException) -> None:
    kind = flight_error(error)
    if type(kind).__name__ == "FlightInternalError" and kind is not error:
        owner.failed(error)


def _command(descriptor: Any) -> bytes:
    """Raises INVALID_REQUEST."""
    data: bytes | None = descriptor.command
    if data is None:
        raise RequestError("INVALID_REQUEST", "A flight is named by a message of Flight SQL.", hint="Use a client of Flight SQL.")
    return data


def _statement(call: Call, signer: Signer, name: str, command: Any) -> Any:
    """The statement of one of `_QUERIES`."""
    if name == "CommandStatementQuery":
        return call.handle_of(_text(command.query))
    return signer.read(command.prepared_statement_handle, "prepared", call.caller.sha256)


def _text(query: str) -> str:
    if len(query.encode()) > MOST_BYTES:
        raise RequestError("INVALID_STATEMENT", f"The statement has over {MOST_BYTES:,} bytes.", hint="Write a shorter one.")
    return query


def _info(call: Call, signer: Signer, descriptor: Any) -> Any:
    from pyarrow import flight

    data = _command(descriptor)
    name, command = messages.parse_any(data)
    schema = catalogue_schema(name, command)
    if schema is None:
        if name not in _QUERIES:
            raise NotTaken(WRITES)
        ticket = signer.write(_statement(call, signer, name, command), "ticket")
        data = messages.packed("TicketStatementQuery", statement_handle=ticket)
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(flight.Ticket(data), [])], -1, -1)


def _taken(call: Call, signer: Signer, ticket: bytes) -> tuple[Any, Iterator[Any]]:
    name, command = messages.parse_any(ticket)
    if name == "TicketStatementQuery":
        handle = signer.read(command.statement_handle, "ticket", call.caller.sha256)
        call.handle = handle.number
        return answer(call, handle)
    if catalogue_schema(name, command) is None:
        raise NotTaken(WRITES)
    batch = catalogue_batch(call, name, command)
    return batch.schema, iter([batch])


def _bind(pa: Any, call: Call, signer: Signer, descriptor: Any, reader: Any, writer: Any) -> None:
    """Give a prepared statement its parameters: the client gets a handle with them."""
    name, command = messages.parse_any(_command(descriptor))
    if name != "CommandPreparedStatementQuery":
        raise NotTaken(WRITES)
    handle = signer.read(command.prepared_statement_handle, "prepared", call.caller.sha256)
    values = _values(pa, reader)
    made = signer.write(structs.replace(handle, values=values), "prepared")
    writer.write(messages.plain("DoPutPreparedStatementResult", prepared_statement_handle=made))


def _values(pa: Any, reader: Any) -> bytes:
    """One row of parameters in Arrow's IPC form.  Raises INVALID_REQUEST."""
    found = []
    try:
        for chunk in reader:
            if chunk.data is not None and len(chunk.data):
                found.append(chunk.data)
            if len(found) > 1 or (found and len(found[0]) > 1):
                raise RequestError(
                    "INVALID_REQUEST",
                    "There are several rows of parameters, and a statement takes one.",
                    hint="Execute the statement once for each row.",
                )
        if not found:
            raise RequestError("INVALID_REQUEST", "There is no row of parameters.", hint="Bind one row.")
        found[0].validate(full=True)
    except pa.ArrowException as wrong:
        raise RequestError(
            "INVALID_REQUEST", f"The parameters aren't a record batch: {wrong!s:.200}.", hint="Bind a record batch of one row."
        ) from None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found[0].schema.remove_metadata()) as written:
        written.write_batch(found[0].replace_schema_metadata(None))
    data: bytes = sink.getvalue().to_pybytes()
    if len(data) > _MOST_VALUE_BYTES:
        raise RequestError(
            "REQUEST_TOO_LARGE", f"The parameters have over {_MOST_VALUE_BYTES:,} bytes.", hint="Bind fewer or shorter values."
        )
    return data


def _act(owner: Owner, call: Call, name: str, body: bytes) -> list[bytes]:
    acts: dict[str, Callable[[], list[bytes]]] = {
        "CreatePreparedStatement": lambda: _prepare(owner, call, body),
        "ClosePreparedStatement": list,
        "CancelFlightInfo": lambda: [
            messages.plain("CancelFlightInfoResult", status=_cancel(owner, call, _named("CancelFlightInfoRequest", body).info))
        ],
        "CancelQuery": lambda: [
            messages.packed("ActionCancelQueryResult", result=_cancel(owner, call, _named("ActionCancelQueryRequest", body).info))
        ],
    }
    if name not in acts:
        raise NotTaken(f"{WRITES} The action {name[:80]!r} isn't known.")
    return acts[name]()


def _named(wanted: str, body: bytes) -> Any:
    """A message in an Any, or as it is: Flight's own actions have no Any.  Raises INVALID_REQUEST."""
    if wanted.startswith("Action"):
        name, found = messages.parse_any(body)
        if name != wanted:
            raise RequestError("INVALID_REQUEST", f"The body of the action isn't a {wanted}.", hint="Use a client of Flight SQL.")
        return found
    return messages.parse(wanted, body)


def _prepare(owner: Owner, call: Call, body: bytes) -> list[bytes]:
    request = _named("ActionCreatePreparedStatementRequest", body)
    handle = call.handle_of(_text(request.query))
    schemas = [schema.serialize().to_pybytes() for schema in owner.descriptions.find(call, handle)]
    return [
        messages.packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=owner.signer.write(handle, "prepared"),
            dataset_schema=schemas[0],
            parameter_schema=schemas[1],
        )
    ]


def _cancel(owner: Owner, call: Call, info: bytes) -> int:
    """Cancel the statement whose ticket is in a FlightInfo."""
    pa = pyarrow()
    from pyarrow import flight

    try:
        tickets = [each.ticket.ticket for each in flight.FlightInfo.deserialize(info).endpoints]
    except (pa.ArrowException, ValueError):
        raise RequestError("INVALID_REQUEST", "There is no FlightInfo to cancel.", hint="Use a client of Flight SQL.") from None
    for ticket in tickets:
        name, command = messages.parse_any(ticket)
        if name == "TicketStatementQuery":
            handle = owner.signer.read(command.statement_handle, "ticket", call.caller.sha256)
            if owner.cancel(handle.number, call.caller.sha256):
                return _CANCELLED
    return _NOT_CANCELLABLE
