"""One table: rows by key, by prefix, by range, or all; each answer is of one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Any, Self

from msgspec import structs

from millpond.checkpoint.encoding import iter_elements
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.native.lookup import Reader, TableLookup
from millpond.replica.history.as_of import kept_of
from millpond.replica.history.delete_cause import loses_rows
from millpond.replica.history.keeper import closed_table
from millpond.replica.history.with_expired import is_known
from millpond.replica.keys.codec import split_value, store_key
from millpond.replica.record import StoresRecord
from millpond.replica.replica import View
from millpond.replica.row_stamp import without_stamp
from millpond.schema.definition.table import TableDefinition
from millpond.tables.answer import Count, Cut, Row, Rows
from millpond.tables.buckets.reads import BucketReads
from millpond.tables.by_value.reads import By, IndexReads
from millpond.tables.by_value.rows import iter_index_rows
from millpond.tables.forms.html import columns_text
from millpond.tables.forms.protocols import ShownTable
from millpond.tables.history.changes import is_of_changes
from millpond.tables.history.find_event import is_built_late, may_have_expired
from millpond.tables.history.reads import PastReads, check_limit
from millpond.tables.job.as_of import as_of
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import is_cut_of
from millpond.tables.job.held_views import HOLDER
from millpond.tables.job.other_versions import OtherVersions
from millpond.tables.job.reads import Reads
from millpond.tables.job.shards import check_key, check_parts, check_shard
from millpond.tables.job.stored_rows import StoredReads
from millpond.tables.kept.shorter import hidden_of
from millpond.tables.scan.binding import Binding, Define, bind, is_earlier
from millpond.tables.scan.compiled import table_facts
from millpond.tables.scan.key_range import Place, Span, prefix_span, range_span
from millpond.tables.scan.keys import Key, KeyReader, given_keys
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.scan.page_token import PageToken, expired, parse_token, query_id
from millpond.tables.scan.raw_lookup import Lookups
from millpond.tables.scan.rows import Found, iter_rows
from millpond.tables.scan.token import pack, unpack


class Table(ShownTable, PastReads, BucketReads, IndexReads, StoredReads):
    """A named table of a pond.

    Keys are given as column names and Python values: `table.get(page="/index.html")`.  If a
    column's name isn't a Python name, or is that of an option, a dict will do:
    `table.get({"my page": "/index.html"})`.  Times may be ISO texts.

    Every read takes `bounds`: what its answer must reflect, and how long to wait for it.

    definition:  what the table means: its columns, and how their values are computed
    versions:    the versions of its name; None if the name means one job only
    """

    def __init__(self, definition: TableDefinition, reads: Reads, define: Define | None = None) -> None:
        """A table of a job; `define` defines it again after its store's schema has changed."""
        self.definition = definition
        self._reads = reads
        self._define = define
        self._keys = KeyReader(definition)
        self._binding: Binding | None = None
        self._closed: bool | None = None
        self._compiled: tuple[Binding, Reader, TableLookup | None] | None = None
        self._lookup: TableLookup | None = None
        self.versions: OtherVersions | None = None

    @property
    def define(self) -> Define | None:
        """The function that defines it again after its store's schema has changed."""
        return self._define

    @property
    def name(self) -> str:
        """The table's name in the pond."""
        return self.definition.table

    @property
    def job(self) -> str:
        """The name of the job whose state this is."""
        return self.job_reads.name

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names, key first."""
        return self.definition.columns

    @property
    def key_order(self) -> tuple[str, ...]:
        """The key columns by which rows are sorted: first all but times in grouping order, then times."""
        return self._keys.order

    def _columns_text(self) -> str:
        return columns_text(self.definition)

    def read_by(self, reads: Reads) -> Self:
        """The same table, read by other views of its job."""
        other = copy(self)
        other._reads, other._compiled, other._lookup = reads, None, None
        return other

    def of_token(self, token: str | None) -> Table:
        """The version of the table that a token of a page or a cut belongs to; else this one."""
        other = None if token is None or self.versions is None or self.owns(token) else self.versions.owner_of(token)
        return self if other is None else other

    def owns(self, token: str) -> bool:
        """Whether a token, of any kind, is of this table's job and of its replica here."""
        if is_cut_of(self.job_reads, token):
            return True
        try:
            with self.job_reads.replica.snapshot() as view:
                page = unpack(token, PageToken)
                return is_of_changes(token, view) if page is None else page.generation == view.generation
        except MillpondError:
            return False

    def get(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Row:
        """The row of a key; empty, and false, if the table has none.

        Name every key column.  The end of a window may be left out if only one window begins at its
        start.

        Raises:  UNKNOWN_COLUMN, NOT_A_KEY_COLUMN, KEY_MISSING, WRONG_TYPE; NOT_UP_TO_BOUND;
                 REPLICA_BUILDING, JOB_REPLACED, …
        """
        if bounds is None and self._lookup is not None:
            found: Row | None = self._lookup.row(key, columns)
            if found is not None:
                return found
        wanted = self._keys.stored(columns if key is None else self._keys.given(key, columns))
        with self.begin(bounds, is_checked=True) as read:
            if bounds is None:
                self._compile(read)
            return self._get(read, wanted, bounds)

    def _compile(self, read: OpenRead) -> TableLookup | None:
        known = self._compiled
        if known is not None and known[0] is read.binding and known[2] is None:
            return None
        reader = self._reads.reader(read.view)
        if reader is None:
            self._lookup = None
            return None
        if known is None or known[0] is not read.binding or known[1] is not reader:
            facts = table_facts(read.binding)
            known = self._compiled = read.binding, reader, None if facts is None else reader.table(facts)
        self._lookup = known[2]
        return known[2]

    def lookups(self) -> Lookups:
        """The newest batch, for lookups that leave rows as they are stored.

        The caller closes it.  Raises as `get`.
        """
        with self.begin(is_checked=True) as read:
            if read.view.stores.shard:
                check_parts(read.view, read.binding)
            compiled = self._compile(read)
            return Lookups(read.hand_on(), self._get, compiled)

    def get_all(self, keys: Iterable[Any], *, bounds: Bounds | None = None) -> Rows:
        """The rows of several keys in their order, all of one batch; an empty row if there is none.

        Raises:  as `get`.
        """
        wanted = [self._keys.stored(self._keys.given(key)) for key in given_keys(keys)]
        with self.begin(bounds, is_checked=True) as read:
            return Rows([self._get(read, columns, bounds) for columns in wanted], read.cut)

    def scan(
        self,
        key: Any = None,
        /,
        *,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """The rows with these values in their key, or all rows, in key order and of one batch.

        Values of the first columns of the key (see `key_order`) make the scan short; other values
        are compared row by row.

        limit:    at most so many rows; `more` says whether there are others, and `token` then asks
                  for the next page
        reverse:  against key order
        token:    of the page before, from a scan with the same key and direction: reads the same
                  batch, even if newer ones were applied
        Raises:   UNKNOWN_COLUMN, NOT_A_KEY_COLUMN, WRONG_TYPE, INVALID_LIMIT, INVALID_TOKEN,
                  TOKEN_EXPIRED, NOT_UP_TO_BOUND; READ_TOO_LONG, REPLICA_BUILDING, JOB_REPLACED, …
        """
        wanted = self._keys.stored(self._keys.given(key, columns))
        return self._page(lambda binding: prefix_span(binding.definition, binding.codec, wanted), limit, reverse, token, bounds)

    def range(
        self,
        key: Any = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        by: By | None = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """Rows in key order from `start` on and before `end`, all of one batch.

        The range may be within given values of the first key columns.  `start` and `end` name one
        or more of the key columns that follow (see `key_order`); either may be left out.  As in
        Python's slices, the start is included and the end isn't:
        `start={"page": "/a"}, end={"page": "/b"}` has all rows of page /a and none of page /b.

        by:  a column or several, by whose index the rows are sorted in place of their key:
             `by="hits", start={"hits": 100}`.  `start` and `end` name the first of them, and other
             columns are those with which an index begins, see `top`.  Rows of equal values are
             sorted by their key, and NULL comes first
        limit, reverse, token:  as `scan`
        Raises:  INVALID_RANGE if a column in between is left out or has no order; with `by`, as
                 `top`; as `scan`.
        """
        if by is not None:
            within = self._keys.given(key, columns)
            return self._by_index(by, within, start, end, limit, reverse=reverse, token=token, bounds=bounds)
        prefix = self._keys.stored(self._keys.given(key, columns))
        first, last = (self._keys.stored(limit_) if limit_ else None for limit_ in (start, end))
        return self._page(
            lambda binding: range_span(binding.definition, binding.codec, self.key_order, prefix, first, last),
            limit,
            reverse,
            token,
            bounds,
        )

    def windows(
        self,
        key: Any = None,
        /,
        *,
        since: Any = None,
        until: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """The windows of a key that begin at `since` or later and before `until`.

        `since` and `until` are datetimes, ISO texts, or None for no limit.  Name every key column
        before the time.  A key with a plain time in place of a window works too.

        limit, reverse, token:  as `scan`
        Raises:  NO_WINDOW if the key has no time; KEY_MISSING; as `scan`.
        """
        given = self._keys.given(key, columns)
        column = self._keys.window_start(given)
        start, end = ({column: limit_} if limit_ is not None else None for limit_ in (since, until))
        return self.range(given, start=start, end=end, limit=limit, reverse=reverse, token=token, bounds=bounds)

    def count(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Count:
        """How many rows the table has, or how many have the given key values.  Raises as `scan`."""
        wanted = self._keys.stored(self._keys.given(key, columns))
        with self.begin(bounds) as read:
            binding = read.binding
            if not wanted and self.definition.having is None and not binding.many and read.judge is None:
                return Count(read.shown().count(binding.table), read.cut)
            span = prefix_span(binding.definition, binding.codec, wanted)
            return Count(sum(1 for _ in self._iterate(read, span)), read.cut)

    def to_arrow(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Any:
        """The rows of a scan as a pyarrow.Table; the metadata of its schema names batch and job.

        Raises:  LIBRARY_MISSING; WRONG_TYPE if Arrow has no type for a column; as `scan`.
        """
        from millpond.tables.forms import arrow

        if key or columns or self.definition.many:
            return arrow.to_arrow(self.definition, self.scan(key, bounds=bounds, **columns))
        return self._all_to_arrow(arrow.pyarrow(), bounds)

    def _all_to_arrow(self, pa: Any, bounds: Bounds | None) -> Any:
        """All rows, many at a time."""
        from millpond.tables.forms.arrow import table_schema
        from millpond.tables.forms.arrow_errors import join_tables
        from millpond.tables.scan.arrow_rows import iter_arrow

        with self.begin(bounds) as read:
            shape = table_schema(pa, self.definition, self.job, read.view.record.batch)
            whole = prefix_span(read.binding.definition, read.binding.codec, {})
            return join_tables(pa, list(iter_arrow(pa, read, self.definition, [whole], self.job, self.deadline())), shape)

    @property
    def key_reader(self) -> KeyReader:
        """Reads keys of this table."""
        return self._keys

    # ------------------------------------------------------------ reading

    def begin(self, bounds: Bounds | None = None, *, is_checked: bool = False) -> OpenRead:
        """Begin a read, which the caller ends.

        is_checked:  whether the caller checks itself what it may read of a shard
        Raises:      ONLY_A_SHARD, OTHER_SHARD; as `get`.
        """
        view, cut = self._reads.open(bounds)
        try:  # as in `JobReads.open`
            binding = self._bind(view.stores)
            if not is_checked and (view.stores.shard or (bounds is not None and bounds.shard)):
                check_shard(view, binding, bounds)
            return self._begin(view, binding, cut)
        except BaseException:
            view.close()
            raise

    def _begin(self, view: View, binding: Binding, cut: Cut) -> OpenRead:
        """A read of this table, which ends the view."""
        if binding.ttl:  # the answer names the time at which TTLs were judged
            cut = structs.replace(cut, judged_ms=self._reads.clock_ms(view.record))
        shows_closed = binding.closes_windows if self._closed is None else self._closed
        hidden = None
        if binding.definition.resolutions is not None:
            shorter = self.job_reads.shorter.of(binding.definition)
            hidden = hidden_of(binding.definition, shorter, cut.position.watermark_ms) if shorter else None
            cut = cut if hidden is None else structs.replace(cut, hidden=hidden.digest)
        return OpenRead(view, binding, cut, shows_closed=shows_closed, hidden=hidden, shows_hidden=self._closed is True)

    def _bind(self, stores: StoresRecord) -> Binding:
        """How to read this generation.  Raises DEFINITION_MISMATCH if state and definition differ."""
        binding = self._binding
        if binding is None or binding.stores is not stores:
            binding = self._binding = bind(self.definition, stores, self._define)
            if binding.definition != self.definition:
                self.definition, self._keys = binding.definition, KeyReader(binding.definition)
        return binding

    def _get(self, read: OpenRead, columns: dict[str, Any], bounds: Bounds | None = None) -> Row:
        binding, cut, key = read.binding, read.cut, self._keys.row(columns)
        if read.view.stores.shard or (bounds is not None and bounds.shard):
            if key is None or not read.view.stores.shard:
                check_shard(read.view, binding, bounds)
            else:
                check_key(read.view, binding, key, bounds)
        if key is None:
            return self._only_window(read, columns)
        ordered = binding.codec.encode(key[:-1] if binding.many else key)
        stored_key, rows = store_key(ordered), read.stored()
        stored = rows.get(binding.table, stored_key)
        if stored is None:
            if not binding.may_expire:
                return Row((), cut, evicted=self._was_lost(read, key))
            stored = rows.get(closed_table(binding.table), stored_key)
            if stored is None or not read.shows_closed or not is_known(stored_key, stored):
                return Row((), cut, evicted=self._was_evicted(read, key, stored))
        found, row = split_value(stored_key, without_stamp(stored))
        if found != ordered:
            raise _hash_collision(self.name)
        if binding.many:
            element = next(islice(iter_elements(row), key[-1], None), None) if (key[-1] or 0) >= 0 else None
            if element is None or key[-1] is None:
                return Row((), cut, evicted=self._was_lost(read, key))
            row = element
        value = binding.decode_value(row)
        marked = stored if read.judge is None else read.judge(key, value, stored)
        if marked is None:
            return Row((), cut, evicted=True)
        values = binding.finish(key, value)
        return Row(values, cut, marked) if values is not None else Row((), cut)

    def _was_evicted(self, read: OpenRead, key: tuple[Any, ...], closed: bytes | None) -> bool | None:
        """Whether a missing row has expired; None if it may have, and its record is no longer kept."""
        view, binding = read.view, read.binding
        if closed is not None:
            return True
        # The key alone can tell if its window is still to come.  Most keys without a row are such.
        if not may_have_expired(view, binding, key):
            return False
        may_be_forgotten = (
            kept_of(view.record, binding.table).closed_forgotten is not None
            or is_earlier(view.rows)  # it may have expired once more since
            or is_built_late(view)
        )
        return None if may_be_forgotten else False

    def _was_lost(self, read: OpenRead, key: tuple[Any, ...]) -> bool | None:
        """The same of a table whose expired rows aren't kept: unknown if its rows can expire."""
        return None if loses_rows(read.binding.schema) and may_have_expired(read.view, read.binding, key) else False

    def _only_window(self, read: OpenRead, columns: dict[str, Any]) -> Row:
        span = prefix_span(read.binding.definition, read.binding.codec, columns)
        found = list(islice(self._iterate(read, span), 2))
        if len(found) > 1:
            raise RequestError(
                "KEY_MISSING",
                f"Several windows of {self.name} begin there.",
                hint="Name the end of the window too, or scan.",
                table=self.name,
            )
        return Row(found[0][1], read.cut, found[0][2]) if found else Row((), read.cut)

    def _page(
        self, span_of: Callable[[Binding], Span], limit: int | None, reverse: bool, token: str | None, bounds: Bounds | None
    ) -> Rows:
        """The rows of a span, or the page that a token names."""
        check_limit(limit)
        owner = self.of_token(token)
        if owner is not self:
            return owner._page(span_of, limit, reverse, token, bounds)
        begun, span, query = self._open_page(span_of, reverse, token, bounds)
        with begun as read:
            more, rows = False, list[Row]()
            last: Place = (b"", 0)
            for place, values, stored in self._iterate(read, span, reverse=reverse):
                if limit is not None and len(rows) == limit:
                    more = True
                    break
                rows.append(Row(values, read.cut, stored))
                last = place
            if not more:
                return Rows(rows, read.cut)
            query = query or self._query_id(read, span, reverse)
            next_page = PageToken(query, read.view.generation, read.view.record.batch, last[0], last[1], HOLDER)
            answer = Rows(rows, read.cut, more=True, token=pack(next_page))
            self.job_reads.keep(read.view.hand_on())
            return answer

    def _open_page(
        self, span_of: Callable[[Binding], Span], reverse: bool, token: str | None, bounds: Bounds | None
    ) -> tuple[OpenRead, Span, bytes]:
        """A read, the rest of the span, and the query's id, a hash, if a token names a page."""
        # The first page was read from this shard.
        with self.begin(bounds if token is None else None, is_checked=token is not None) as now:
            span = span_of(now.binding)
            if token is None:
                return now.hand_on(), span, b""
            query = self._query_id(now, span, reverse)
            page = parse_token(token, query, table=self.name)
            with self._at_page(now, page, is_index=span.index is not None) as read:
                self.job_reads.check(bounds, read.cut)
                return read.hand_on(), span.beyond(page.place, reverse=reverse), query

    def _query_id(self, read: OpenRead, span: Span, reverse: bool) -> bytes:
        closed = (read.binding.may_expire or read.binding.ttl) and read.shows_closed
        return query_id(read.binding, span, reverse=reverse, closed=closed)

    def _at_page(self, now: OpenRead, page: PageToken, *, is_index: bool) -> OpenRead:
        """A read of a page's batch, in place of one of the newest batch.  Raises TOKEN_EXPIRED."""
        view, binding = now.view, now.binding
        earlier = self._reads.try_batch(view, page.generation, page.batch)
        if earlier is None:
            # History as of then may lack expired rows that an earlier page showed: retention
            # removes them as time passes.
            forgets = binding.may_expire and now.shows_closed
            if is_index or self._reads.fixed or view.generation != page.generation or forgets:
                raise expired(page, self.name, view.record.batch)
            try:
                earlier = as_of(view, binding.table, self.name, page.batch)
            except ReplicaError:
                raise expired(page, self.name, view.record.batch) from None
        with earlier:
            read = self._begin(earlier, binding, self.job_reads.cut(earlier))
            return read.hand_on()

    def _iterate(self, read: OpenRead, span: Span, *, reverse: bool = False) -> Iterator[Found]:
        if span.index is not None:
            return iter_index_rows(read, span, reverse=reverse, deadline=self.deadline())
        return iter_rows(read.shown(), read.binding, span, judge=read.judge, reverse=reverse, deadline=self.deadline())


def _hash_collision(table: str) -> ReplicaError:
    return ReplicaError(
        "FOLLOWER_FAILED",
        f"Two long keys of {table} have the same hash.",
        hint="Report this: such a collision is next to impossible.",
        table=table,
    )
