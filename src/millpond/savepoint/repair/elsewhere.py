"""Names of the place that a checkpoint was copied from.

An operator's metadata of version 2 has whole names of its schema files.  `cp -r` copies them as
they are: Spark then goes on with the files of the place before, and doesn't start without them.
`restore`, `import` and a repaired copy write the names of their own place (`restore.anchored_file`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from millpond.checkpoint.operators import named_checkpoint
from millpond.errors import CheckpointError
from millpond.savepoint.repair.finding import Effect, Finding
from millpond.settings import FileBounds
from millpond.storage import Storage, uri_of
from millpond.storage.names import is_local_uri, path_of, path_of_hadoop

_BOUNDS = FileBounds()
_REMEDY = "A repaired copy, made by millpond repair --yes, names the files of its own place; so does a restored savepoint."


def named_elsewhere(storage: Storage, metadata: str) -> Iterator[Finding]:
    """What is wrong if an operator's metadata, which can be read, names the schema files of another place.

    Nothing is read there: on a local disk its being there is looked at, and in a bucket not even that.
    """
    named = named_checkpoint(storage.read(metadata, _BOUNDS.schema_bytes))
    if named is None or _is_own(storage, named):
        return
    effect: Effect
    if not is_local_uri(named) or storage.local_path() is None:
        effect, means = "may fail", "Spark fails if they aren't there any more, else it goes on with them."
    elif os.path.isdir(f"{_path(named)}/{metadata.partition('/_metadata/')[0]}/_stateSchema"):
        effect, means = "none", "Spark goes on with those files, and doesn't start any more when they go."
    else:
        effect, means = "fails", "Spark doesn't start: they aren't there. It starts if it sees this folder under that name."
    what = f"It names its schema files below {named}, from where this checkpoint was copied."
    yield Finding(kind="copied", path=metadata, what=what, effect=effect, means=means, remedy=_REMEDY)


def _is_own(storage: Storage, named: str) -> bool:
    own = storage.local_path()
    if is_local_uri(named) and own is not None:
        return os.path.realpath(_path(named)) == os.path.realpath(own)
    try:
        return not is_local_uri(named) and uri_of(named) == storage.uri
    except CheckpointError:  # a scheme that isn't read
        return False


def _path(named: str) -> str:
    return path_of(uri_of(path_of_hadoop(named)))
