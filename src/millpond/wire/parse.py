"""Questions from JSON and from URLs: one parser for all that `questions` declares.

In a URL each field is a control, its name after an underscore: texts and numbers as they are, yes
and no as 1 and 0, objects as JSON, lists separated by commas.  The fields of `bounds` are controls
of their own.  All other parameters are key columns.

This only checks the form and the server's limits.  The read checks what a value means, so that
every door gives the same error.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.prepared import ready
from millpond.schema.values import Json, decode_json, with_floats
from millpond.settings import ServeSettings
from millpond.tables.job.bounds import Bounds
from millpond.wire.declare import Field, fields
from millpond.wire.keys import parse_pairs
from millpond.wire.query import Pairs, split_controls
from millpond.wire.questions import Question, When

Asking = TypeVar("Asking", bound=msgspec.Struct)
QuestionType = TypeVar("QuestionType", bound=Question)
LIMITS = {"limit": "max_rows", "keys": "max_keys", "wait_seconds": "max_seconds"}
"""Fields that a server's settings limit -> that setting."""
_FLAGS = {"1": True, "true": True, "0": False, "false": False}
_CONDITIONS = {"limit": "INVALID_LIMIT", "bounds": "INVALID_BOUND"}
_DIGITS = 18
# Fields with another form in URLs.
_COLUMNS = frozenset({"key", "keys", "bounds"})


class Asked(NamedTuple, Generic[QuestionType]):
    """A question as it came: a key from a URL is still pairs of column and text."""

    question: QuestionType
    columns: Pairs

    def typed(self, definition: TableDefinition) -> QuestionType:
        """The question, its keys by the types of a table.  Raises WRONG_TYPE, INVALID_REQUEST."""
        question = self.question.typed(definition)
        if not self.columns:
            return question
        return structs.replace(question, key=parse_pairs(definition, self.columns, by_value=question.is_by_value))


@lru_cache
def controls(kind: type[msgspec.Struct], only: tuple[str, ...] | None = None) -> dict[str, Field]:
    """The controls of this question in a URL, by name.

    only:  the names to allow; None for all
    """
    own = fields(kind)
    bounds = fields(Bounds) if "bounds" in own else {}
    found = {
        **{name: field for name, field in own.items() if name not in _COLUMNS},
        **{n: f for n, f in bounds.items() if n not in own},
    }
    return {f"_{name}": field for name, field in found.items() if only is None or name in only}


def parse_url(
    kind: type[Asking], pairs: Pairs, settings: ServeSettings, *, only: tuple[str, ...] | None = None
) -> tuple[Asking, Pairs]:
    """A question from the pairs of a URL, and the pairs that are columns.

    Raises:  INVALID_REQUEST, INVALID_LIMIT, INVALID_BOUND.
    """
    known = controls(kind, only)
    columns, given = split_controls(pairs, tuple(known))
    own = fields(kind)
    members: dict[str, Any] = {}
    bounds: dict[str, Any] = {}
    for name, text in given.items():
        place = members if name[1:] in own else bounds
        place[name[1:]] = _from_text(name, text, known[name], "bounds" if place is bounds else name[1:])
    if bounds:
        members["bounds"] = bounds
    return _made(kind, members, settings), columns


def parse_json(kind: type[Asking], data: Json, settings: ServeSettings) -> Asking:
    """A question from a decoded JSON object.  Raises as `parse_url`."""
    if not isinstance(data, dict) or not data.keys() <= fields(kind).keys():
        raise RequestError(
            "INVALID_REQUEST",
            "The body must be an object, with only the members that the route takes.",
            hint=f"Its members may be: {', '.join(sorted(fields(kind)))}.",
        )
    return _made(kind, data, settings)


