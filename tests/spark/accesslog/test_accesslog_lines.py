"""Lines of logs: as servers write them, and malformed ones."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.spark.accesslog.lines import (
    MAX_LINE_BYTES,
    SCHEMA,
    TSV_COLUMNS,
    LineError,
    Request,
    iter_arrow,
    page_of,
    parse_line,
    parse_time,
    tsv_header,
)

COMMON = b'127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326\n'
COMBINED = COMMON[:-1] + b' "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)"\r\n'
OCTOBER = int(datetime.fromisoformat("2000-10-10T13:55:36-07:00").timestamp()) * 1_000_000


def ncsa(line: bytes) -> Request:
    return parse_line(line, file="/logs/a", line=7, columns=None)


def test_apaches_own_example_of_the_common_format_is_read() -> None:
    assert ncsa(COMMON) == Request(
        host="127.0.0.1",
        username="frank",
        time=OCTOBER,
        method="GET",
        url="/apache_pb.gif",
        page="/apache_pb.gif",
        protocol="HTTP/1.0",
        status=200,
        bytes=2326,
        file="/logs/a",
        line=7,
    )


def test_the_combined_format_adds_referer_and_useragent() -> None:
    found = ncsa(COMBINED)
    assert (found.referer, found.useragent) == ("http://www.example.com/start.html", "Mozilla/4.08 [en] (Win98; I ;Nav)")
    assert found._replace(referer=None, useragent=None) == ncsa(COMMON)


def test_the_tsv_form_is_read_by_the_names_in_its_header() -> None:
    line = b"GET\t/a?b=c\t200\t-\t807256800\tpppa006.compuserve.com\n"
    columns = ("method", "url", "response", "bytes", "time", "host")
    found = parse_line(line, file="f", line=2, columns=columns)
    assert (found.host, found.page, found.url, found.status, found.bytes) == ("pppa006.compuserve.com", "/a", "/a?b=c", 200, 0)
    assert found.time == 807256800 * 1_000_000


def test_only_a_line_that_names_the_columns_is_a_header() -> None:
    assert tsv_header("\t".join(TSV_COLUMNS)) == TSV_COLUMNS
    assert tsv_header("host\ttime") is None
    assert tsv_header(COMMON.decode()) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x16\x03\x01\x02", "not in the common or combined"),
        (b'h - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200', "not in the common or combined"),
        (b'h - - [10/Oct/2000:13:55:36 -0700] "-" 408 -', "isn't a method and a URL"),
        (b'h - - [10/Oct/2000:13:55:36 -0700] "\\x16\\x03\\x01" 400 226', "isn't a method and a URL"),
        (b'h - - [10/Okt/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1', "the time '10/Okt"),
        (b'h - - [31/Feb/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1', "the time '31/Feb"),
        (b'h - - [10/Oct/2000:13:55:36 -0700] "G T / HTTP/1.0" 200 99999999999999999999', "isn't a whole number"),
        (b'h - - [10/Oct/2000:13:55:36 -0700] "(GET) / HTTP/1.0" 200 1', "an HTTP method"),
        (b"x" * (MAX_LINE_BYTES + 1), "longer than"),
    ],
)
def test_a_line_that_is_no_request_is_a_row_that_says_why(line: bytes, reason: str) -> None:
    found = ncsa(line)
    assert found.error is not None
    assert reason in found.error
    assert found.text == line[:MAX_LINE_BYTES].decode("utf-8", "backslashreplace")
    assert (found.file, found.line, found.host, found.time) == ("/logs/a", 7, None, None)


@pytest.mark.parametrize("time", ["1_0", " 1", "-1", "1.5", "", "٣", "999999999999999"])
def test_a_tsv_time_is_plain_digits_within_the_calendar(time: str) -> None:
    line = f"h\t-\t{time}\tGET\t/\t200\t1\t\t".encode()
    assert "the time" in (parse_line(line, file="f", line=1, columns=TSV_COLUMNS).error or "")


def test_bytes_that_are_not_utf8_are_kept_as_escapes_and_the_line_still_counts() -> None:
    found = ncsa(COMMON.replace(b"/apache_pb.gif", b"/caf\xe9.html"))
    assert (found.error, found.page) == (None, "/caf\\xe9.html")


def test_quotes_inside_a_request_don_t_break_the_line() -> None:
    assert ncsa(COMMON.replace(b"/apache_pb.gif", b'/a"b.gif')).page == '/a"b.gif'
    assert ncsa(COMMON.replace(b"/apache_pb.gif", b'/a\\"b.gif')).page == '/a"b.gif'
    assert ncsa(COMBINED.replace(b"Mozilla", b'\\"Mozilla\\"')).useragent == '"Mozilla"/4.08 [en] (Win98; I ;Nav)'


def test_http_0_9_and_urls_with_spaces_are_requests() -> None:
    assert ncsa(COMMON.replace(b" HTTP/1.0", b""))[4:8] == ("GET", "/apache_pb.gif", "/apache_pb.gif", None)
    assert ncsa(COMMON.replace(b"_pb", b" pb")).page == "/apache pb.gif"


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("/a/b?c=/d?e", "/a/b"),
        ("/a#b", "/a"),
        ("?x", ""),
        ("*", "*"),
        ("http://example.net/a/b?c", "/a/b"),
        ("HTTPS://example.net", "/"),
        ("http://example.net?x", "/"),
        ("/%2e%3f", "/%2e%3f"),
    ],
)
def test_a_page_is_the_path_of_its_url(url: str, page: str) -> None:
    assert page_of(url) == page


def test_zones_and_leap_seconds_are_honoured() -> None:
    assert parse_time("01/Jan/2017:00:59:60 +0100") == parse_time("01/Jan/2017:00:00:00 +0000")
    assert parse_time("10/Oct/2000:13:55:36 -0700") == OCTOBER
    with pytest.raises(LineError):
        parse_time("10/Oct/2000:13:55:61 -0700")


@given(st.binary(max_size=400), st.sampled_from([None, TSV_COLUMNS]))
def test_no_line_ever_raises(data: bytes, columns: tuple[str, ...] | None) -> None:
    found = parse_line(data, file="f", line=1, columns=columns)
    assert (found.error is None) == (found.time is not None)
    assert (found.error is None) == (found.text is None)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=100))
def test_text_in_the_place_of_a_url_comes_back_unchanged(url: str) -> None:
    line = f"h\t-\t1\tGET\t{url}\t200\t1\t\t".encode()
    found = parse_line(line, file="f", line=1, columns=TSV_COLUMNS)
    assert found.error is not None or found.url == url


def test_rows_travel_as_arrow_with_the_schema_spark_is_told() -> None:
    (batch,) = iter_arrow([ncsa(COMBINED), ncsa(b"broken")])
    assert batch.schema.names == [column.split()[0] for column in SCHEMA.split(", ")] == list(Request._fields)
    assert batch.column("time").to_pylist()[0] == datetime.fromisoformat("2000-10-10T13:55:36-07:00")
    assert batch.column("text").to_pylist() == [None, "broken"]
