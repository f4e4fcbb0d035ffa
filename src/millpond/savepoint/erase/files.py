"""The state files of a folder, without the rows of one key.

1. A delta, an HDFS-backed snapshot or a change log is written again without its records of the key,
   deletes too.
2. An SST is written again without any version of these rows; what stays keeps its sequence numbers.
   It gets a new name, made of the hash of its content: Spark shares SSTs by name.
3. A zip that names such an SST is written again, with the new names and the new numbers of keys.
   Its MANIFEST begins anew, since the old one has the first and last key of every SST that there
   ever was.
4. SSTs that aren't needed any more are deleted, and checksum files of what has changed.

A file without the key isn't touched.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millpond.checkpoint.encoding import without_checksum
from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.files.records import DELETE, iter_spans, parse_changelog_header
from millpond.checkpoint.rocksdb.manifest import LiveFile, NewFile, encode_manifest
from millpond.checkpoint.rocksdb.snapshot import Snapshot, find, history_of, parse_snapshot
from millpond.checkpoint.rocksdb.sst import SstFile
from millpond.checkpoint.rocksdb.write_sst import WrittenSst, build_sst_of
from millpond.checkpoint.state import unpack
from millpond.errors import CheckpointError
from millpond.savepoint.erase.key import Columns, OperatorRows, StoreRows
from millpond.schema.strict_json import parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.copying import hash_file

_BOUNDS = FileBounds()
_SSTS = "SSTs"
_DEFAULT = "default"
_KINDS = frozenset({"delta", "snapshot", "changelog", "zip", "sst"})
Judge = Callable[[bytes], Columns | None]
Numbers = Mapping[bytes, str]
"""what stands in front of a key -> its column family"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedFile:
    """A file that has rows of the key, and what takes its place.

    path:      below the folder
    sha256:    of the old one, in hexadecimal
    records:   so many of its records are of the key
    new_path:  where the new one is; None if there is none
    new_bytes, new_sha256:  of the new one; 0 and empty if there is none, or it isn't written yet
    """

    path: str
    sha256: str
    records: int
    new_path: str | None
    new_bytes: int = 0
    new_sha256: str = ""


