"""The golden checkpoints by name, and the content of a replica."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from golden import packing
from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.row_stamp import without_stamp
from millpond.replica.scan import iter_prefix
from millpond.schema.store import StoreSchema

SCRIPTS = packing.HERE
"""that wrote them"""
GOLDEN = packing.unpacked()
CELLS = sorted(str(p.parent.relative_to(GOLDEN)) for p in GOLDEN.rglob("state.json"))
TYPES = sorted(p.stem for p in (GOLDEN / "types" / "jobs").glob("*/tables/*.json"))
"""the tables of golden/types"""
FEW_TYPES = ("array", "date", "long", "string")
"""of them, for tests of which each server costs seconds"""
State = dict[tuple[Any, ...], tuple[Any, ...]]


def replica_content(backend: Any, store: StoreSchema) -> State:
    codec, decode_value = KeyCodec(store.key), decoder(store.value)
    with backend.snapshot() as snapshot:
        return {
            codec.decode(ordered): tuple(map(decode_value, iter_elements(row))) if store.many else decode_value(row)
            for ordered, row in ((o, without_stamp(stored)) for o, stored in iter_prefix(snapshot, store.id, b""))
        }


def load_script(name: str) -> ModuleType:
    """A script of tests/golden as a module."""
    spec = importlib.util.spec_from_file_location(f"golden_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
