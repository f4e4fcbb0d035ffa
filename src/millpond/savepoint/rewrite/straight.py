"""The rows of a store under other partitions, many at a time: their bytes stay as they are.

With the compiled library, for stores without column families and without row checksums, whose
provider stays.  `rewrite` does the same for all others, row by row.

1. Read each partition's files, window by window.  Spark must have put every row where its hash says.
2. Collect the rows by their new partitions, on disk.  Of the HDFS-backed provider these are all
   records, older ones too, in parts of a partition that are small enough for memory.
3. Write each new partition: the newest record of each key of a part, or the merge of sorted runs.
4. Read what was written, and compare it with what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from millpond.checkpoint.files.records import END_MARK
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rows.columns import Spans
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.store import WholeStore
from millpond.errors import CheckpointError
from millpond.native.calls import Array, Pieces, find_whole_records, newest_records
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.native.rewrite import KINDS, Chunk, Declined, RowSums, hash_rows, iter_merged, write_records
from millpond.savepoint.manifest import damaged
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.savepoint.rewrite.spills import Spills

# A part of a partition is in memory, with the places of its rows.  Files are guessed to unpack to
# eight times their size.
_PART_BYTES = 16 << 20
_TIMES = 8
_MOST_PARTS = 4096


def is_straight(before: CommittedBatch, after: CommittedBatch, store: WholeStore) -> bool:
    """Whether this module can do it."""
    checked = before.settings.row_checksum or after.settings.row_checksum
    same = before.settings.provider == after.settings.provider
    return same and not checked and not store.has_families and library() is not None


def rewrite_straight(
    old: HdfsState | RocksDbState,
    new: HdfsState | RocksDbState,
    before: CommittedBatch,
    after: CommittedBatch,
    store: WholeStore,
    elsewhere: Callable[[WholeStore, int], CheckpointError],
    only: Container[int] | None = None,
) -> tuple[RowSums, RowSums]:
    """Write the store; returns the sums of what was read and of what was written.

    elsewhere:  the error for a row that isn't where its hash says, in this partition
    only:       the partitions to read; None: all
    Raises:     UNSUPPORTED, CORRUPT_FILE and the like; SAVEPOINT_DAMAGED if temporary files changed;
                what the storage raises.
    """
    partitions = partitions_of(before, store.files)
    count, parts = len(partitions_of(after, store.files)), 1
    if isinstance(old, HdfsState):
        packed = sum(map(old.packed_bytes, partitions))
        parts = min(1 + packed * _TIMES // (count * _PART_BYTES), max(1, _MOST_PARTS // count))
    hashes = hasher_of(old, before, store)
    read, written = RowSums(), RowSums()
    with Spills(count * parts) as spills:
        for partition in partitions:  # 1 2
            if only is not None and partition not in only:
                continue
            for chunk in old.iter_chunks(partition):
                places = _zeros(chunk) if store.is_single else hashes(chunk.keys)
                if not store.is_single and (places % len(partitions) != partition).any():
                    raise elsewhere(store, partition)
                read.add(chunk)
                # The hash is a signed number; numpy's remainder isn't, as Spark's.
                areas = places % count * parts + (places // count) % parts
                for area, records in enumerate(write_records(chunk, areas, count * parts)):
                    spills.add_records(area, records)
            spills.end_run()
        try:
            newest, collected = RowSums(), RowSums()
            for partition in range(count):  # 3
                if isinstance(new, HdfsState):
                    areas_of = range(partition * parts, (partition + 1) * parts)
                    new.write_pieces(partition, _newest(spills, areas_of, collected, newest))
                else:
                    new.write_pieces(partition, iter_merged(spills.open_runs(partition)))
        except (Declined, ValueError) as broken:
            raise damaged("The temporary file", "isn't as it was written") from broken
    if isinstance(new, HdfsState):
        if collected != read:
            raise damaged("The temporary file", f"has {collected.count} records, and {read.count} were collected, or others")
        read = newest
    for partition in range(count):  # 4
        for chunk in new.iter_chunks(partition):
            written.add(chunk)
    return read, written


def _newest(spills: Spills, areas: range, collected: RowSums, newest: RowSums) -> Iterator[bytes]:
    """The newest record of each key, without deleted keys."""
    memory = Memory()
    for area in areas:
        records = spills.read_records(area)
        if not records:
            continue
        found = find_whole_records(records, typed=False)
        if found is None or found[1] != len(records):
            raise Declined
        kinds, key_begin, key_size, begin, size = found[0]
        collected.add(Chunk((records, key_begin, key_size), (records, begin, size), kinds != 1))
        data = records + END_MARK
        places = newest_records(data, [(0, len(data), False)], b"", (0, 0), memory)
        if places is None:
            raise Declined
        key_begin, key_size, begin, size = places
        rows = Chunk((data, key_begin, key_size), (data, begin, size))
        newest.add(rows)
        yield bytes(write_records(rows, _zeros(rows), 1)[0])


def _zeros(chunk: Chunk) -> Array:
    import numpy as np

    return np.zeros(len(chunk.keys[1]), np.int64)


def hasher_of(old: HdfsState | RocksDbState, batch: CommittedBatch, store: WholeStore) -> Callable[[Pieces], Array]:
    """A function from keys to Spark's hashes."""
    import numpy as np

    hash_key = old.hasher()
    plain = store.plain_hash(is_row=isinstance(old, HdfsState), avro=batch.settings.encoding == "avro")

    def one_by_one(keys: Pieces) -> Array:
        return np.fromiter(map(hash_key, Spans(*keys).tolist()), np.int64, len(keys[1]))

    if plain is None or any(type_.kind not in KINDS for type_ in plain[2]):
        return one_by_one
    before, fields, types = plain
    kinds = [KINDS[type_.kind] for type_ in types]

    def together(keys: Pieces) -> Array:
        try:
            return hash_rows(keys, before, fields, kinds).astype(np.int64)
        except Declined:  # which says what is wrong
            return one_by_one(keys)

    return together
