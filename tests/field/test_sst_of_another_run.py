"""An SST of the same name and size from another run, as a copy of two checkpoints over each other leaves it.

RocksDB compares the id in the file with the one in the MANIFEST when it opens a database, and fails.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.checkpoint.rocksdb.manifest import encode_edits, iter_edits, parse_manifest
from millpond.checkpoint.rocksdb.sst import session_of
from millpond.errors import CheckpointError
from millpond.savepoint.repair.diagnosis import diagnose
from millpond.storage import open_storage

BEGUN_ELSEWHERE = 7


def of_another_run(snapshot: Path) -> bool:
    """Give a snapshot's MANIFEST the ids of another run, as if its SSTs were another one's; False if it has none."""
    with zipfile.ZipFile(snapshot) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (each for each in members if each.startswith("MANIFEST"))
    sessions = {file.session for file in parse_manifest(members[name])}
    edits = [edit for _, edit in iter_edits(members[name])]
    for session in sessions:
        assert session is not None
        ids = [number.to_bytes(8, "little") for number in (session, session ^ BEGUN_ELSEWHERE)]
        edits = [edit.replace(*ids) for edit in edits]
    members[name] = encode_edits(edits)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for each, data in members.items():
            archive.writestr(each, data)
    snapshot.write_bytes(packed.getvalue())
    snapshot.with_name(f".{snapshot.name}.crc").unlink(missing_ok=True)
    return bool(sessions)


def newest(partition: Path) -> Path:
    return max(partition.glob("*.zip"), key=lambda path: int(path.stem.partition("_")[0]))


@pytest.mark.parametrize("cell", ["counts-rocksdb-snapshots", "spark-4.3/transform-state-avro-rocksdb-changelog"])
def test_no_row_of_it_is_served(golden: Callable, cell: str) -> None:
    checkpoint = golden(cell).checkpoint
    with millpond.open(checkpoint, replica_dir="memory://") as pond:
        tables = pond.tables()
    whole = {table: millpond.read_arrow(checkpoint, table) for table in tables}
    assert any(rows.num_rows for rows in whole.values())
    assert diagnose(open_storage(checkpoint)).findings == ()
    snapshots = [newest(partition) for partition in (checkpoint / "state/0").iterdir() if partition.name.isdigit()]
    changed = [path for path in snapshots if of_another_run(path)]
    assert changed
    findings = diagnose(open_storage(checkpoint)).findings
    assert {path.split("/")[2] for f in findings if (path := f.path).endswith((".sst", ".zip"))} == {p.parent.name for p in changed}
    assert all(f.effect in ("fails", "may fail") for f in findings)  # may: with an older snapshot, since Spark 4.1
    with pytest.raises(CheckpointError, match="another run"):
        _ = [millpond.read_arrow(checkpoint, table) for table in tables]
    with pytest.raises(CheckpointError, match="another run"):
        millpond.open(checkpoint, replica_dir="memory://", wait_seconds=1).tables()
    plan = millpond.plan_repair(checkpoint, to=checkpoint.with_name("repaired"))
    if plan.restart is not None:
        plan.run()
        found = diagnose(open_storage(checkpoint.with_name("repaired")))
        assert found.is_sound


def test_an_id_is_the_lower_half_of_what_the_digits_say() -> None:
    assert session_of(b"") is None
    assert session_of(b"ABC") is None
    assert session_of(b"00000001000000000001") == 1 << 62 | 1
    assert session_of(b"00000004000000000001") == 1
