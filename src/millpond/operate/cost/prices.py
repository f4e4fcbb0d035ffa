"""The table of prices: a TOML file, of which one is shipped as a beginning.

Its comments, in `prices.toml`, say what each entry means.
"""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from importlib.resources import files
from pathlib import Path

import msgspec

from millpond.errors import RequestError, SetupError
from millpond.schema.prepared import ready
from millpond.storage import LocalStorage

_SHIPPED = "prices.toml"
_HINT = "Write an example with: millpond cost --write-prices prices.toml"
# A larger price is a slip.
_MOST = 1e6
_MOST_COPIES = 100


class StoragePrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a storage costs.

    gib_month:     one GiB for a month
    copies:        of each byte, that are paid
    put_per_1000, get_per_1000: requests; None: they cost nothing, and aren't counted
    """

    gib_month: float
    copies: int = 1
    put_per_1000: float | None = None
    get_per_1000: float | None = None

    @property
    def has_requests(self) -> bool:
        """Whether requests cost anything."""
        return self.put_per_1000 is not None or self.get_per_1000 is not None


class _Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    storage: str


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole table.

    as_of:     the day of the prices
    currency, region: in words
    storage:   name -> its prices
    places:    scheme of a URI -> the storage behind it
    replica:   the storage that replicas are on
    """

    as_of: dt.date
    currency: str
    region: str
    storage: dict[str, StoragePrices]
    places: dict[str, str]
    replica: _Replica

    def storage_of(self, uri: str, name: str | None = None) -> tuple[str, StoragePrices]:
        """The storage of a place, by its scheme or by its name in the table.  Raises INVALID_REQUEST."""
        scheme = uri.split("://", 1)[0] if "://" in uri else "file"
        name = self.places.get(scheme) if name is None else name
        known = ", ".join(self.storage)
        if name is None:
            raise RequestError(
                "INVALID_REQUEST",
                f"The prices don't say what storage {scheme}: is.",
                hint=f"Choose one with --storage ({known}), or add it to [places] of a file for --prices.",
            )
        if name not in self.storage:
            raise RequestError(
                "INVALID_REQUEST", f"The prices have no storage {name!r:.80}.", hint=f"Choose one of {known}, or add it."
            )
        return name, self.storage[name]

    @property
    def words(self) -> str:
        """What they are prices of."""
        return f"prices of {self.region}, {self.as_of}"


def shipped_text() -> str:
    """The shipped table, to be edited."""
    return (files("millpond.operate.cost") / _SHIPPED).read_text(encoding="utf-8")


def read_prices(path: str | Path | None = None) -> Prices:
    """A table of prices.

    path:    None for the shipped one
    Raises:  FILE_MISSING, INVALID_CONFIG.
    """
    if path is None:
        return _parse(shipped_text(), _SHIPPED)
    try:
        text = Path(path).read_bytes().decode()
    except FileNotFoundError:
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint=_HINT) from None
    except (OSError, ValueError) as wrong:
        raise _invalid(str(path), str(wrong)) from None
    return _parse(text, str(path))


def write_prices(path: str | Path) -> None:
    """Write the shipped table to a new file.  Raises INVALID_REQUEST, NOT_WRITABLE."""
    file = Path(path)
    if not LocalStorage(file.parent).create(file.name, shipped_text().encode()):
        raise RequestError("INVALID_REQUEST", f"{path} is there already.", hint="Name a new file.")


def _parse(text: str, name: str) -> Prices:
    try:
        found = msgspec.convert(tomllib.loads(text), ready(Prices))
    except ValueError as wrong:
        raise _invalid(name, str(wrong)) from None
    for storage, prices in found.storage.items():
        given = {"gib_month": prices.gib_month, "put_per_1000": prices.put_per_1000, "get_per_1000": prices.get_per_1000}
        for key, price in given.items():
            if price is not None and not (math.isfinite(price) and 0 <= price <= _MOST):
                raise _invalid(name, f"{key} of storage.{storage} is {price}, which isn't a price from 0 to {_MOST:,.0f}")
        if not 1 <= prices.copies <= _MOST_COPIES:
            raise _invalid(name, f"copies of storage.{storage} is {prices.copies}, which isn't from 1 to {_MOST_COPIES}")
    for key, storage in [
        *((f"places.{scheme}", used) for scheme, used in found.places.items()),
        ("replica", found.replica.storage),
    ]:
        if storage not in found.storage:
            raise _invalid(name, f"{key} names the storage {storage!r:.80}, which isn't there")
    return found


def _invalid(name: str, why: str) -> RequestError:
    return RequestError("INVALID_CONFIG", f"{name}: {why}.", hint=_HINT)
