"""Damage to the files of a checkpoint, as disks, crashes and people cause it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

WAYS = ("missing", "empty", "cut", "flip", "flip at its end")
_END_BYTES = 24


def hurt(file: Path, way: str, numbers: random.Random) -> None:
    """Damage a file; one that is still there keeps its time."""
    if way == "missing":
        file.unlink()
        return
    if way == "old":
        os.utime(file, (1_000_000, 1_000_000))
        return
    data, stat = file.read_bytes(), file.stat()
    at = numbers.randrange(max(0, len(data) - _END_BYTES) if way.endswith("end") else 0, max(1, len(data)))
    if way == "empty" or not data:
        data = b""
    elif way == "cut":
        data = data[:at]
    else:
        data = data[:at] + bytes([data[at] ^ 1 << numbers.randrange(8)]) + data[at + 1 :]
    file.unlink()  # it may be linked elsewhere
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def copy_checkpoint(checkpoint: Path, target: Path) -> Path:
    """A copy with its times, hidden checksums too; paths of schema files name the copy."""
    shutil.copytree(checkpoint, target)
    for file in target.glob("state/*/_metadata/v2/[0-9]*"):
        stat = file.stat()
        file.write_text(file.read_text().replace(f"{checkpoint}/", f"{target}/"))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return target
