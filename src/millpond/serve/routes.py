"""The routes of the HTTP door: one list for dispatch, `GET /` and the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from millpond.operate import answers as operate
from millpond.operate.doctor.advice import Diagnosis
from millpond.serve.formats import EVENTS, HTML, JAVASCRIPT, JSON, ROW_FORMATS, STYLES, SVG, Format
from millpond.tables.job.bounds import Bounds
from millpond.wire import aggregates, answers, questions, shards
from millpond.wire.declare import Field
from millpond.wire.parse import controls

_BOUNDS = Bounds.__struct_fields__
# Questions for rows of a table, which wait for nothing unless a bound says so.
_READS = (
    questions.Scan,
    questions.Keys,
    questions.CountRows,
    questions.ReadStored,
    questions.ListVersions,
    questions.FindEvent,
    questions.FindTotal,
    questions.ListSeries,
)
_CHANGES = ("since", "limit", "wait_seconds", *questions.AsOf.__struct_fields__)


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A question without parameters."""


@dataclass(frozen=True, kw_only=True)
class RouteText:
    """A route for dispatch, `GET /`, OpenAPI and the manual.

    endpoint:  its name in metrics and in the OpenAPI document
    question:  the struct of its URL or body, of `wire.questions`
    answer:    the struct of its JSON; None if it isn't JSON, or is a document of its own
    only:      the question's fields that its URL may have; None for all
    formats:   its forms of answers; empty if there is one
    open:      whether it answers without a token, for orchestrators
    """

    method: str
    path: str
    summary: str
    endpoint: str
    question: type[msgspec.Struct] = Nothing
    answer: type[msgspec.Struct] | None = None
    media_type: str = "application/json"
    only: tuple[str, ...] | None = None
    formats: tuple[Format, ...] = ()
    open: bool = False

    @property
    def has_body(self) -> bool:
        """Whether the question is its body."""
        return self.method == "POST"

    @property
    def is_of_a_table(self) -> bool:
        """Whether it reads one table."""
        return "{table}" in self.path

    @property
    def reads_rows(self) -> bool:
        """Whether it reads rows of a table that are there, and doesn't wait for changes."""
        return self.question in _READS

    @property
    def names_in_path(self) -> tuple[str, ...]:
        """The names that its path has."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def controls(self) -> dict[str, Field]:
        """Its parameters besides columns, by name."""
        return {} if self.has_body else controls(self.question, self.only)

    @property
    def takes_columns(self) -> bool:
        """Whether it takes key columns as parameters."""
        return not self.has_body and "key" in self.question.__struct_fields__


def _both_ways(asked: RouteText, *, posted: str, path: str | None = None) -> tuple[RouteText, RouteText]:
    """A route whose question is its URL, and the route with the same question in its body.

    posted, path:  endpoint and path of the second one; by default the path is the same
    """
    path, summary = path or asked.path, "the same, asked in JSON"
    return asked, replace(asked, method="POST", path=path, summary=summary, endpoint=posted, only=None, formats=())


ROUTES = (
    RouteText(
        method="GET",
        path="/",
        summary="these routes; for browsers, the console",
        endpoint="index",
        answer=answers.IndexAnswer,
        formats=(JSON, HTML),
    ),
    RouteText(
        method="GET",
        path="/console/{file}",
        summary="a file of the console",
        endpoint="console_file",
        media_type=JAVASCRIPT.media_type,
        formats=(JAVASCRIPT, STYLES, SVG),
        open=True,
    ),
    RouteText(method="GET", path="/openapi.json", summary="the same for programs, as OpenAPI 3.1", endpoint="openapi"),
    RouteText(method="GET", path="/tables", summary="all tables", endpoint="tables", answer=answers.TablesAnswer),
    RouteText(
        method="GET",
        path="/tables/{table}",
        summary="a table's definition: columns, types, key, warnings",
        endpoint="table",
        answer=answers.TableAnswer,
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/definition",
        summary="its definition in the form that clients use to read and write values",
        endpoint="definition",
        question=questions.Define,
        only=("wait_seconds",),
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/rows",
        summary="rows by column=value, ranges, windows, pages",
        endpoint="rows",
        question=questions.Scan,
        answer=answers.RowsAnswer,
        formats=ROW_FORMATS,
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/rows:get",
        summary='rows by {"keys": [{column: value}]}',
        endpoint="rows_get",
        question=questions.Keys,
        answer=answers.RowsAnswer,
        formats=ROW_FORMATS,
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/rows:scan",
        summary="as GET …/rows, asked in JSON",
        endpoint="rows_scan",
        question=questions.Scan,
        answer=answers.RowsAnswer,
        formats=ROW_FORMATS,
    ),
    *_both_ways(
        RouteText(
            method="GET",
            path="/tables/{table}/count",
            summary="the number of rows, of all or of those with column=value",
            endpoint="count",
            question=questions.CountRows,
            answer=answers.CountAnswer,
        ),
        posted="rows_count",
        path="/tables/{table}/rows:count",
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/rows:stored",
        summary="rows as they are stored, for routers of shards",
        endpoint="rows_stored",
        question=questions.ReadStored,
        answer=answers.StoredAnswer,
    ),
    *_both_ways(
        RouteText(
            method="GET",
            path="/tables/{table}/changes",
            summary="changes of rows, in order; also as a stream of server-sent events",
            endpoint="changes",
            question=questions.ListChanges,
            only=_CHANGES,
            answer=answers.ChangesAnswer,
            formats=(JSON, EVENTS),
        ),
        posted="changes_post",
    ),
    *_both_ways(
        RouteText(
            method="GET",
            path="/tables/{table}/versions",
            summary="every version of a row, or of a range of keys, between two batches or times",
            endpoint="versions",
            question=questions.ListVersions,
            answer=answers.VersionsAnswer,
        ),
        posted="versions_post",
    ),
    *_both_ways(
        RouteText(
            method="GET",
            path="/tables/{table}/event",
            summary="where one event is: which batch read it, whether it is applied, whether it was late",
            endpoint="event",
            question=questions.FindEvent,
            answer=answers.EventFound,
        ),
        posted="event_post",
    ),
    *_both_ways(
        RouteText(
            method="GET",
            path="/tables/{table}/total",
            summary="one row of a declared aggregate: the buckets of a span, merged",
            endpoint="total",
            question=questions.FindTotal,
            answer=answers.TotalAnswer,
        ),
        posted="total_post",
    ),
    *_both_ways(
        RouteText(
            method="GET",
            path="/tables/{table}/series",
            summary="the same with a row for each step",
            endpoint="series",
            question=questions.ListSeries,
            answer=answers.SeriesAnswer,
        ),
        posted="series_post",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/cut",
        summary="keep the newest batch readable for a while, for several reads of any tables of the job",
        endpoint="cut",
        question=questions.KeepCut,
        only=_BOUNDS,
        answer=answers.CutAnswer,
    ),
    RouteText(
        method="GET",
        path="/shards",
        summary="which partitions of each table are here, and how far they are",
        endpoint="shards",
        answer=shards.ShardsAnswer,
    ),
    RouteText(
        method="POST",
        path="/at",
        summary="the batches at which tables of several jobs have read the same input",
        endpoint="at",
        question=questions.Align,
        answer=answers.AlignedAnswer,
    ),
    RouteText(
        method="GET",
        path="/aggregates",
        summary="the versions of all aggregates: which is current, and how far each is",
        endpoint="aggregates",
        answer=aggregates.AggregatesAnswer,
    ),
    RouteText(
        method="GET",
        path="/aggregates/{aggregate}",
        summary="the versions of one aggregate",
        endpoint="aggregate",
        answer=aggregates.AggregatesAnswer,
    ),
    RouteText(
        method="POST",
        path="/sql",
        summary="the answer of a SELECT over tables",
        endpoint="sql",
        question=questions.AskSql,
        answer=answers.SqlRows,
        formats=ROW_FORMATS,
    ),
    RouteText(
        method="GET",
        path="/sql/changes",
        summary="what each batch changes in the answer of a SELECT: a stream of server-sent events",
        endpoint="sql_changes",
        question=questions.SubscribeSql,
        media_type=EVENTS.media_type,
    ),
    RouteText(
        method="GET",
        path="/jobs",
        summary="all jobs: how far each is, and what was last measured of it",
        endpoint="jobs",
        answer=operate.JobsAnswer,
    ),
    RouteText(
        method="GET",
        path="/jobs/{job}/samples",
        summary="what was measured of a job, over time",
        endpoint="samples",
        question=operate.ListSamples,
        answer=operate.SamplesAnswer,
    ),
    RouteText(
        method="GET",
        path="/jobs/{job}/partitions",
        summary="the bytes of a job's state, by operator and partition",
        endpoint="partitions",
        answer=operate.PartitionsAnswer,
    ),
    RouteText(
        method="GET",
        path="/jobs/{job}/hot-keys",
        summary="the hot keys that a job has found",
        endpoint="hot_keys",
        answer=operate.HotKeysAnswer,
    ),
    RouteText(
        method="GET",
        path="/jobs/{job}/advice",
        summary="what in a job costs more than it should, and what to change",
        endpoint="advice",
        answer=Diagnosis,
    ),
    RouteText(
        method="GET",
        path="/alerts",
        summary="the alerts of all jobs, and what to do",
        endpoint="alerts",
        answer=operate.AlertsAnswer,
    ),
    RouteText(
        method="GET",
        path="/savepoints",
        summary="all savepoints",
        endpoint="savepoints",
        answer=answers.SavepointsAnswer,
    ),
    RouteText(
        method="POST",
        path="/savepoints",
        summary="begin to make a savepoint of a job; needs a token with that right",
        endpoint="create_savepoint",
        question=questions.CreateSavepoint,
        answer=answers.OperationAnswer,
    ),
    RouteText(
        method="GET",
        path="/savepoints/{savepoint}",
        summary="a savepoint: its job and batch, and what it holds",
        endpoint="savepoint",
        answer=answers.SavepointAnswer,
    ),
    RouteText(
        method="POST",
        path="/savepoints/{savepoint}/verify",
        summary="begin to compare its files with their hashes, and to decode its rows",
        endpoint="verify_savepoint",
        question=questions.VerifySavepoint,
        answer=answers.OperationAnswer,
    ),
    RouteText(
        method="GET",
        path="/operations/{operation}",
        summary="the progress and the result of an operation on a savepoint",
        endpoint="operation",
        answer=answers.OperationAnswer,
    ),
    RouteText(
        method="GET",
        path="/metrics",
        summary="counts and lags for Prometheus",
        endpoint="metrics",
        media_type="text/plain",
    ),
    RouteText(
        method="GET", path="/livez", summary="whether the process runs", endpoint="livez", answer=answers.LiveAnswer, open=True
    ),
    RouteText(
        method="GET",
        path="/readyz",
        summary="whether answers are fresh enough; ?_max_behind_seconds=s",
        endpoint="readyz",
        question=questions.Ready,
        answer=answers.ReadyAnswer,
        open=True,
    ),
)
ROUTE_OF = {route.endpoint: route for route in ROUTES}
