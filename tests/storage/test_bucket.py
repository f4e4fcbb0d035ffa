"""URIs of buckets, and where credentials come from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import millpond
from millpond.errors import CheckpointError
from millpond.storage import open_storage, uri_of
from millpond.storage.bucket import Bucket, parse_bucket_uri
from millpond.storage.names import path_of
from servers.proxy import proxy
from servers.s3 import BUCKET, moto_server, use

ACCOUNT = "acc.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("uri", "bucket", "folder"),
    [
        ("s3://b/ck", Bucket(scheme="s3", name="b"), "ck"),
        ("s3a://b/a/b/", Bucket(scheme="s3", name="b"), "a/b"),
        ("s3://b", Bucket(scheme="s3", name="b"), ""),
        ("s3://b//a//b", Bucket(scheme="s3", name="b"), "a/b"),
        ("s3://b/a%20b?c#d", Bucket(scheme="s3", name="b"), "a%20b?c#d"),
        ("gs://b/ck", Bucket(scheme="gs", name="b"), "ck"),
        (f"abfss://c@{ACCOUNT}/ck", Bucket(scheme="abfss", name="c", host=ACCOUNT), "ck"),
        (f"abfs://c@{ACCOUNT}/ck", Bucket(scheme="abfss", name="c", host=ACCOUNT), "ck"),
        ("abfs://c/ck", Bucket(scheme="abfss", name="c"), "ck"),
    ],
)
def test_a_uri_names_a_bucket_and_a_folder(uri: str, bucket: Bucket, folder: str) -> None:
    assert parse_bucket_uri(uri) == (bucket, folder)
    again = f"{bucket.uri}/{folder}"
    assert parse_bucket_uri(again) == (bucket, folder)


@pytest.mark.parametrize("uri", ["s3://", "s3:///x", "gs://@h/x", "s3://user@host/x", "wasb://c@h/x", "hdfs://n/x", "http://h/x"])
def test_what_names_no_bucket_is_refused(uri: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_storage(uri)
    assert caught.value.condition == "UNSUPPORTED"
    assert uri in caught.value.message or uri.split("://")[0] in caught.value.message


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        ("dbfs:/pond", "/dbfs/"),
        ("dbfs:///pond", "/dbfs/"),
        ("wasbs://c@h/x", "abfss://"),
        ("oss://bucket/x", "AWS_ENDPOINT_URL"),
        ("viewfs://cluster/x", "file:"),
        ("maprfs:/x", "/mapr"),
        ("s3:/bucket/x", "two slashes"),
        (Path("s3://bucket/x"), "two slashes"),
        ("http://localhost:8080", "millpond.connect"),
        ("notes:/x", "./notes:/x"),
    ],
)
def test_another_scheme_is_no_folder_of_that_name(
    place: str | Path, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (open_storage, uri_of, millpond.open, millpond.read_arrow):
        with pytest.raises(CheckpointError) as caught:
            read(place, "table") if read is millpond.read_arrow else read(place)
        assert caught.value.condition == "UNSUPPORTED"
        assert str(place) in caught.value.message
        assert instead in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["./dbfs:/pond", "a:b/c", "c:/x", "1:/x", ":/x", "jobs/dbfs:/pond"])
def test_a_path_with_a_colon_is_a_path(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of(uri_of(place)) == os.path.abspath(place)


def test_the_other_clouds_are_opened_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    for uri in ("gs://bucket/ck", f"abfss://c@{ACCOUNT}/ck"):
        storage = open_storage(uri + "/")
        assert storage.uri == uri
        assert storage.is_remote
        assert not sum(storage.requests.values())


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1:4443", "http://127.0.0.1:4443"), ("https://gcs.local/", "https://gcs.local"), ("", None)]
)
def test_another_server_than_googles_is_named_as_for_its_own_clients(host: str, url: str | None) -> None:
    bucket = Bucket(scheme="gs", name="b")
    config, provider = bucket.config({"STORAGE_EMULATOR_HOST": host})
    assert provider is None
    assert (json.loads(config["service_account_key"])["gcs_base_url"] if config else None) == url
    assert bucket.is_plain_http(config) == (url is not None and url.startswith("http://"))


# ---------------------------------------------------------------- the sources of S3's settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = DS\n[work]\naws_access_key_id=W\naws_secret_access_key=WS%\n"
        "aws_session_token = WT\n"
    )
    (folder / "config").write_text(
        "[default]\nregion = eu-west-1\n[profile work]\nregion = us-west-2\nendpoint_url = http://mine:9000/\n"
        "[profile sso]\nsso_session = corp\n"
    )
    return tmp_path


S3 = Bucket(scheme="s3", name="b")


def test_the_environment_comes_before_profiles(home: Path) -> None:
    keys = {"HOME": str(home), "AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "ES", "AWS_REGION": "ap-south-1"}
    # The library reads the keys themselves from the environment.
    assert S3.config(keys) == ({"region": "ap-south-1"}, None)
    assert S3.config({**keys, "AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT_URL_S3": "http://two"})[0]["endpoint"] == "http://two"


def test_buckets_may_stand_in_the_name_of_the_host() -> None:
    environment = {"HOME": "/nowhere", "AWS_ENDPOINT_URL": "https://minio:9000", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}
    assert S3.config(environment) == ({"endpoint": "https://b.minio:9000"}, None)


def keys_of(environment: dict[str, str]) -> tuple[dict[str, str], tuple[str, str, str | None] | None]:
    config, provider = S3.config(environment)
    if provider is None:
        return config, None
    found = provider()
    return config, (found["access_key_id"], found["secret_access_key"], found["token"])


def test_profiles_are_read(home: Path) -> None:
    assert keys_of({"HOME": str(home)}) == ({"region": "eu-west-1"}, ("D", "DS", None))
    work = {"HOME": str(home), "AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "E"}
    assert keys_of(work) == ({"region": "us-west-2", "endpoint": "http://mine:9000"}, ("W", "WS%", "WT"))
    assert keys_of({"HOME": str(home / "nowhere")}) == ({}, None)


def test_the_keys_of_a_profile_reach_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(moto_server()) as (url, faults):
        use(monkeypatch, url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(home))
        storage = open_storage(f"s3://{BUCKET}/profile")
        assert storage.names() == []
        (home / ".aws/credentials").write_text("")
        assert storage.stamp("x") is None  # keys are cached for minutes
    assert faults.count() == 2


@pytest.mark.parametrize("library", ["obstore", "boto3"])
def test_a_library_that_is_missing_is_named_with_its_command(library: str, home: Path) -> None:
    program = f"import sys; sys.modules[{library!r}] = None\nfrom millpond.storage import open_storage\nopen_storage('s3://b/ck')"
    environment = {"HOME": str(home), "AWS_PROFILE": "sso", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    extra = {"obstore": "object-store", "boto3": "object-store,aws-profiles"}[library]
    assert (
        f"[LIBRARY_MISSING] This needs {library}, which isn't installed. Hint: Run: pip install 'millpond[{extra}]'" in done.stderr
    )


def test_a_local_reader_never_loads_the_library() -> None:
    program = "import sys; sys.modules['obstore'] = None\nfrom millpond.storage import open_storage\nopen_storage('/tmp').names()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, check=True, timeout=60)


def test_a_time_limit_that_is_no_number_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_REQUEST_SECONDS", "soon")
    assert open_storage("s3://bucket/ck").uri == "s3://bucket/ck"
