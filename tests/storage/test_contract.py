"""Every backend behaves alike: a local disk, buckets of a real S3 server, and Azurite.

Google's client uses an XML API that differs from S3's in signatures and conditions only, so the S3 server can answer it.
"""

from __future__ import annotations

import hashlib
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.errors import MillpondError, SetupError
from millpond.storage import Storage, open_storage, uri_of
from millpond.storage.copying import copy_file, hash_file
from millpond.storage.names import hadoop_uri, last_name, path_of_hadoop
from servers.azurite import azurite_server, use_azurite
from servers.proxy import proxy
from servers.s3 import BUCKET, PAGE, moto_server, use

BACKENDS = ("local", "s3", "gs", "azure")
MOST = 4_000_000


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    if request.param == "local":
        yield open_storage(tmp_path / "a folder")
    elif request.param == "azure":
        yield open_storage(f"{use_azurite(monkeypatch, azurite_server())}/{uuid.uuid4().hex}/a folder")
    elif request.param == "gs":
        with proxy(moto_server()) as (url, _):
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            yield open_storage(f"gs://{BUCKET}/{uuid.uuid4().hex}/a folder")
    else:
        use(monkeypatch, moto_server())
        yield open_storage(f"s3://{BUCKET}/{uuid.uuid4().hex}/a folder")


def test_what_was_written_is_read(storage: Storage) -> None:
    for data in (b"", b"\x00\xff" * 7, b"x" * 3_000_000):
        storage.write("state/0/1.delta", data)
        assert storage.read("state/0/1.delta", MOST) == data


def test_a_file_that_is_too_large_is_refused(storage: Storage) -> None:
    storage.write("file", b"12345")
    assert storage.read("file", 5) == b"12345"
    for read in (storage.read, storage.read_ours, lambda path, most: list(storage.iter_pieces(path, 2, most))):
        with pytest.raises(MillpondError, match="file has 5 bytes") as caught:
            read("file", 4)
        assert caught.value.condition == "CORRUPT_FILE"


def test_a_folder_is_a_storage_of_its_own(storage: Storage) -> None:
    folder = storage.folder("a/b")
    folder.write("file", b"12")
    assert folder.uri == f"{storage.uri}/a/b"
    assert storage.read("a/b/file", MOST) == folder.folder("").read("file", MOST) == b"12"


@pytest.mark.parametrize(
    "name", ["a b", "ü", "100%", "%41", "a#b", "a?b", "a&b=c", "a+b", "[x]", "{y}", "~z", "a:b", "a'b", 'a"b', "a\\b"]
)
def test_names_are_taken_as_they_are(storage: Storage, name: str) -> None:
    if name == "a\\b" and storage.uri.startswith("abfss:"):
        pytest.skip("to Azure a backslash is a slash")
    storage.write(f"folder/{name}", name.encode())
    assert storage.read(f"folder/{name}", MOST) == name.encode()
    assert storage.names("folder") == [name]


def test_a_file_that_isnt_there(storage: Storage) -> None:
    storage.write("there/file", b"")
    for path in ("missing", "there", "there/file/below", "there/missing", "no\0name"):
        with pytest.raises(MillpondError) as caught:
            storage.read(path, MOST)
        assert caught.value.condition in ("FILE_GONE", "CORRUPT_FILE")
        assert caught.value.condition == "FILE_GONE" or path == "there"
        assert storage.names(path) == (["file"] if path == "there" else [])
    for path in ("missing", "there/file/below", "no\0name"):
        assert storage.stamp(path) is None
        assert storage.sizes(path) == {}


def test_a_stamp_tells_one_content_from_another(storage: Storage) -> None:
    before = time.time()
    storage.write("file", b"one")
    first = storage.stamp("file")
    assert first is not None
    assert first == storage.stamp("file")
    assert first.size_bytes == 3
    assert before - 2 < first.modified_ns / 1e9 < time.time() + 2
    storage.write("file", b"two")
    assert storage.stamp("file") != first


def test_names_are_a_folders_files_and_folders_without_hidden_ones(storage: Storage) -> None:
    for path in ("b", "a/x", "a/y/z", ".hidden", "a/.hidden", ".folder/x", "ab/c"):
        storage.write(path, b"12")
    assert storage.names() == ["a", "ab", "b"]
    assert storage.names("a") == ["x", "y"]
    assert storage.sizes("a") == {"x": 2}
    assert storage.sizes() == {"b": 2}
    assert storage.names("b") == storage.names("c") == []


