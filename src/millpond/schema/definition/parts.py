"""Tables whose rows lie in parts of one store: the first column of its key says which part a row is in.

    copies   every part has the same rows: rules and models, of which every instance has a copy
    shares   every part has a share of a row, for an instance or for a salt; functions merge these

Readers see one table without that column.  The job's side describes parts in the metadata of its
grouping column:

    {"millpond_parts": {"values": [3, 7], "variables": {"rules": "copies", "usage": {"rows": "sum", "slowest": "max"}}}}

`variables` are those of transformWithState; a variable that isn't named is shown as it is stored.
An aggregation has none: its functions are enough.  `computed` adds columns to those of a variable,
{"usage": {"average": ["mean", "seconds", "rows"], "since": ["time", "since_ms"]}}: a mean is a sum
divided by a count, and follows the sum; a time replaces its milliseconds since 1970.  `fixed` names
further choices that a checkpoint can't change, as texts: {"inputs": ["acidity double"]}.  `pond` is
the URI of the only pond in which the job may start; a definition doesn't have it, since a pond may
be moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millpond.schema.definition.expression import Expression, buffer_column, parse_expression
from millpond.schema.types import INTEGERS, Field, SparkType, atomic, parse_type

Json = Any
METADATA = "millpond_parts"
SPREAD = "millpond_spread"
"""In the metadata of a grouping column that only spreads rows, and may differ at the next start."""
COPIES = "copies"
# The functions that merge columns of state variables.
FUNCTIONS = frozenset({"sum", "min", "max"})
# The functions that compute columns, and their numbers of operands.
_COMPUTED = {"mean": 2, "time": 1}
# Aggregate functions whose parts can be merged. `first` and `last` can't, since the order of parts
# is unknown. Each has its possible numbers of buffers, none if any number is.
_MERGEABLE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("count", "min", "max", "bit_and", "bit_or", "bit_xor", "collect_list", "collect_set"), (1,)),
    **dict.fromkeys(("avg", "min_by", "max_by"), (2,)),
    **dict.fromkeys(("stddev_pop", "stddev_samp", "var_pop", "var_samp", "min_by_k", "max_by_k"), (3,)),
    "sum": (1, 2),
    "skewness": (4,),
    "kurtosis": (5,),
    "covar_pop": (4,),
    "covar_samp": (4,),
    "corr": (6,),
    **dict.fromkeys(("percentile", "percentile_disc", "percentile_approx", "mode", "listagg", "product"), (1,)),
    **dict.fromkeys(("hll_sketch", "theta_sketch", "kll_sketch", "approx_top_k"), (1,)),
    **dict.fromkeys(("regr_slope", "regr_intercept"), (7,)),
    "regr_sxx": (3,),
    "regr_sxy": (4,),
    "regr_r2": (6,),
    "approx_count_distinct": (),
}
_ADDED = INTEGERS | {"float", "double", "decimal", "year_month_interval", "day_time_interval"}
# Function -> the buffer whose type decides.
_COMPARES = {"min": 0, "max": 0, "min_by": 1, "max_by": 1, "min_by_k": 1, "max_by_k": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How one table lies in parts.

    column:  the first column of the state's key row: a whole number, or a struct of nothing else
    values:  its values, ascending
    merges:  `aggregate` expressions that each merge the shares in their buffers; None if parts are
             copies
    """

    column: Field
    values: tuple[int, ...]
    merges: tuple[Expression, ...] | None

    def key(self, value: int) -> Any:
        """The stored form of the column for the part with this value."""
        return (value,) if self.column.type.kind == "struct" else value

    def to_json(self) -> Json:
        merges = None if self.merges is None else [m.to_json() for m in self.merges]
        return {
            "column": {"name": self.column.name, "type": self.column.type.to_json()},
            "values": list(self.values),
            "merges": merges,
        }

    def describe(self) -> str:
        """In words that a person can compare."""
        return f"{'copies' if self.merges is None else 'shares'} in {len(self.values)} parts: {_listed(self.values)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableParts:
    """How the state variables of transformWithState lie in parts.

    values:     of the grouping column, ascending
    variables:  name -> COPIES, or the function of FUNCTIONS for each of its columns
    computed:   name -> computed column -> its function and operands
    fixed:      further fixed choices, e.g. inputs -> each column with its type
    pond:       the URI of the only pond in which the job may start; None for any
    """

    values: tuple[int, ...]
    variables: Mapping[str, str | Mapping[str, str]]
    computed: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    fixed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pond: str | None = field(default=None, compare=False)

    def to_json(self) -> Json:
        variables = {name: how if isinstance(how, str) else dict(how) for name, how in self.variables.items()}
        out = {"values": list(self.values), "variables": variables}
        computed = {name: {column: list(how) for column, how in columns.items()} for name, columns in self.computed.items()}
        fixed = {name: list(buffers) for name, buffers in self.fixed.items()}
        return {**out, **({"computed": computed} if computed else {}), **({"fixed": fixed} if fixed else {})}

    def describe(self) -> str:
        """In words that a person can compare."""
        texts = [f"{name}: {', '.join(of)}" for name, of in self.fixed.items()]
        return "; ".join([f"{', '.join(sorted(self.variables))} in {len(self.values)} parts: {_listed(self.values)}", *texts])

    def of(self, variable: str, key: tuple[Field, ...], value: tuple[Field, ...]) -> Parts | None:
        """The parts of one variable with these columns; None if it isn't named."""
        how = self.variables.get(variable)
        if how is None or not key:
            return None
        merges = None if isinstance(how, str) else _merges(how, value)
        return Parts(column=key[0], values=self.values, merges=merges)


