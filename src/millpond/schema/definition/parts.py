"""Tables whose rows lie in parts of one store: the first column of its key says which part a row is in.

    copies   every part has the same rows: rules and models, which every parallel instance holds
    shares   every part has a share of a row, an instance's or a salt's of a hot key; functions make one row of them

Readers see one table without that column.  A job's side tells of parts in the metadata of the column that it groups by:

    {"millpond_parts": {"values": [3, 7], "variables": {"rules": "copies", "usage": {"rows": "sum", "slowest": "max"}}}}

`variables` are of transformWithState; one that isn't named is shown as it is stored.  An aggregation has none: its functions say
all.  `computed` adds columns to a variable's, {"usage": {"average": ["mean", "seconds", "rows"], "since": ["time", "since_ms"]}}:
a mean is a sum by a count, behind the sum, and a time stands in place of the milliseconds since 1970 that it is made of.  `fixed`
names what else a checkpoint can't change, in texts: {"inputs": ["acidity double"]}.  `pond` is the URI of the only pond that the
job may be started in; a definition doesn't keep it, since a pond may be moved.
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
"""In the metadata of a grouping column: it only spreads rows, and may be another one at the next start."""
COPIES = "copies"
# What a column of a state variable may be merged by.
FUNCTIONS = frozenset({"sum", "min", "max"})
# What a column may be computed by, and of how many others.
_COMPUTED = {"mean": 2, "time": 1}
# Aggregate functions whose parts make the whole.  Of `first` and `last` nobody knows which part came first.
# With each the numbers of buffers that it may have, none where any will do.
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
    **dict.fromkeys(("regr_slope", "regr_intercept"), (7,)),
    "regr_sxx": (3,),
    "regr_sxy": (4,),
    "regr_r2": (6,),
    "approx_count_distinct": (),
}
_ADDED = INTEGERS | {"float", "double", "decimal", "year_month_interval", "day_time_interval"}
# By function, which of its buffers decides.
_COMPARES = {"min": 0, "max": 0, "min_by": 1, "max_by": 1, "min_by_k": 1, "max_by_k": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How one table lies in parts.

    column:  the first column of the state's key row: a whole number, or a struct of nothing else
    values:  those that it has, ascending
    merges:  `aggregate` expressions that each make one of the shares in their buffers; None where parts are copies
    """

    column: Field
    values: tuple[int, ...]
    merges: tuple[Expression, ...] | None

    def key(self, value: int) -> Any:
        """The column in stored form, of the part with this value."""
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
    computed:   name -> column that is made of others -> how, and of which
    fixed:      what else the state holds for, e.g. inputs -> each column with its type
    pond:       the URI of the only pond that the job may be started in; None for any
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
        """Of one variable with these columns; None where it isn't named."""
        how = self.variables.get(variable)
        if how is None or not key:
            return None
        merges = None if isinstance(how, str) else _merges(how, value)
        return Parts(column=key[0], values=self.values, merges=merges)


def computed_columns(columns: Sequence[tuple[str, int, SparkType]], made: Mapping[str, Sequence[str]]) -> list[Computed]:
    """Columns that are made of others, those left out that aren't there, or are of another type.

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
    # A column that no function is named for is found when the table is read.
    return tuple(
        Expression("aggregate", f.type, options={"function": functions[f.name], "buffers": [i], "mode": "ansi"})
        for i, f in enumerate(value)
        if f.name in functions
    )


class Computed(NamedTuple):
    """A column that is made of others.

    of:          the first of these
    is_instead:  it stands in that one's place, else behind it
    """

    name: str
    of: str
    is_instead: bool
    expression: Expression


def parse_parts(data: Json) -> Parts | None:
    """Turn the JSON form back.  Raises ValueError, KeyError or TypeError where it isn't one, DEFINITION_MISMATCH."""
    if data is None:
        return None
    column = Field(data["column"]["name"], parse_type(data["column"]["type"]))
    number_type(column.type)
    merges = None if data["merges"] is None else tuple(parse_expression(m) for m in data["merges"])
    for merge in merges or ():
        if merge.op != "aggregate" or not isinstance(merge.options["function"], str):
            raise ValueError("its parts are merged by what is no aggregate function")
    return Parts(column=column, values=_values(data["values"]), merges=merges)


def parse_variable_parts(data: Json) -> VariableParts | None:
    """The same of variables, also as metadata has it.  Raises ValueError, KeyError or TypeError where it isn't one."""
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
    """Why the parts of an `aggregate` expression can't be merged into the whole; None where they can.

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
    """Whether values of a type have an order that is known here: texts with a collation haven't."""
    if type_.kind == "struct":
        return all(is_comparable(f.type) for f in type_.fields)
    if type_.kind == "array" and type_.element is not None:
        return is_comparable(type_.element)
    return type_.is_ordered and not (type_.kind == "string" and type_.name != "string")


def number_type(column: SparkType) -> SparkType:
    """The type of a part's number, in the column or in the struct that it is.  Raises ValueError where it is something else."""
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