def test_a_long_folder_is_listed_whole(storage: Storage) -> None:
    names = [f"{n:04}" for n in range(3 * PAGE // 2)]
    for name in names:
        storage.write(f"commits/{name}", b"")
    assert storage.names("commits") == names


def test_a_reader_sees_the_old_file_or_the_new_one(storage: Storage) -> None:
    contents = [bytes([n]) * 200_000 for n in range(6)]
    storage.write("file", contents[0])
    done = threading.Event()

    def replace() -> None:
        try:
            for content in contents[1:]:
                storage.write("file", content)
        finally:
            done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    while not done.is_set():
        assert storage.read("file", MOST) in contents
    writer.join()
    assert storage.read("file", MOST) == contents[-1]
    assert storage.names() == ["file"]


def test_a_uri_opens_the_same_place_again(storage: Storage) -> None:
    storage.write("folder/file", b"here")
    assert not storage.uri.endswith("/")
    assert open_storage(storage.uri).read("folder/file", MOST) == b"here"
    assert open_storage(f"{storage.uri}/folder/").uri == f"{storage.uri}/folder"
    assert open_storage(f"{storage.uri}/folder/").read("file", MOST) == b"here"


@pytest.mark.parametrize("name", ["a%20b", "a b", "%2e%2e", "100%", "a?b", "a#b", "ä €", "%25%2520", "+"])
def test_a_uri_opens_the_same_place_again_whatever_it_is_called(storage: Storage, name: str) -> None:
    folder = storage.folder(name)
    folder.write("file", name.encode())
    assert uri_of(folder.uri) == folder.uri == uri_of(uri_of(folder.uri))
    assert open_storage(folder.uri).read("file", MOST) == name.encode()
    path = folder.local_path()
    if path is not None:
        assert open_storage(path).uri == open_storage(str(path)).uri == folder.uri
        # As Java's URI writes it, and as Hadoop's Path does.
        assert uri_of(path.as_uri()) == uri_of(path.as_uri().replace("file:///", "file:/")) == folder.uri
        assert uri_of(path_of_hadoop(f"file:{path}")) == uri_of(path_of_hadoop(hadoop_uri(folder.uri))) == folder.uri
        assert last_name(folder.uri) == name


def test_what_is_remote_counts_its_requests(storage: Storage) -> None:
    assert not sum(storage.requests.values())
    storage.write("file", b"")
    storage.read("file", MOST)
    storage.stamp("file")
    storage.stamp("missing")
    storage.names()
    wanted = {"put": 1, "get": 1, "head": 2, "list": 1, "retried": 0}
    assert storage.requests == (wanted if storage.is_remote else {})
    assert (storage.local_path("file") is None) == storage.is_remote


# ---------------------------------------------------------------- what only buckets have


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, moto_server())
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def test_empty_objects_that_stand_for_folders_are_no_files(s3: str) -> None:
    storage = open_storage(s3)
    storage.write("commits/0", b"v1")
    place = f"{moto_server()}/{s3.removeprefix('s3://')}"
    for folder in ("", "commits/", "state/", "state/0/"):
        urllib.request.urlopen(urllib.request.Request(f"{place}/{folder}", b"", method="PUT"), timeout=60).close()
    assert storage.names() == ["commits", "state"]
    assert storage.names("commits") == ["0"]
    assert storage.names("state") == ["0"]
    assert storage.names("state/0") == []
    assert storage.sizes() == {}


def test_a_bucket_that_isnt_there_is_named(s3: str) -> None:
    storage = open_storage("s3://no-such-bucket/ck")
    for call in (storage.names, lambda: storage.write("x", b"")):
        with pytest.raises(MillpondError) as caught:
            call()
        assert caught.value.condition in ("NO_CHECKPOINT", "NOT_WRITABLE")
        assert "bucket" in caught.value.message


def test_a_name_with_two_slashes_is_refused_and_not_passed_over(s3: str) -> None:
    storage = open_storage(s3)
    storage.write("a/x", b"")
    place = f"{moto_server()}/{s3.removeprefix('s3://')}"
    urllib.request.urlopen(urllib.request.Request(f"{place}/a//y", b"", method="PUT"), timeout=60).close()
    with pytest.raises(MillpondError) as caught:
        storage.names("a")
    assert caught.value.condition == "CORRUPT_FILE"


def test_s3_and_s3a_are_one_place(s3: str) -> None:
    assert open_storage(s3.replace("s3://", "s3a://")).uri == open_storage(s3 + "/").uri == s3


def test_a_write_without_the_right_to_it_is_a_matter_of_setup(s3: str) -> None:
    from servers.proxy import proxy

    with proxy(moto_server()) as (url, faults), pytest.MonkeyPatch.context() as patch:
        use(patch, url)
        faults.before = lambda method, path: 403 if method == "PUT" else None
        with pytest.raises(SetupError) as caught:
            open_storage(s3).write("x", b"")
    assert caught.value.condition == "NOT_WRITABLE"


def test_of_several_writers_one_creates_a_file(storage: Storage) -> None:
    if storage.uri.startswith("gs:"):
        pytest.skip("the S3 server that stands in for Google's knows no conditions and no copies")
    created: list[bytes] = []

    def create(data: bytes) -> None:
        if storage.create("folder/claim", data):
            created.append(data)

    threads = [threading.Thread(target=create, args=(uuid.uuid4().bytes,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert storage.read("folder/claim", MOST) == created[0]
    assert storage.names("folder") == ["claim"]


def test_of_several_writers_one_replaces_what_they_have_read(storage: Storage) -> None:
    if storage.uri.startswith("gs:"):
        pytest.skip("the S3 server that stands in for Google's knows no conditions and no copies")
    assert not storage.replace("folder/note", b"", b"first")
    storage.write("folder/note", b"first")
    for other in (b"", b"firsd", b"first and more"):
        assert not storage.replace("folder/note", other, b"second")
    assert storage.read("folder/note", MOST) == b"first"
    replaced: list[bytes] = []

    def replace(data: bytes) -> None:
        if storage.replace("folder/note", b"first", data):
            replaced.append(data)

    threads = [threading.Thread(target=replace, args=(uuid.uuid4().bytes,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replaced) == 1
    assert storage.read("folder/note", MOST) == replaced[0]
    assert storage.names("folder") == ["note"]


def test_pieces_are_one_file_and_nothing_if_they_fail(storage: Storage) -> None:
    storage.write_pieces("folder/file", iter([b"12", b"", b"x" * 3_000_000]))
    assert storage.read("folder/file", MOST) == b"12" + b"x" * 3_000_000

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("no more pieces")

    with pytest.raises(RuntimeError):
        storage.write_pieces("folder/other", broken())
    assert storage.names("folder") == ["file"]


@pytest.mark.parametrize("share", [False, True])
def test_a_file_is_taken_from_another_folder(storage: Storage, share: bool) -> None:
    if storage.uri.startswith("gs:"):
        pytest.skip("the S3 server that stands in for Google's knows no conditions and no copies")
    source, target = storage.folder("from"), storage.folder("to/there")
    source.write("a b/file", b"12" * 1000)
    assert target.take(source, "a b/file", "c/file", share=share)
    assert target.read("c/file", MOST) == b"12" * 1000
    source.delete("a b/file")
    assert target.read("c/file", MOST) == b"12" * 1000
    with pytest.raises(MillpondError) as caught:
        target.take(source, "a b/file", "c/other", share=share)
    assert caught.value.condition == "FILE_GONE"
    assert target.names("c") == ["file"]
    target.sync()


def test_a_copy_has_the_hash_of_its_bytes(storage: Storage, tmp_path: Path) -> None:
    data = b"x" * 3_000_000
    storage.write("file", data)
    there = open_storage(tmp_path / "there")
    for source, target in ((storage, storage), (storage, there), (there, storage)):
        copied = (
            copy_file(source, "file", target, "file", most_bytes=MOST)
            if source is not target
            else hash_file(storage, "file", most_bytes=MOST)
        )
        assert (copied.size_bytes, copied.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert target.read("file", MOST) == data


def test_what_is_deleted_is_gone_and_nothing_else(storage: Storage) -> None:
    for name in ("a/one", "a/b/two", "a/b/.hidden", "ab/three", "four"):
        storage.write(name, b"x")
    storage.delete("a/one")
    storage.delete("a/one")  # not there any more
    assert storage.names("a") == ["b"]
    storage.delete_all("a")
    storage.delete_all("a")
    assert storage.names() == ["ab", "four"]
    storage.delete("ab/three")
    assert storage.names() == ["four"]
