"""A state really written in another form, in a temporary folder, and measured there.

1. The logs and schemas of the batch are copied into the folder, and the state is written beside them
   as a restore writes it: whole snapshots, compared with what was read.
2. A state of more bytes than allowed is written in part: some partitions, each in a folder of its
   own, so that each gives a ratio.
3. So is the state as it is: files of Spark's between two snapshots have older values too.

The job's own files are only read.  It may run meanwhile: if Spark cleans a file up, it begins anew
with the newest batch.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import partitions_of_stores, restart_files
from millpond.errors import MillpondError, SetupError
from millpond.operate.measure import OperatorState
from millpond.savepoint.restore import anchored_file
from millpond.savepoint.rewrite.form import AS_IT_WAS, StateForm
from millpond.savepoint.rewrite.rewrite import rewrite_state
from millpond.savepoint.rewrite.row_edit import RowEdit
from millpond.savepoint.rows import count_rows
from millpond.storage import Storage, open_storage
from millpond.storage.copying import copy_file
from millpond.storage.names import hadoop_uri

Edits = Callable[[], Iterable[RowEdit]]
"""fresh edits for one writing, since an edit counts"""
SAMPLED_PARTITIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A state as whole snapshots.

    bytes, rows:  operator -> partition -> of its files; of its tables
    """

    bytes: dict[int, Counter[int]] = field(default_factory=dict)
    rows: dict[int, Counter[int]] = field(default_factory=dict)

    @property
    def all_bytes(self) -> int:
        """Of all operators."""
        return sum(each.total() for each in self.bytes.values())

    @property
    def all_rows(self) -> int:
        """Of all operators."""
        return sum(each.total() for each in self.rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A state as it is and as it would be, of the same partitions.

    pairs:   of the whole state one; of a sample one for each partition that was written
    share:   of the state's bytes that these are
    """

    pairs: tuple[tuple[Size, Size], ...]
    share: float
    of: int

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole state."""
        return self.share == 1.0


def write_both(
    storage: Storage,
    batch: CommittedBatch,
    state: dict[int, OperatorState],
    form: StateForm,
    edits: Edits,
    most_bytes: int,
) -> Written:
    """Write a state as it is and in another form.

    state:       the bytes of each partition now (`JobMeter.partitions_at`)
    most_bytes:  of state files that are read; a larger state is written in part
    Raises:      as `rewrite_state`; FILE_GONE if the job has cleaned up; NOT_WRITABLE.
    """
    sizes: Counter[int] = Counter()
    for operator in state.values():
        sizes.update(operator.state)
    if sizes.total() <= most_bytes:
        pair = _write(storage, batch, AS_IT_WAS, (), None), _write(storage, batch, form, edits(), None)
        return Written(pairs=(pair,), share=1.0, of=len(sizes))
    chosen = _chosen(sizes, most_bytes)
    pairs = [
        (_write(storage, batch, AS_IT_WAS, (), {number}), _write(storage, batch, form, edits(), {number})) for number in chosen
    ]
    return Written(pairs=tuple(pairs), share=sum(sizes[number] for number in chosen) / sizes.total(), of=len(sizes))


def _chosen(sizes: Counter[int], most_bytes: int) -> list[int]:  # 2
    """Some partitions by chance, the same at each call; of as many bytes as allowed, at least one."""
    order = sorted(number for number, size in sizes.items() if size)
    random.Random(0).shuffle(order)  # noqa: S311 - an order, the same at each call
    found = order[:1]
    for number in order[1:SAMPLED_PARTITIONS]:
        if sum(sizes[each] for each in found) + sizes[number] <= most_bytes:
            found.append(number)
    return found


def _write(
    storage: Storage, batch: CommittedBatch, form: StateForm, edits: Iterable[RowEdit], only: Collection[int] | None
) -> Size:
    with _folder() as target:  # 1
        for file in restart_files(storage, batch):
            if file.partition is not None:
                continue
            if "/_metadata/v2/" in file.path:
                text = storage.read(file.path, file.most_bytes)
                target.write(file.path, anchored_file(text, file.path, hadoop_uri(target.uri)))
            else:
                copy_file(storage, file.path, target, file.path, most_bytes=file.most_bytes)
        rewrite_state(storage, batch.batch, target, form, edits, only)
        return _measured(target, read_batch(target, Batch(batch.batch)))


@contextmanager
def _folder() -> Iterator[Storage]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="millpond-what-if-")
    except OSError as broken:
        hint = "Free some space there, or name a folder on another disk in TMPDIR."
        raise SetupError("NOT_WRITABLE", f"No temporary folder can be made: {broken.strerror}.", hint=hint) from broken
    with folder as path:
        yield open_storage(Path(path))


def _measured(storage: Storage, batch: CommittedBatch) -> Size:
    found = Size()
    for files in read_operator_files(storage, batch.batch):
        sizes = found.bytes.setdefault(files.operator, Counter())
        for store, partition in partitions_of_stores(storage, batch, files):
            folder = store.folder(partition)
            sizes[partition] += sum(storage.sizes(folder).values()) + sum(storage.sizes(f"{folder}/SSTs").values())
    for (operator, _, partition), rows in count_rows(storage, batch):
        if isinstance(rows, MillpondError):
            raise rows
        found.rows.setdefault(operator, Counter())[partition] += rows
    return found
