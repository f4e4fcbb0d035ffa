"""All files of a folder and of the folders in it."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.storage.base import Storage


def files_below(storage: Storage, folder: str = "") -> Iterator[str]:
    """The paths of the files in a folder and below it, without hidden ones."""
    files, prefix = storage.sizes(folder), f"{folder}/" if folder else ""
    yield from (prefix + name for name in files)
    for name in storage.names(folder):
        if name not in files:
            yield from files_below(storage, prefix + name)
