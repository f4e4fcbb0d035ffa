"""Where a pond's jobs may have their checkpoints: what the operator allowed, by folders and URIs.

A pond names places in files that somebody else may have written: any folder of this machine, or a bucket, for which the reader
would ask whoever gives credentials.  So a name alone is nothing to go by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond.storage.fence import Fence, is_below
from millpond.storage.names import is_local_uri, path_of


@dataclass(frozen=True, slots=True)
class Places:
    """Folders and buckets that may be read.

    uris:  in the one form that `Storage.uri` has
    """

    uris: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Iterable[str | Path]) -> Places:
        """The same from paths and URIs.  Raises UNSUPPORTED."""
        from millpond.storage import uri_of

        return cls(tuple(map(uri_of, words)))

    def allow(self, uri: str) -> bool:
        """Whether a place is one of these, or lies in one."""
        # A path was made absolute; names in buckets aren't paths.
        return not {".", ".."} & set(uri.split("/")) and any(is_below(uri, place) for place in self.uris)

    def fence(self, *uris: str) -> Fence:
        """Where links may lead that lie in one of these, or in further places."""
        return Fence(path_of(uri) for uri in (*uris, *self.uris) if is_local_uri(uri))