@dataclass(slots=True)
class Written:
    """The SSTs that a command has written, by hash: savepoints can share the new ones again."""

    paths: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file of an operator's state.

    path:     below the folder
    folder:   that of its partition and store, below the checkpoint
    store:    of the operator
    kind:     its ending without the dot
    """

    path: str
    folder: str
    store: str
    kind: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def version(self) -> int:
        """Of the state; 0 for an SST."""
        number = self.name.partition(".")[0].partition("_")[0]
        return int(number) if self.kind != "sst" and number.isdecimal() else 0


def state_file(path: str, inside: str, operator: int) -> StateFile | None:
    """A file, if it is one of an operator's state.

    path:    below the folder
    inside:  below the checkpoint
    Raises:  UNSUPPORTED for a file of another kind beside these.
    """
    parts = inside.split("/")
    if parts[:2] != ["state", str(operator)] or len(parts) < 4 or not parts[2].isdecimal() or "_metadata" in parts:
        return None
    rest = parts[3:-1]
    if rest[-1:] == [_SSTS]:
        rest = rest[:-1]
    kind = parts[-1].rpartition(".")[2]
    if kind == "crc":
        return None
    if kind not in _KINDS or len(rest) > 1:
        raise CheckpointError(
            "UNSUPPORTED",
            f"{path} lies among the state's files, and Millpond doesn't know what it is.",
            hint="Nothing is erased: move that file away, or delete it.",
            path=path,
        )
    store = rest[0] if rest else _DEFAULT
    return StateFile(path=path, folder="/".join([*parts[:3], *rest]), store=store, kind=kind)


class StateEraser:
    """Erases the rows of a key from the state files of a folder.

    storage:  the folder, on a local disk
    files:    those of the operator
    rows:     which are of the key
    seen:     called with each row of the key: its store and grouping columns
    """

    def __init__(self, storage: Storage, files: Iterable[StateFile], rows: OperatorRows, seen: Callable[[Columns], None]) -> None:
        self._storage, self._rows, self._seen = storage, rows, seen
        self._groups: dict[str, list[StateFile]] = defaultdict(list)
        for file in files:
            self._groups[file.folder].append(file)
        # Folder -> each version that has a snapshot, with the numbers of its column families.
        self._families: dict[str, list[tuple[int, Numbers]]] = defaultdict(list)

    def find(self) -> list[ErasedFile]:
        """The files that have rows of the key; nothing is written.

        Raises:  CORRUPT_FILE and the like, naming the file; UNSUPPORTED for rows that can't be read.
        """
        return list(self._each(None))

    def erase(self, written: Written) -> list[ErasedFile]:
        """Write them again.  Raises as `find`, and NOT_WRITABLE."""
        return list(self._each(written))

    def _each(self, written: Written | None) -> Iterator[ErasedFile]:
        for files in self._groups.values():
            for file in files:
                if file.kind == "zip":
                    self._note_families(file)
        for files in self._groups.values():
            store = self._rows.stores.get(files[0].store)
            if store is None:
                raise CheckpointError(
                    "UNSUPPORTED",
                    f"{files[0].folder} is a store that the operator's metadata doesn't name.",
                    hint="Nothing is erased: move that folder away, or delete it.",
                    path=files[0].folder,
                )
            for file in files:
                if file.kind in ("zip", "sst"):
                    continue
                if (found := self._log(file, store.judge(self._numbers_at(file)), written)) is not None:
                    yield found
            ssts = {file.path: file for file in files if file.kind == "sst"}
            yield from self._snapshots(store, ssts, [file for file in files if file.kind == "zip"], written)

    def _note_families(self, file: StateFile) -> None:
        data = self._storage.read(file.path, _BOUNDS.snapshot_bytes)
        self._families[file.folder].append((file.version, _numbers_of(parse_snapshot(data, file.path, lambda name: name))))

    def _numbers_at(self, file: StateFile) -> Numbers:
        """Those of a change log: Spark writes a snapshot when they change, and a repartition changes them."""
        here = self._families.get(file.folder) or [found for every in self._families.values() for found in every]
        before = [found for found in here if found[0] <= file.version]
        if not here:
            return {}
        best = max(version for version, _ in before) if before else min(version for version, _ in here)
        fitting = [numbers for version, numbers in here if version == best]
        if any(numbers != fitting[0] for numbers in fitting):
            raise CheckpointError(
                "UNSUPPORTED",
                f"Snapshots of one version number the column families of {file.path} differently.",
                hint="Nothing is erased: report this with the job's Spark version.",
                path=file.path,
            )
        return fitting[0]

    def _log(self, file: StateFile, judge: Judge, written: Written | None) -> ErasedFile | None:  # 1
        settings = self._rows.settings
        data = unpack(self._storage, file.path, settings.codec)
        try:
            pieces, records = self._without(data, judge, is_changelog=file.kind == "changelog")
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, file.path)) from error
        if not records:
            return None
        old = self._hash(file.path)
        if written is None:
            return ErasedFile(path=file.path, sha256=old, records=records, new_path=file.path)
        self._forget_checksums(file.path)
        content = b"".join(pack(settings.codec, [b"".join(pieces)]))
        self._storage.write(file.path, content)
        return _erased(file.path, old, records, file.path, content)

    def _without(self, data: bytes, judge: Judge, *, is_changelog: bool) -> tuple[list[bytes], int]:
        begin, typed = 0, False
        if is_changelog:
            header = parse_changelog_header(data)
            begin, typed = header.start, header.version in (2, 4)
        pieces, kept, records, checked = [], 0, 0, self._rows.settings.row_checksum
        for kind, key_at, key_size, value_at, value_size in iter_spans(data, begin, typed=typed):
            key = data[key_at : key_at + key_size]
            columns = judge(without_checksum(key) if checked and kind == DELETE else key)
            if columns is None:
                continue
            self._seen(columns)
            pieces.append(data[kept : key_at - (5 if typed else 4)])
            kept, records = value_at + value_size, records + 1
        return [*pieces, data[kept:]], records

    def _snapshots(
        self, store: StoreRows, ssts: Mapping[str, StateFile], zips: list[StateFile], written: Written | None
    ) -> Iterator[ErasedFile]:
        places = {file.name: path for path, file in ssts.items()}
        judges, opened = self._judges(store, ssts, zips, places)
        found = {path: counted for path in ssts if (counted := self._keys(path, judges[path]))}
        new = {path: self._new_sst(path, judges[path], written) for path in found} if written is not None else {}
        changed = []
        for file, data, snapshot in opened:  # 3: before any SST goes
            judge = store.judge(_numbers_of(snapshot))
            keys = {key for path, _ in snapshot.files for key in found.get(path, ())}
            named = [name for name in snapshot.metadata.sst_names.values() if places.get(name) in found]
            ends = [key for key in history_of(data, file.path).ends if judge(key) is not None]
            if not (keys or named or ends):
                continue
            old = self._hash(file.path)
            if written is None:
                changed.append(ErasedFile(path=file.path, sha256=old, records=0, new_path=file.path))
                continue
            content = self._new_zip(data, snapshot, keys, store, new, places)
            changed.append(_erased(file.path, old, 0, file.path, content))
            self._forget_checksums(file.path)
            self._storage.write(file.path, content)
        for path, counted in found.items():
            old, records = self._hash(path), sum(counted.values())
            if written is None:
                changed.append(ErasedFile(path=path, sha256=old, records=records, new_path=None))
                continue
            sst = new[path]
            changed.append(
                ErasedFile(path=path, sha256=old, records=records, new_path=None)
                if sst is None
                else _erased(path, old, records, sst[0], sst[1].content)
            )
            self._forget_checksums(path)  # 4
            self._storage.delete(path)
        yield from changed

    def _judges(
        self, store: StoreRows, ssts: Mapping[str, StateFile], zips: list[StateFile], places: Mapping[str, str]
    ) -> tuple[dict[str, Judge], list[tuple[StateFile, bytes, Snapshot]]]:
        """What judges the keys of each SST: by the numbers of the snapshots that name it."""
        opened: list[tuple[StateFile, bytes, Snapshot]] = []
        numbers: dict[str, list[Numbers]] = defaultdict(list)
        for file in zips:
            data = self._storage.read(file.path, _BOUNDS.snapshot_bytes)
            snapshot = parse_snapshot(data, file.path, partial(_path_of, places, file))
            opened.append((file, data, snapshot))
            for name in snapshot.metadata.sst_names.values():
                if _numbers_of(snapshot) not in numbers[name]:
                    numbers[name].append(_numbers_of(snapshot))
        every = [found for _, found in self._families.get(next(iter(ssts.values())).folder, ())] if ssts else []
        judges: dict[str, Judge] = {}
        for path, file in ssts.items():
            # A failed batch leaves SSTs that no snapshot names.
            fitting = [store.judge(found) for found in numbers[file.name] or every]
            judges[path] = fitting[0] if len(fitting) == 1 else _any_of(fitting)
        return judges, opened

    def _keys(self, path: str, judge: Judge) -> dict[bytes, int]:
        """The keys of an SST that are erased, with their numbers of versions."""
        counted: dict[bytes, int] = {}
        with SstFile(self._storage, path) as sst:
            for entries in sst.iter_entries():
                for key in entries.keys:
                    columns = judge(key)
                    if columns is not None:
                        counted[key] = counted.get(key, 0) + 1
                        self._seen(columns)
        return counted

    def _new_sst(self, path: str, judge: Judge, written: Written) -> tuple[str, WrittenSst] | None:  # 2
        def entries() -> Iterator[tuple[bytes, int, bytes]]:
            with SstFile(self._storage, path) as sst:
                for found in sst.iter_entries():
                    yield from (entry for entry in zip(*found, strict=True) if judge(entry[0]) is None)

        sst = build_sst_of(entries())
        if sst is None:
            return None
        folder, _, name = path.rpartition("/")
        digest = hashlib.sha256(sst.content)
        target = f"{folder}/{name.partition('-')[0].removesuffix('.sst')}-{uuid.UUID(bytes=digest.digest()[:16])}.sst"
        place, same = self._storage.local_path(target), written.paths.get(digest.hexdigest())
        try:
            if place is None or same is None:
                raise FileNotFoundError
            os.link(same, place)
        except OSError:
            self._storage.write(target, sst.content)
        return target, sst

    def _new_zip(
        self,
        data: bytes,
        snapshot: Snapshot,
        keys: set[bytes],
        store: StoreRows,
        new: Mapping[str, tuple[str, WrittenSst] | None],
        places: Mapping[str, str],
    ) -> bytes:
        internal = {
            number.to_bytes(2, "little")
            for name, number in snapshot.metadata.column_families.items()
            if name in snapshot.metadata.internal
        }
        delimiter = store.settings.merge_delimiter
        rows = [key for key in sorted(keys) if find(self._storage, snapshot, key, delimiter) is not None]
        hidden = sum(key[:2] in internal for key in rows) if internal else 0
        history = history_of(data, snapshot.path)
        manifest = encode_manifest(
            [file for path, live in snapshot.files if (file := _new_file(live, new, path)) is not None],
            next_file=history.next_file,
            sequence=history.sequence,
            log=history.log,
        )

        def metadata(text: bytes) -> bytes:
            version, _, body = text.partition(b"\n")
            facts = parse_json(body)
            kept = []
            for sst in facts["sstFiles"]:
                path = places.get(sst["dfsSstFileName"], "")
                if path in new:
                    made = new[path]
                    if made is None:
                        continue
                    size = len(made[1].content)
                    sst = {**sst, "dfsSstFileName": made[0].rpartition("/")[2], "sizeBytes": size}
                kept.append(sst)
            facts["sstFiles"] = kept
            for name, gone in (("numKeys", len(rows) - hidden), ("numInternalKeys", hidden)):
                if facts.get(name, -1) >= 0:  # Spark doesn't always count
                    facts[name] = max(0, facts[name] - gone)
            return version + b"\n" + json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()

        return _rezipped(data, manifest, metadata)

    def _hash(self, path: str) -> str:
        return hash_file(self._storage, path, most_bytes=_BOUNDS.state_bytes).sha256

    def _forget_checksums(self, path: str) -> None:
        """Before the file changes: a missing one is right, a stale one is not."""
        folder, _, name = path.rpartition("/")
        self._storage.delete(f"{folder}/.{name}.crc")
        self._storage.delete(f"{path}.crc")


def _numbers_of(snapshot: Snapshot) -> Numbers:
    return {number.to_bytes(2, "little"): name for name, number in snapshot.metadata.column_families.items()}


def _any_of(judges: list[Judge]) -> Judge:
    """Whether a key is erased by one of them: where families have several numbers."""

    def judge(key: bytes) -> Columns | None:
        for each in judges:
            try:
                found = each(key)
            except CheckpointError:  # of another family, by the other numbers
                continue
            if found is not None:
                return found
        return None

    return judge


def _path_of(places: Mapping[str, str], file: StateFile, name: str) -> str:
    if name not in places:
        raise CheckpointError(
            "FILE_GONE",
            f"{file.path} names the SST {name}, which doesn't exist.",
            hint="Delete this snapshot if nothing needs it: millpond verify or repair says so.",
            path=file.path,
        )
    return places[name]


def _new_file(live: LiveFile, new: Mapping[str, tuple[str, WrittenSst] | None], path: str) -> NewFile | None:
    ends, size = live.ends, live.size_bytes
    if path in new:
        made = new[path]
        if made is None:
            return None
        ends, size = made[1].ends, len(made[1].content)
    return NewFile(
        number=live.number,
        size_bytes=size,
        smallest=ends[0],
        largest=ends[1],
        level=live.level,
        oldest=live.oldest,
        newest=live.newest,
        epoch=live.epoch,
    )


def _rezipped(data: bytes, manifest: bytes, metadata: Callable[[bytes], bytes]) -> bytes:
    """A zip with another MANIFEST, and its metadata changed."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        current = old.read("CURRENT").decode().rstrip("\n")
        for member in old.infolist():
            content = old.read(member.filename)
            if member.filename.startswith("MANIFEST-"):
                if member.filename != current:
                    continue
                content = manifest
            elif member.filename == "metadata":
                content = metadata(content)
            new.writestr(zipfile.ZipInfo(member.filename, member.date_time), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _erased(path: str, old: str, records: int, new_path: str, content: bytes) -> ErasedFile:
    digest = hashlib.sha256(content).hexdigest()
    return ErasedFile(path=path, sha256=old, records=records, new_path=new_path, new_bytes=len(content), new_sha256=digest)


def as_json(file: ErasedFile) -> dict[str, Any]:
    """For a receipt."""
    return {
        "file": file.path,
        "sha256": file.sha256,
        "records": file.records,
        "new_file": file.new_path,
        "new_sha256": file.new_sha256 or None,
    }
