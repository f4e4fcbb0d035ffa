"""`total('t', …)` and `series('t', '1 hour', …)` in FROM: the merged buckets of each group.

Both have the table's columns without those of buckets, `series` has `bucket_start`, and a few whose
names begin with `_`.  Conditions on columns of the group choose which groups are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from millpond.schema.definition.default_table import TIMESTAMP
from millpond.schema.definition.resolutions import BUCKET, OF_BUCKETS
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.tables.buckets.reading import BucketReading, GroupReading, Merged
from millpond.tables.finish.estimates import Estimate, Estimates, estimated_columns
from millpond.tables.forms.arrow import arrow_type, python_array
from millpond.tables.forms.arrow_errors import Failures
from millpond.tables.job.shards import check_whole
from millpond.tables.scan.arrow_rows import with_columns
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.sql.reading.access import Access
from millpond.tables.sql.reading.function import FunctionScans
from millpond.tables.sql.reading.scan import check_failures

_PIECE_ROWS = 1 << 12
_SINCE, _UNTIL, _USED, _ESTIMATES = "_since", "_until", "_used", "_estimates"


class BucketScans(FunctionScans):
    """The reads of `total` and `series`."""

    _estimated: Mapping[str, SparkType]

    def _check(self, read: OpenRead) -> TableDefinition:
        """Raises INVALID_REQUEST if the table has no buckets, or none as short as a step; HISTORY_GONE, INVALID_RANGE."""
        self._reading(read)
        definition = read.binding.definition
        hidden = {*OF_BUCKETS} - ({BUCKET} if self.name.function == "series" else set())
        return with_columns(definition, {*definition.columns} - hidden)

    def _more(self, pa: Any, read: OpenRead) -> list[Any]:
        self._estimated = {column.name: column.type for column in estimated_columns(read.binding.definition)}
        fields = _more_fields(pa, {name: arrow_type(pa, type_) for name, type_ in self._estimated.items()})
        return [field for field in fields if field.name != _USED or self.name.function == "total"]

    def _how(self, access: Access) -> str:
        return f"{self.name.function}, {access}"

    def _pieces(self, pa: Any, read: OpenRead, access: Access, wanted: list[str]) -> Iterator[Any]:
        # The columns of the group are the first of the key, or behind `resolution`, on which there is
        # no condition: so the spans have whole groups.
        check_whole(read.view, read.binding)
        reading = self._reading(read)
        found = (each for group in reading.groups(access.spans) for each in self._merged(group))
        while some := list(islice(found, _PIECE_ROWS)):
            yield self._piece(pa, wanted, some, reading.estimates)

    def _reading(self, read: OpenRead) -> BucketReading:
        name = self.name
        assert not isinstance(name.since, int), "a time"
        assert not isinstance(name.until, int), "a time"
        return BucketReading(read, self.table.key_reader, self.table.deadline(), name.since, name.until, name.step)

    def _merged(self, group: GroupReading) -> Iterator[Merged]:
        """The rows of a group."""
        if self.name.function == "series":
            yield from group.steps()
            return
        found = group.total()
        if found is not None and found.values:
            yield found

    def _piece(self, pa: Any, wanted: list[str], some: list[Merged], estimates: Estimates) -> Any:
        """A record batch of these columns."""
        failures, made = Failures(), dict[str, Any]()
        for name in (each for each in wanted if each in _TIMES):
            made[name] = python_array(pa, TIMESTAMP, (_TIMES[name](each) for each in some), failures, name)
        if _USED in wanted:
            made[_USED] = self._used(pa, some, failures)
        if _ESTIMATES in wanted:
            made[_ESTIMATES] = self._limits(pa, [estimates(each.key, each.buffers) for each in some], failures)
        check_failures(failures, self.table.name)
        own = with_columns(self.definition, [name for name in wanted if name not in made])
        return self.batch(pa, wanted, {**self.columns(pa, own, [each.values for each in some]), **made})

    def _used(self, pa: Any, some: list[Merged], failures: Failures) -> Any:
        """Which buckets each row merges, as a list of structs."""
        every = [used for each in some for used in each.span.used]
        ends = [0]
        for each in some:
            ends.append(ends[-1] + len(each.span.used))
        type_ = self.schema.field(_USED).type
        columns = [
            pa.array([used.resolution for used in every], pa.string()),
            python_array(pa, TIMESTAMP, (used.since for used in every), failures, _USED),
            python_array(pa, TIMESTAMP, (used.until for used in every), failures, _USED),
            pa.array([used.rows for used in every], pa.int64()),
        ]
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), pa.StructArray.from_arrays(columns, fields=list(type_.value_type))
        )

    def _limits(self, pa: Any, found: list[Mapping[str, Estimate]], failures: Failures) -> Any:
        """Between which values the true ones lie: a struct for each column, NULL where nothing is known."""
        columns = []
        for name, type_ in self._estimated.items():
            each = [of_row.get(name) for of_row in found]
            limits = [
                python_array(pa, type_, (None if one is None else one.lower for one in each), failures, name),
                python_array(pa, type_, (None if one is None else one.upper for one in each), failures, name),
                pa.array([None if one is None else one.confidence for one in each], pa.float64()),
            ]
            fields = list(self.schema.field(_ESTIMATES).type.field(name).type)
            missing = pa.array([one is None for one in each], pa.bool_())
            columns.append(pa.StructArray.from_arrays(limits, fields=fields, mask=missing))
        return pa.StructArray.from_arrays(columns, fields=list(self.schema.field(_ESTIMATES).type))


_TIMES: dict[str, Callable[[Merged], Any]] = {_SINCE: lambda each: each.span.since, _UNTIL: lambda each: each.span.until}


def _more_fields(pa: Any, estimated: Mapping[str, Any]) -> list[Any]:
    moment = pa.timestamp("us", tz="UTC")
    used = pa.struct([("resolution", pa.string()), ("since", moment), ("until", moment), ("rows", pa.int64())])
    types = {_SINCE: moment, _UNTIL: moment, _USED: pa.list_(used)}
    if estimated:
        limits = {name: pa.struct([("lower", of), ("upper", of), ("confidence", pa.float64())]) for name, of in estimated.items()}
        types[_ESTIMATES] = pa.struct(list(limits.items()))
    return [pa.field(name, type_) for name, type_ in types.items()]
