"""Settings of one connection: SET, RESET and SHOW, those of Millpond among them."""

from __future__ import annotations

import re
from importlib.metadata import version

from millpond.errors import MillpondError
from millpond.serve.asked import BOUNDS, bounds_of_texts
from millpond.serve.postgres.errors import NOT_SUPPORTED, PgError
from millpond.settings import ServeSettings
from millpond.tables.job.bounds import Bounds

# As a version of PostgreSQL: clients decide by it what they may send.
SERVER_VERSION = "15.0"
# Those that the server names to a client when they change.
REPORTED = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "application_name",
    "default_transaction_read_only",
    "in_hot_standby",
    "is_superuser",
    "session_authorization",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
    "millpond.batch",
)
# What doesn't change, beside values that mean the same.
_FIXED: dict[str, tuple[str, tuple[str, ...]]] = {
    "client_encoding": ("UTF8", ("utf8", "utf-8", "unicode")),
    "timezone": ("UTC", ("utc", "gmt", "etc/utc", "z", "0", "+00", "+00:00", "00:00", "default", "local")),
    "intervalstyle": ("postgres", ("postgres", "default")),
    "standard_conforming_strings": ("on", ("on", "true", "1", "yes", "default")),
    "bytea_output": ("hex", ("hex", "default")),
    "transaction_isolation": ("read committed", ("read committed", "read uncommitted", "default")),
    "default_transaction_isolation": ("read committed", ("read committed", "read uncommitted", "default")),
    "session_authorization": ("", ("default",)),
    "role": ("none", ("none", "default")),
}
_INTERNAL: tuple[str, ...] = (
    "server_version",
    "server_version_num",
    "server_encoding",
    "integer_datetimes",
    "in_hot_standby",
    "is_superuser",
)
_INTERNAL += ("transaction_read_only", "max_identifier_length", "millpond.batch", "lc_collate", "lc_ctype", "max_index_keys")
_DEFAULTS = {
    "server_version_num": "150000",
    "server_encoding": "UTF8",
    "integer_datetimes": "on",
    "in_hot_standby": "on",
    "is_superuser": "off",
    "transaction_read_only": "on",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "off",
    "transaction_deferrable": "off",
    "application_name": "",
    "DateStyle": "ISO, MDY",
    "search_path": '"$user", public',
    "extra_float_digits": "1",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "client_min_messages": "notice",
    "row_security": "on",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "lc_collate": "C",
    "lc_ctype": "C",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "default_with_oids": "off",
    "max_connections": "100",
    "backslash_quote": "safe_encoding",
    "synchronize_seqscans": "on",
    "quote_all_identifiers": "off",
    "jit": "off",
    "geqo": "on",
    "enable_seqscan": "on",
    "work_mem": "4MB",
    "password_encryption": "scram-sha-256",
    "tcp_keepalives_idle": "0",
    "millpond.at": "",
    "millpond.batch": "",
    "millpond.separate": "off",
}
_BOUNDS = tuple(f"millpond.{name}" for name in BOUNDS)
_ON, _OFF = ("on", "true", "1", "yes", "t"), ("off", "false", "0", "no", "f")
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d)?")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_MOST_NAMES, _MOST_BYTES = 200, 10_000


Kept = tuple[dict[str, str], set[str]]
"""values, and the names of those that are local to a transaction"""


