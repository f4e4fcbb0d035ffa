"""The golden checkpoints by name, and what a replica of one holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.row_stamp import without_stamp
from millpond.replica.scan import iter_prefix
from millpond.schema.store import StoreSchema

_GOLDEN = Path(__file__).parent / "golden"
CELLS = sorted(str(p.parent.relative_to(_GOLDEN)) for p in _GOLDEN.rglob("state.json"))
State = dict[tuple[Any, ...], tuple[Any, ...]]


def replica_content(backend: Any, store: StoreSchema) -> State:
    codec, decode_value = KeyCodec(store.key), decoder(store.value)
    with backend.snapshot() as snapshot:
        return {
            codec.decode(ordered): tuple(map(decode_value, iter_elements(row))) if store.many else decode_value(row)
            for ordered, row in ((o, without_stamp(stored)) for o, stored in iter_prefix(snapshot, store.id, b""))
        }
