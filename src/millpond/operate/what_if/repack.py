"""Change files of a state packed with another codec: how much larger or smaller they are."""

from __future__ import annotations

import random
from dataclasses import dataclass

from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.restart_files import partitions_of_stores
from millpond.checkpoint.state import unpack
from millpond.errors import MillpondError
from millpond.storage import Storage

_ENDS = (".delta", ".changelog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repacked:
    """Change files with the codec that they have and with another one, both written here.

    files, of:   how many were packed, of how many
    now, then:   bytes
    low, high:   the least and the greatest ratio of one file
    """

    files: int
    of: int
    now: int
    then: int
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """How many bytes there would be for each that there is."""
        return self.then / self.now if self.now else 1.0


def repack_changes(storage: Storage, batch: CommittedBatch, codec: str, most_bytes: int) -> Repacked | None:
    """Pack change files, of as many bytes as allowed, the same files at each call; None without any.

    Raises:  as the storage; CORRUPT_FILE and the like.
    """
    paths = [
        (f"{folder}/{name}", size)
        for operator in read_operator_files(storage, batch.batch)
        for store, partition in partitions_of_stores(storage, batch, operator)
        for folder in (store.folder(partition),)
        for name, size in storage.sizes(folder).items()
        if name.endswith(_ENDS)
    ]
    random.Random(0).shuffle(paths)  # noqa: S311 - an order, the same at each call
    read = now = then = 0
    ratios: list[float] = []
    for path, size in paths:
        if ratios and read + size > most_bytes:
            break
        read += size
        try:
            data = unpack(storage, path, batch.settings.codec)
        except MillpondError as error:
            if error.condition != "FILE_GONE":
                raise
            continue  # the job has cleaned up
        sizes = [sum(map(len, pack(name, [data]))) for name in (batch.settings.codec, codec)]
        now, then = now + sizes[0], then + sizes[1]
        ratios.append(sizes[1] / sizes[0])
    if not ratios:
        return None
    return Repacked(files=len(ratios), of=len(paths), now=now, then=then, low=min(ratios), high=max(ratios))