class Settings:
    """The settings of one connection.

    user, database:  as the client names them
    serve:           of the server
    """

    def __init__(self, user: str, database: str, serve: ServeSettings) -> None:
        self._serve = serve
        self._values: dict[str, str] = {
            **{name.lower(): value for name, value in _DEFAULTS.items()},
            **{name: value for name, (value, _) in _FIXED.items()},
            **dict.fromkeys(_BOUNDS, ""),
            "server_version": f"{SERVER_VERSION} (Millpond {version('millpond')})",
            "session_authorization": user,
        }
        self._first = dict(self._values)
        self._before: dict[str, str] | None = None
        self._local: set[str] = set()
        self.user, self.database = user, database

    def __getitem__(self, name: str) -> str:
        """The value of a setting.  Raises PgError if there is none of that name."""
        value = self._values.get(name.lower())
        if value is None:
            raise PgError(
                "42704", f'unrecognized configuration parameter "{name[:80]}"', hint="SHOW ALL lists those that are there."
            )
        return value

    def all(self) -> dict[str, str]:
        """Names and values."""
        return dict(sorted((_shown(name), value) for name, value in self._values.items()))

    def note(self, name: str, value: str) -> None:
        """Set what only the server sets."""
        self._values[name] = value

    def begin_as(self, name: str, value: str) -> None:
        """A setting of the first message; the time zone of a client's machine changes nothing.  Raises PgError."""
        if name.lower() not in ("timezone", "datestyle"):
            self.set(name, value)
            self._first[name.lower()] = self._values[name.lower()]

    def set(self, name: str, value: str, *, is_local: bool = False) -> None:
        """Raises PgError."""
        key = name.lower()
        if key in _INTERNAL:
            raise PgError("55P02", f'parameter "{_shown(key)}" cannot be changed')
        if len(value) > _MOST_BYTES:
            raise PgError("22023", f"A value has over {_MOST_BYTES:,} characters.")
        if key not in self._values:
            if "." not in key or key.startswith("millpond."):
                self[name]
            if len(self._values) > _MOST_NAMES + len(_DEFAULTS):
                raise PgError("53400", f"A connection may have {_MOST_NAMES} settings of its own.", hint="RESET ALL removes them.")
        if is_local and self._before is None:
            return
        self._values[key] = self._checked(key, value.strip())
        (self._local.add if is_local else self._local.discard)(key)

    def reset(self, name: str) -> None:
        """Raises PgError."""
        if name == "all":
            batch = self._values["millpond.batch"]
            self._values = {**self._first, "millpond.batch": batch}
            return
        self[name]
        if name in self._first:
            self._values[name] = self._first[name]
        else:
            del self._values[name]

    def begin(self) -> None:
        """A transaction begins."""
        self._before, self._local = dict(self._values), set()

    def end(self, *, is_kept: bool) -> None:
        """A transaction ends: what was set in it stays, unless that was local or nothing stays."""
        if self._before is not None:
            batch = self._values["millpond.batch"]
            if not is_kept:
                self._values = self._before
            for name in self._local:
                self._values[name] = self._before.get(name, "")
            self._values["millpond.batch"] = batch
        self._before, self._local = None, set()

    def keep(self) -> Kept:
        """What a savepoint keeps, for `go_back`."""
        return dict(self._values), set(self._local)

    def go_back(self, kept: Kept) -> None:
        """Take back what was set after a savepoint."""
        batch = self._values["millpond.batch"]
        self._values, self._local = {**kept[0], "millpond.batch": batch}, set(kept[1])

    def _checked(self, key: str, value: str) -> str:
        if key in _FIXED:
            fixed, same = _FIXED[key]
            value = value.strip("'\"")  # asyncpg's first message has them
            if value.lower() not in same and value.lower() != self._values[key].lower():
                why = "Times are in UTC here: write AT TIME ZONE in the statement." if key == "timezone" else ""
                why = "Each statement reads its own batch; SET millpond.at reads one for all." if "isolation" in key else why
                raise PgError(NOT_SUPPORTED, f'parameter "{_shown(key)}" can\'t be {value[:80]!r} here', hint=why)
            return self._values[key] or fixed
        if value.lower() == "default" and key in self._first:
            return self._first[key]
        if key == "datestyle" and not value.lower().startswith(("iso", "mdy", "dmy", "ymd")):
            raise PgError(NOT_SUPPORTED, "DateStyle is always ISO here", hint="Dates are read and written as 2026-03-01.")
        if key == "datestyle":
            return self._values[key]
        if key == "default_transaction_read_only" and value.lower() in (*_ON, *_OFF):
            return "on"
        if key == "statement_timeout":
            _length(value)
        if key == "millpond.separate":
            if value.lower() not in (*_ON, *_OFF):
                raise PgError("22023", 'parameter "millpond.separate" requires a Boolean value')
            return "on" if value.lower() in _ON else "off"
        if key in _BOUNDS and value:
            self._bounds({**self._values, key: value})
        return value

    # ------------------------------------------------------------ what statements need

    @property
    def at(self) -> int | str | None:
        """The batch or time of tables that don't name one."""
        value = self._values["millpond.at"]
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value or None

    @property
    def separate(self) -> bool:
        """Whether tables of several jobs may be of batches that end at different offsets."""
        return self._values["millpond.separate"] == "on"

    @property
    def bounds(self) -> Bounds | None:
        """What tables must reflect."""
        return self._bounds(self._values)

    @property
    def most_seconds(self) -> float | None:
        """`statement_timeout`, None for none."""
        return _length(self._values["statement_timeout"]) or None

    def of_session(self, process: int) -> dict[str, str]:
        """What `tree.Rewriter` needs."""
        return {
            **self._values,
            "version": f"PostgreSQL {SERVER_VERSION} (Millpond {version('millpond')})",
            "database": self.database,
            "user": self.user,
            "schema": "public",
            "pid": str(process),
        }

    def _bounds(self, values: dict[str, str]) -> Bounds | None:
        try:
            return bounds_of_texts(lambda field: values[f"millpond.{field}"], self._serve)
        except MillpondError as wrong:
            raise PgError("22023", wrong.message, hint=wrong.hint) from None


def _shown(key: str) -> str:
    return {"datestyle": "DateStyle", "timezone": "TimeZone", "intervalstyle": "IntervalStyle"}.get(key, key)


def _length(value: str) -> float:
    """Seconds of a text such as 500, 500ms or 5s.  Raises PgError."""
    found = _LENGTH.fullmatch(value.strip().lower())
    if found is None:
        raise PgError("22023", f'invalid value for parameter "statement_timeout": "{value[:80]}"')
    return float(found[1]) * _UNITS[found[2] or "ms"]
