"""What a checkpoint that was rescaled says of itself: the same batch, its state divided anew.

A hidden file `.rescaled.json` has the fingerprints of the batch before and after.  So a reader that
knows the batch by the first one finds out that the job is the same.
"""

from __future__ import annotations

import json

from millpond.errors import MillpondError, StorageError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

_NAME = ".rescaled.json"


def write_rescaled(storage: Storage, before: str, after: str) -> None:
    """Note the fingerprints of a batch before and after its state was divided anew."""
    storage.write(_NAME, json.dumps({"before": before, "after": after}).encode())


def was_rescaled(storage: Storage, before: str, after: str) -> bool:
    """Whether a batch has the second fingerprint because its state was divided anew.

    Raises:  what the storage raises; a note that can't be read says nothing.
    """
    try:
        data = parse_json(storage.read(_NAME, FileBounds().note_bytes))
        return bool((data["before"], data["after"]) == (before, after))
    except StorageError:
        raise
    except (MillpondError, *DAMAGE):
        return False
