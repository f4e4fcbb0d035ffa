"""Where a pond's jobs may have their checkpoints: the folders and URIs that the reader allowed.

A pond names places in files that somebody else may have written: any folder of this machine, or a
bucket that the reader would open with its own credentials.  So a name alone isn't enough.
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

    uris:  canonical, as `Storage.uri`
    """

    uris: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Iterable[str | Path]) -> Places:
        """The same from paths and URIs.  Raises UNSUPPORTED."""
        from millpond.storage import uri_of

        return cls(tuple(map(uri_of, words)))

    def allow(self, uri: str) -> bool:
        """Whether a place is one of these, or lies in one."""
        # A local path is absolute here; names in buckets aren't paths.
        return not {".", ".."} & set(uri.split("/")) and any(is_below(uri, place) for place in self.uris)

    def fence(self, *uris: str) -> Fence:
        """The fence for links: these places, and further ones."""
        return Fence(path_of(uri) for uri in (*uris, *self.uris) if is_local_uri(uri))