def parse_when(text: str | None) -> When:
    """A batch's number if the text is one; else the text: a time or a token."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS else text


def _made(kind: type[Asking], members: dict[str, Any], settings: ServeSettings) -> Asking:
    _check_limits(members, settings)
    given = {**members, **({"offsets": with_floats(members["offsets"])} if "offsets" in members else {})}
    try:
        made = msgspec.convert(given, ready(kind))
    except msgspec.ValidationError as wrong:
        raise _refused(str(wrong)) from None
    bounds = getattr(made, "bounds", None)
    return made if bounds is None else structs.replace(made, bounds=_bounds(bounds, settings))


def _check_limits(members: dict[str, Any], settings: ServeSettings) -> None:
    """Raise INVALID_LIMIT or INVALID_REQUEST if a member exceeds the server's limits."""
    limit, keys = members.get("limit"), members.get("keys")
    if limit is not None and not (type(limit) is int and 1 <= limit <= settings.max_rows):
        raise RequestError(
            "INVALID_LIMIT",
            f"A limit must be a whole number from 1 to {settings.max_rows}, not {limit!r:.40}.",
            hint=f"Use _limit={settings.max_rows} at most; read a whole table with Python: pond[name].to_arrow().",
            maximum=settings.max_rows,
        )
    if isinstance(keys, list) and len(keys) > settings.max_keys:
        raise RequestError(
            "INVALID_LIMIT",
            f"A request may ask for {settings.max_keys} keys, not {len(keys)}.",
            hint=f"Send {settings.max_keys} keys at a time.",
            maximum=settings.max_keys,
        )
    for name, maximum in (("wait_seconds", settings.max_seconds), ("max_behind_seconds", math.inf)):
        if name in members:
            _check_seconds(name, members[name], maximum)


def _check_seconds(name: str, seconds: Any, maximum: float) -> None:
    is_number = isinstance(seconds, int | float | Decimal) and not isinstance(seconds, bool)
    if not (is_number and 0 <= seconds <= maximum and math.isfinite(seconds)):
        most = f" up to {maximum:g}" if math.isfinite(maximum) else ""
        raise RequestError(
            "INVALID_REQUEST", f"{name} is {str(seconds)[:40]!r}, which isn't a number of seconds{most}.", hint="Write it like 2.5."
        )


def _bounds(data: Any, settings: ServeSettings) -> Bounds:
    """Bounds from decoded JSON.  Raises INVALID_BOUND."""
    if not data.keys() <= fields(Bounds).keys():
        raise _invalid_bound(f"bounds must be an object of {', '.join(sorted(fields(Bounds)))}")
    # Without this check, JSON's null would mean no bound.
    if any(value is None for value in data.values()):
        raise _invalid_bound("a bound is null")
    given: dict[str, Any] = {name: float(value) if isinstance(value, Decimal) else value for name, value in data.items()}
    bounds = Bounds(**given)
    if bounds.wait_seconds > settings.max_seconds:
        raise _invalid_bound(f"wait_seconds is {bounds.wait_seconds:g}, but a request may take {settings.max_seconds:g}")
    return bounds


def _from_text(name: str, text: str, field: Field, member: str) -> Any:
    """A control's value in JSON's form.

    Raises:  the condition in `_CONDITIONS` for the member, else INVALID_REQUEST.
    """
    kinds = field.kinds
    try:
        if dict in kinds:
            return decode_json(text)
        if bool in kinds:
            return _FLAGS[text]
        if list in kinds:
            return text.split(",")
        if kinds == {int, str}:
            return parse_when(text)
        if int in kinds:
            number = text.removeprefix("-")
            return int(text) if number.isascii() and number.isdigit() and len(number) <= _DIGITS else _no_number(text)
        return float(text) if float in kinds else text
    except (ValueError, KeyError) as wrong:
        if member == "limit":
            return text  # refused later, with the allowed values
        what = f"isn't JSON: {wrong}" if dict in kinds else f"can't be {text[:40]!r}"
        hint = f'Write it like {name}={{"page":"/"}}.' if dict in kinds else f"Write {name}=1." if bool in kinds else _NUMBER
        raise RequestError(_CONDITIONS.get(member, "INVALID_REQUEST"), f"{name} {what}.", hint=hint) from None


_NUMBER = "Write a number."


def _no_number(text: str) -> int:
    raise ValueError(text)


def _refused(wrong: str) -> RequestError:
    """msgspec's message about a member, as an error of ours."""
    what, _, place = wrong.partition(" - at `$.")
    member = place.rstrip("`")
    name = member.partition(".")[0].partition("[")[0]
    message = f"{member} can't be so: {what[0].lower()}{what[1:]}" if member else what
    hint = "Look at /openapi.json for its members and their types." if member else "Send a JSON object."
    context = {"member": member} if member else {}
    return RequestError(_CONDITIONS.get(name, "INVALID_REQUEST"), f"{message}.", hint=hint, **context)


def _invalid_bound(what: str) -> RequestError:
    return RequestError("INVALID_BOUND", f"{what}.", hint="Write bounds as docs/reads.md and docs/http.md show them.")