def computed_columns(columns: Sequence[tuple[str, int, SparkType]], made: Mapping[str, Sequence[str]]) -> list[Computed]:
    """The computed columns whose operands exist and have the right types.

    columns:  names, places in the value row, and types
    """
    known = {name: (place, type_) for name, place, type_ in columns}
    out = []
    for name, (how, *of) in made.items():
        found = [known[column] for column in of if column in known]
        kinds = [type_.kind for _, type_ in found]
        if how == "mean" and kinds == ["double", "long"]:
            options = {"function": "avg", "buffers": [place for place, _ in found], "mode": "ansi"}
            out.append(Computed(name, of[0], False, Expression("aggregate", found[0][1], options=options)))
        elif how == "time" and kinds == ["long"]:
            ((place, type_),) = found
            expression = Expression("timestamp_millis", atomic("timestamp"), (buffer_column(place, type_),))
            out.append(Computed(name, of[0], True, expression))
    return out


def _merges(functions: Mapping[str, str], value: tuple[Field, ...]) -> tuple[Expression, ...]:
    # A column without a function is reported when the table is read.
    return tuple(
        Expression("aggregate", f.type, options={"function": functions[f.name], "buffers": [i], "mode": "ansi"})
        for i, f in enumerate(value)
        if f.name in functions
    )


class Computed(NamedTuple):
    """A column computed from others.

    of:          the first of these
    is_instead:  whether it replaces that one; else it follows it
    """

    name: str
    of: str
    is_instead: bool
    expression: Expression


def parse_parts(data: Json) -> Parts | None:
    """Turn the JSON form back.

    Raises:  ValueError, KeyError or TypeError if it is invalid; DEFINITION_MISMATCH.
    """
    if data is None:
        return None
    column = Field(data["column"]["name"], parse_type(data["column"]["type"]))
    number_type(column.type)
    merges = None if data["merges"] is None else tuple(parse_expression(m) for m in data["merges"])
    for merge in merges or ():
        if merge.op != "aggregate" or not isinstance(merge.options["function"], str):
            raise ValueError("an expression that merges its parts isn't an aggregate function")
    return Parts(column=column, values=_values(data["values"]), merges=merges)


def parse_variable_parts(data: Json) -> VariableParts | None:
    """The same for variables, also in the form of metadata.

    Raises:  ValueError, KeyError or TypeError if it is invalid.
    """
    if data is None:
        return None
    variables = data.get("variables", {})
    if not isinstance(variables, dict):
        raise ValueError("its variables aren't named")
    for name, how in variables.items():
        functions = None if how == COPIES else how
        if functions is not None and (not isinstance(functions, dict) or not FUNCTIONS.issuperset(functions.values())):
            raise ValueError(f"the parts of {name} are {how!r:.80}: {COPIES!r}, or one of {', '.join(sorted(FUNCTIONS))} a column")
    computed = data.get("computed", {})
    made = [how for columns in computed.values() for how in columns.values()]
    if not all(isinstance(how, list) and how and _COMPUTED.get(how[0]) == len(how) - 1 for how in made):
        raise ValueError(f"its computed columns are {computed!r:.80}: [one of {', '.join(_COMPUTED)}, columns]")
    fixed = {name: [str(text) for text in names] for name, names in data.get("fixed", {}).items()}
    pond = data.get("pond")
    if pond is not None and not isinstance(pond, str):
        raise ValueError(f"its pond is {pond!r:.80}")
    return VariableParts(values=_values(data["values"]), variables=variables, computed=computed, fixed=fixed, pond=pond)


def why_not_merged(expression: Expression, buffers: Sequence[SparkType]) -> str | None:
    """Why the parts of an `aggregate` expression can't be merged into the whole; None if they can.

    buffers:  the types of all columns of the value row
    """
    options = expression.options
    function, types = options["function"], [buffers[place] for place in options["buffers"]]
    text = options.get("sql", function)
    if function not in _MERGEABLE:
        return f"{text}: the parts of {function} can't be merged"
    widths = _MERGEABLE[function]
    if not types or (widths and len(types) not in widths):
        return f"{text}: it has {len(types)} buffers"
    if function in _COMPARES:
        compared = types[_COMPARES[function]]
        if function.endswith("_k") and compared.element is not None:
            compared = compared.element
        if not is_comparable(compared):
            return f"{text}: {compared} has no order that is known here"
    if function in ("sum", "avg") and types[0].kind not in _ADDED:
        return f"{text}: values of type {types[0]} can't be added"
    return None


def is_comparable(type_: SparkType) -> bool:
    """Whether Millpond knows the order of a type's values: not that of texts with a collation."""
    if type_.kind == "struct":
        return all(is_comparable(f.type) for f in type_.fields)
    if type_.kind == "array" and type_.element is not None:
        return is_comparable(type_.element)
    return type_.is_ordered and not (type_.kind == "string" and type_.name != "string")


def number_type(column: SparkType) -> SparkType:
    """The type of a part's number, in the column or in its struct.  Raises ValueError for other types."""
    inner = column.fields[0].type if column.kind == "struct" and len(column.fields) == 1 else column
    if inner.kind not in INTEGERS:
        raise ValueError(f"parts are numbered by a whole number, not by {column}")
    return inner


def _values(values: Json) -> tuple[int, ...]:
    if not isinstance(values, list) or not values or any(not isinstance(v, int) or isinstance(v, bool) for v in values):
        raise ValueError("its parts aren't numbered")
    if len(set(values)) != len(values) or not all(-(1 << 63) <= v < 1 << 63 for v in values):
        raise ValueError("two parts have one number, or one has too large a number")
    return tuple(sorted(values))


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values[:16])) + (", …" if len(values) > 16 else "")
