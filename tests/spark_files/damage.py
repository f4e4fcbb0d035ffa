"""Damage to the files of a checkpoint, as disks, crashes and people cause it."""

from __future__ import annotations

import os
import random
import shutil
import zlib
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


def write_checksum(file: Path) -> None:
    """Write Hadoop's hidden checksum beside a file: a CRC-32 of each 512 bytes."""
    data = file.read_bytes()
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0\x00\x00\x02\x00" + sums)


def lose_at_random(checkpoint: Path, numbers: random.Random) -> str:
    """Delete, copy or swap files or folders, as clean-up scripts and copies that were cut do.  Returns what was done.

    One file or some; a folder; all of one level below a folder; a file in place of another of its kind.
    A checksum goes with its file, or stays.
    """
    way = numbers.choice(("file", "file", "files", "folder", "level", "copy", "swap"))
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith("."))
    # Old state files are most of the files, and Spark doesn't read them.
    newer = sorted(files, key=lambda path: path.stat().st_mtime_ns)[-len(files) // 3 :]
    with_checksums = numbers.random() < 0.7

    def name(path: Path) -> str:
        return str(path.relative_to(checkpoint))

    def a_file() -> Path:
        return numbers.choice(numbers.choice((files, newer, newer)))

    def checksum(file: Path) -> Path:
        return file.with_name(f".{file.name}.crc")

    def delete(file: Path) -> str:
        file.unlink()
        if with_checksums:
            checksum(file).unlink(missing_ok=True)
        return name(file)

    if way in ("file", "files"):
        chosen = {a_file() for _ in range(1 if way == "file" else numbers.randrange(2, 5))}
        return f"deleted {', '.join(map(delete, sorted(chosen)))}"
    if way in ("folder", "level"):
        folders = sorted(path for path in checkpoint.rglob("*") if path.is_dir())
        folder = numbers.choice(folders)
        if way == "folder":
            shutil.rmtree(folder)
            return f"deleted {name(folder)}/"
        for path in sorted(folder.parent.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            elif with_checksums or not path.name.startswith("."):
                path.unlink()
        return f"deleted all in {name(folder.parent)}/"
    one = a_file()
    others = [path for path in files if path.suffix == one.suffix and path != one and path.parts[-3:-2] == one.parts[-3:-2]]
    if not others:
        return f"deleted {delete(one)}"
    other = numbers.choice(others)
    pairs = [(one, other)] if not with_checksums else [(one, other), (checksum(one), checksum(other))]
    for a, b in pairs:
        contents = [(path.read_bytes(), path.stat()) if path.exists() else None for path in (a, b)]
        for path, found in ((b, contents[0]), (a, contents[1] if way == "swap" else contents[0])):
            path.unlink(missing_ok=True)  # it may be linked elsewhere
            if found is not None:
                path.write_bytes(found[0])
                os.utime(path, ns=(found[1].st_atime_ns, found[1].st_mtime_ns))
    return f"{'swapped' if way == 'swap' else 'copied'} {name(one)} {'and' if way == 'swap' else 'over'} {name(other)}"


def copy_checkpoint(checkpoint: Path, target: Path) -> Path:
    """A copy with its times, hidden checksums too; paths of schema files name the copy."""
    shutil.copytree(checkpoint, target)
    for file in target.glob("state/*/_metadata/v2/[0-9]*"):
        stat = file.stat()
        file.write_text(file.read_text().replace(f"{checkpoint}/", f"{target}/"))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return target
