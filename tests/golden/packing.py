"""The golden checkpoints, one archive a cell: `packed/CELL.tar.xz`.

Tests read them from a folder into which all are unpacked once.

The same files give the same archive: names in order, without times and owners.

    python tests/golden/packing.py      # where they are unpacked

A script that makes a cell writes it into `made(CELL)`, and packs it from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
_PACKED = HERE / "packed"
_BUILD = HERE.parents[1] / "build" / "golden"
MADE = _BUILD / "made"
_END = ".tar.xz"
_OLD_SECONDS = 86_400


def packed(cell: str) -> Path:
    """The archive of a cell."""
    return _PACKED / f"{cell}{_END}"


def made(cell: str) -> Path:
    """The folder in which a script makes a cell."""
    return MADE / cell


def pack(cell: str, folder: Path) -> None:
    """Make the archive of a cell from a folder."""
    target = packed(cell)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(temporary := target.with_suffix(".tmp"), "w:xz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            content = path.read_bytes()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    temporary.replace(target)


def unpacked() -> Path:
    """The folder with all cells.  The first process that asks unpacks them; the others wait for it."""
    archives = sorted(_PACKED.rglob(f"*{_END}"))
    digest = hashlib.sha256()
    for archive in archives:
        digest.update(archive.relative_to(_PACKED).as_posix().encode() + b"\0" + archive.read_bytes())
    folder = _BUILD / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    _BUILD.mkdir(parents=True, exist_ok=True)
    with open(_BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in _BUILD.iterdir():  # of other archives; a run that began before may still read it
                if old.is_dir() and old != MADE and time.time() - old.stat().st_mtime > _OLD_SECONDS:
                    shutil.rmtree(old)
            temporary = Path(tempfile.mkdtemp(dir=_BUILD))
            for archive in archives:
                _unpack(archive, temporary / archive.relative_to(_PACKED).as_posix().removesuffix(_END))
            os.replace(temporary, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Files get the present time: some tests compare the times of files, and in a clone they have been about the same."""
    with tarfile.open(archive) as opened:
        for entry in opened:
            path = folder / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = opened.extractfile(entry)
            assert content is not None
            path.write_bytes(content.read())


if __name__ == "__main__":
    print(unpacked())
