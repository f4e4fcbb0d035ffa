"""What a table that is read under a name with versions knows of the other versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millpond.tables.table import Table


class OtherVersions(Protocol):
    """The versions of one name."""

    def owner_of(self, token: str) -> Table | None:
        """The version of whose job a token is, under the name; None if no version that is read here."""

    def of_job(self, job: str) -> Table | None:
        """The version that is this job, under the name."""

    def check_current(self, job: str) -> None:
        """Raise VERSION_CHANGED if the name means another version than this job's now."""

    def check_token(self, token: str, job: str) -> None:
        """Raise VERSION_CHANGED if a token is of another version than this job's."""
