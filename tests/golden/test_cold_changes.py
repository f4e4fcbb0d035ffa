"""The changes of a range of batches, read from the checkpoint alone, are those of a replica with history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError
from millpond.native.memory import Memory
from millpond.schema.definition.table import parse_definition
from millpond.settings import Retention
from millpond.storage import open_storage
from millpond.tables.cold.changes import check_changeable, iter_changes, iter_inserts
from millpond.tables.cold.table import ColdTable
from millpond.tables.forms.arrow import rows_table
from spark_files.golden import GOLDEN
from suite.sizes import a_few

pytestmark = pytest.mark.usefixtures("either_way")

pa = pytest.importorskip("pyarrow")
CELLS = [
    (str(p.parent.relative_to(GOLDEN)), defined)
    for p in sorted([*GOLDEN.glob("*/state.json"), *GOLDEN.glob("spark-4.3/*/state.json")])
    for defined in (True, False)
    if not defined or (p.parent / "definition.json").exists()
]
Side = dict[str, Any] | None


def texts(definition: Any, names: list[str], sides: list[Side]) -> list[str]:
    """Each row's columns as text, in the form that Arrow gives them; types count."""
    some = [{name: side[name] for name in names} for side in sides if side is not None]
    columns = {
        "key": tuple(c for c in definition.key if c.name in names),
        "values": tuple(c for c in definition.values if c.name in names),
    }
    shown = iter(rows_table(pa, replace(definition, **columns), some, "job", 0).to_pylist() if names else some)  # type: ignore[arg-type]
    return [repr(None if side is None else next(shown)) for side in sides]


def of_replica(table: Any, definition: Any, first: int) -> Counter[tuple[Any, ...]]:
    # A row that a batch put and deleted was there at no batch: a replica says that it expired, the files that nothing changed.
    changes = [change for change in table.changes(first) if change.old is not None or change.new is not None]
    key, values = [c.name for c in definition.key], [c.name for c in definition.values]
    each = [texts(definition, key, [dict.copy(c.row) for c in changes])]
    each += [texts(definition, values, [getattr(c, side) for c in changes]) for side in ("old", "new")]
    return Counter(zip([c.batch for c in changes], [c.kind for c in changes], *each, strict=True))


def of_files(table: Any, before: int, last: int) -> Counter[tuple[Any, ...]]:
    found = table.table_batch(expired=True)
    storage, definition = table.storage, found.definition
    batches = [read_batch(storage, Batch(n)) for n in range(before, last + 1)]
    out = Counter[tuple[Any, ...]]()
    for partition in found.partitions:
        for one in iter_changes(pa, storage, definition, found.schema, batches[0], batches[1:], partition):
            out += shown(definition, one)
    return out


def shown(definition: Any, one: Any) -> Counter[tuple[Any, ...]]:
    def rows(arrays: list[Any], columns: Any, there: Any) -> list[str]:
        each = [array.to_pylist() for array in arrays] or [[]]
        names = [c.name for c in columns]
        pairs = zip(*each, strict=True) if arrays else [()] * len(there)
        return [
            repr(dict(zip(names, values, strict=True)) if is_there else None) for values, is_there in zip(pairs, there, strict=True)
        ]

    count = len(one.kinds)
    sides = [rows(one.old, definition.values, one.has_old), rows(one.new, definition.values, one.has_new)]
    keys = rows(one.key, definition.key, [True] * count)
    return Counter(zip([one.batch] * count, one.kinds.to_pylist(), keys, *sides, strict=True))


@pytest.mark.parametrize(("cell", "defined"), a_few(CELLS, 6))
def test_changes_from_files_are_those_of_a_replica(
    golden: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str, defined: bool
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    copy, draw = golden(cell), Random(cell)
    if defined:
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    copy.uncommit()
    copy.commit(0)
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home", retention=Retention(history_batches=None)) as pond:
        pond.catch_up(60)
        for batch in range(1, copy.last + 1):
            copy.commit(batch)
        pond.catch_up(60)
        storage, compared, changeable = open_storage(copy.checkpoint), 0, 0
        sizes = [read_batch(storage, Batch(number)).settings.partitions for number in range(copy.last + 1)]
        # Changes over two numbers of partitions can't be read.
        first = next(number for number, size in enumerate(sizes) if size == sizes[-1])
        for name in pond.tables():
            try:
                table = ColdTable(copy.checkpoint, name, None, ())
                found = table.table_batch(expired=True)
                check_changeable(found.definition, found.schema)
                found.arrow_schema(pa)
                expected = of_replica(pond[name], found.definition, first)
            except MillpondError:
                continue
            changeable += 1
            cuts = sorted({first, copy.last, *(draw.randint(first, copy.last) for _ in range(2))})
            seen = Counter[tuple[Any, ...]]()
            for before, last in pairwise(cuts):
                seen += of_files(table, before, last)
            assert seen == expected
            compared += seen.total()

            # The whole table at the last batch, as inserts.
            inserted = 0
            for partition in found.partitions:
                chunks = found.chunks(storage, partition, Memory())
                for one in iter_inserts(pa, found.definition, found.schema, copy.last, chunks):
                    assert set(one.kinds.to_pylist()) == {"insert"}
                    inserted += len(one.kinds)
            assert inserted == len(pond[name].live().to_arrow())
    assert compared or not changeable
