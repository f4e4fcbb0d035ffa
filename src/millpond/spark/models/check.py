"""The check of a model before it may replace another: once, on a worker, before any shard sees its record.

1. The model's bytes exist and are within the limit.  A file must lie in an allowed place, and its
   size is checked before it is read.
2. Its format is known and loads it; it takes the records' inputs.
3. It scores a sample.
4. The pond stores its bytes by their hash; from here on the record is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from millpond.errors import MillpondError
from millpond.spark.broadcast.control import CORRUPT, FILE, PUT
from millpond.spark.models.formats import RUNS_CODE, ModelFormat, first_line
from millpond.spark.models.publish import RECORD, why_no_part, why_no_type
from millpond.spark.models.store import ModelStore
from millpond.storage import open_storage, uri_of
from millpond.storage.names import is_local_uri, last_name
from millpond.storage.places import Places

if TYPE_CHECKING:
    import pandas as pd

RECORD_URI = "_record_uri"
"""The column with the URI of a record's file; NULL if the record isn't from a file."""
ADMITTED = f"{RECORD}, sha256 string, size_bytes long, reason string"
_GIVEN = [*(column.split()[0] for column in ADMITTED.split(", ")), "order", CORRUPT, FILE]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """Checks records of the model stream.

    places:     where a file that a record names may lie, besides the folder of the record's own
                file
    inputs:     the records' columns that models take, with Spark's names of their types
    sample:     values of these; None for zeros
    max_bytes:  the most bytes of a model
    """

    pond: str
    places: Places
    inputs: Mapping[str, str]
    sample: tuple[float, ...] | None
    formats: Mapping[str, ModelFormat]
    max_bytes: int

    def __call__(self, chunks: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same records with a hash in place of bytes; `reason` says why one is refused."""
        import pandas as pd

        for chunk in chunks:
            rows = [self._admit({k: None if _is_null(v) else v for k, v in row.items()}) for row in chunk.to_dict("records")]
            types = {"version": "Int64", "size_bytes": "Int64", "shadow": "boolean"}
            yield pd.DataFrame(rows, columns=_GIVEN).astype(types)

    def _admit(self, record: dict[str, Any]) -> dict[str, Any]:
        checked = {name: record.get(name) for name in _GIVEN}
        if (checked["action"] or PUT) != PUT or checked[CORRUPT] is not None:
            return checked
        checked["format"] = checked["format"] or "onnx"
        try:
            wrong = why_no_type(checked["type"]) or why_no_part(str(checked["type"]), checked["share"], checked["shadow"])
            if wrong is not None:
                raise _Refused(wrong)
            content = self._content(record)
            checked["size_bytes"] = len(content)
            self._try(content, str(checked["format"]))
            checked["sha256"] = ModelStore(self.pond).keep(content)
        except _Refused as refused:
            checked["reason"] = str(refused)
        return checked

    def _content(self, record: dict[str, Any]) -> bytes:
        content, uri, record_uri = record.get("content"), record.get("uri"), record.get(RECORD_URI)
        if not record.get("name"):
            raise _Refused("the model has no name")
        if (content is None) == (uri is None):
            raise _Refused("a model has either content or a uri")
        if uri is not None:
            try:
                place = uri_of(str(uri))
                places = self.places if record_uri is None else Places((*self.places.uris, _folder_of(str(record_uri))))
                if not places.allow(place):
                    raise _Refused(
                        f"PLACE_NOT_ALLOWED: {uri} is neither in the pond nor beside the record, and nobody has allowed that "
                        "place: give serve_models allow="
                    )
                folder, name = place.rpartition("/")[0], last_name(place)
                storage = open_storage(folder, fence=places.fence())
                stamp = storage.stamp(name)
                if stamp is None:
                    raise _Refused(f"{uri} doesn't exist")
                self._check_size(stamp.size_bytes)
                content = storage.read(name, self.max_bytes)
            except MillpondError as error:
                raise _Refused(f"{uri} can't be read: {error.message}") from None
            except ValueError as impossible:  # it has a NUL, or half a character
                raise _Refused(f"{str(uri)!r} can't be a file's name: {impossible}") from None
        found = bytes(content or b"")
        self._check_size(len(found))
        return found

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes == 0:
            raise _Refused("the model has no bytes")
        if size_bytes > self.max_bytes:
            raise _Refused(f"the model has {size_bytes:,} bytes, but the limit is {self.max_bytes:,}")

    def _try(self, content: bytes, name: str) -> None:
        if name in RUNS_CODE:
            raise _Refused(f"loading {name} would run code from the file, so it is never loaded: convert the model to ONNX")
        if name not in self.formats:
            raise _Refused(f"the format {name!r:.40} isn't known; known are {', '.join(sorted(self.formats))}")
        try:
            model = self.formats[name].load(content, self.inputs)
        except MillpondError:
            raise  # the library is missing, which isn't the model's fault
        except Exception as broken:  # noqa: BLE001 a library's loader may raise anything
            raise _Refused(f"it doesn't load: {first_line(broken)}") from None
        sample = self.sample or (0.0,) * len(self.inputs)
        try:
            (result,) = model.score([np.array([value]) for value in sample])
        except Exception as broken:  # noqa: BLE001
            raise _Refused(f"it doesn't score a sample: {first_line(broken)}") from None
        if self.sample is not None and not np.isfinite(result):
            raise _Refused(f"it scores the sample as {result}")


def _folder_of(file: str) -> str:
    """The folder of a file that Spark has read.  Spark escapes its path, also in a bucket."""
    folder = file.rpartition("/")[0]
    return uri_of(folder if is_local_uri(folder) else unquote(folder))


class _Refused(Exception):
    """Why a model may not replace another."""


def _is_null(value: Any) -> bool:
    return value is None or value != value
