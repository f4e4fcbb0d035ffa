"""Statements that the server answers itself: transactions, settings, and what a read-only server refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millpond.serve.postgres.errors import NOT_SUPPORTED, READ_ONLY, PgError, warning
from millpond.serve.postgres.statements.settings import Kept, Settings
from millpond.serve.postgres.statements.words import bare, first_word, read_words

QUERIES = frozenset({"select", "with", "values", "table", "explain", "describe", "from"})
_WRITE_WORDS = (
    "insert update delete merge truncate create alter drop grant revoke comment vacuum analyze reindex cluster refresh import "
    "lock security reassign checkpoint call do copy load attach detach install nextval setval pragma"
)
_SESSION_WORDS = "begin start commit end rollback abort savepoint release set reset show discard deallocate listen unlisten notify"
_WRITES, _SESSION = frozenset(_WRITE_WORDS.split()), frozenset(_SESSION_WORDS.split())


@dataclass(slots=True)
class Local:
    """The answer to such a statement.

    columns:  of SHOW
    notices:  messages before the answer
    """

    tag: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    notices: list[bytes] = field(default_factory=list)


def is_query(text: str) -> bool:
    """Whether a statement is for a process.  Raises PgError for one that nobody answers."""
    word = first_word(text)
    if word in QUERIES:
        return True
    if word in _SESSION:
        return False
    if word in _WRITES:
        raise PgError(
            READ_ONLY, f"cannot execute {word.upper()} in a read-only transaction", hint="Tables are written by their jobs alone."
        )
    raise PgError("42601", f'syntax error at or near "{word[:80]}"', hint="Write one SELECT over tables of the pond.")


class Transactions:
    """The state of a connection between statements.

    status:   I outside of a transaction, T inside, E inside of one that has failed
    settings: of the connection
    forget:   forgets all prepared statements, or one by its name
    end:      ends the portals that were made after so many savepoints
    lower:    says that so many savepoints are left
    """

    def __init__(
        self,
        settings: Settings,
        forget: Callable[[str | None], None],
        end: Callable[[int], None],
        lower: Callable[[int], None],
    ) -> None:
        self.status = b"I"
        self.settings = settings
        self._forget, self._end, self._lower = forget, end, lower
        self._savepoints: list[tuple[str, Kept]] = []

    def fail(self) -> None:
        """A statement has failed."""
        if self.status == b"T":
            self.status = b"E"
        if self.status == b"E":
            self._end(self.level)

    @property
    def level(self) -> int:
        """How many savepoints there are."""
        return len(self._savepoints)

    def check(self, text: str) -> None:
        """Raise PgError if the transaction has failed and the statement doesn't end it."""
        if self.status == b"E" and first_word(text) not in ("rollback", "abort", "commit", "end"):
            raise PgError("25P02", "current transaction is aborted, commands ignored until end of transaction block")

    def answer(self, text: str) -> Local:
        """Do what a statement says.  Raises PgError."""
        words = read_words(text, 400)
        answer = _ANSWERS.get(words[0]) if words else None
        if answer is None:
            raise PgError("42601", f"syntax error at or near {words[0] if words else ''!r:.40}")
        return answer(self, words)

    # ------------------------------------------------------------ transactions

    def _begin(self, words: list[str]) -> Local:
        _check_modes(words)
        tag = "START TRANSACTION" if words[0] == "start" else "BEGIN"
        if self.status == b"T":
            return Local(tag, notices=[warning("25001", "there is already a transaction in progress")])
        self.status = b"T"
        self.settings.begin()
        return Local(tag)

    def _commit(self, words: list[str]) -> Local:
        if words[1:2] == ["prepared"]:
            raise PgError(NOT_SUPPORTED, "prepared transactions are not answered here")
        if self.status == b"I":
            return Local("COMMIT", notices=[warning("25P01", "there is no transaction in progress")])
        tag = "ROLLBACK" if self.status == b"E" else "COMMIT"
        self._over(is_kept=self.status == b"T")
        return Local(tag)

    def _rollback(self, words: list[str]) -> Local:
        if "to" in words[1:4]:
            self._check_block("ROLLBACK TO SAVEPOINT")
            place = self._place(bare(words[-1]))
            del self._savepoints[place + 1 :]
            self._end(place + 1)
            self.settings.go_back(self._savepoints[place][1])
            self.status = b"T"
            return Local("ROLLBACK")
        if self.status == b"I":
            return Local("ROLLBACK", notices=[warning("25P01", "there is no transaction in progress")])
        self._over(is_kept=False)
        return Local("ROLLBACK")

    def _savepoint(self, words: list[str]) -> Local:
        self._check_block("SAVEPOINT")
        if len(self._savepoints) >= 1000:
            raise PgError("53400", "A transaction may have 1000 savepoints.")
        self._savepoints.append((bare(words[-1]), self.settings.keep()))
        return Local("SAVEPOINT")

    def _release(self, words: list[str]) -> Local:
        self._check_block("RELEASE SAVEPOINT")
        place = self._place(bare(words[-1]))
        del self._savepoints[place:]
        self._lower(place)
        return Local("RELEASE")

    def _check_block(self, command: str) -> None:
        """Raise PgError outside of a transaction."""
        if self.status == b"I":
            raise PgError("25P01", f"{command} can only be used in transaction blocks")

    def _place(self, name: str) -> int:
        """The place of the newest savepoint of a name.  Raises PgError."""
        for place in reversed(range(len(self._savepoints))):
            if self._savepoints[place][0] == name:
                return place
        raise PgError("3B001", f'savepoint "{name[:80]}" does not exist')

    def _over(self, *, is_kept: bool) -> None:
        self.status = b"I"
        self._savepoints.clear()
        self.settings.end(is_kept=is_kept)
        self._end(0)

    # ------------------------------------------------------------ settings

    def _set(self, words: list[str]) -> Local:
        rest = words[1:]
        is_local = rest[:1] == ["local"]
        if rest[:1] in (["local"], ["session"]) and rest[1:2] not in (["authorization"], ["characteristics"]):
            rest = rest[1:]
        if rest[:1] == ["transaction"] or rest[:2] == ["session", "characteristics"]:
            _check_modes(rest, is_session=rest[0] == "session")
            return Local("SET")
        if rest[:2] == ["time", "zone"]:
            rest = ["timezone", "=", *rest[2:]]
        elif rest[:1] == ["names"]:
            rest = ["client_encoding", "=", *(rest[1:] or ["'utf8'"])]
        elif rest[:2] == ["session", "authorization"]:
            rest = ["session_authorization", "=", *rest[2:]]
        elif rest[:1] == ["role"] and rest[1:2] != ["="]:
            rest = ["role", "=", *rest[1:]]
        if len(rest) < 3 or rest[1] not in ("=", "to"):
            raise PgError("42601", "syntax error in SET", hint="Write SET name = 'value'.")
        value = "".join(f"{word} " if word == "," else bare(word) for word in rest[2:])
        self.settings.set(bare(rest[0]), value, is_local=is_local)
        return Local("SET")

    def _reset(self, words: list[str]) -> Local:
        name = "timezone" if words[1:3] == ["time", "zone"] else bare(" ".join(words[1:2])).lower()
        self.settings.reset({"session": "session_authorization"}.get(name, name))
        return Local("RESET")

    def _show(self, words: list[str]) -> Local:
        name = bare(" ".join(words[1:2]))
        if name == "all":
            rows: list[list[str | None]] = [[key, value, ""] for key, value in self.settings.all().items()]
            return Local("SHOW", ["name", "setting", "description"], rows)
        if words[1:4] == ["transaction", "isolation", "level"]:
            name = "transaction_isolation"
        elif words[1:3] == ["time", "zone"]:
            name = "TimeZone"
        elif words[1:3] == ["session", "authorization"]:
            name = "session_authorization"
        return Local("SHOW", [name], [[self.settings[name]]])

    def _discard(self, words: list[str]) -> Local:
        if words[1:] == ["all"]:
            if self.status != b"I":
                raise PgError("25001", "DISCARD ALL cannot run inside a transaction block")
            self.settings.reset("all")
            self._forget(None)
            self._end(0)
        elif words[1:] not in (["plans"], ["temp"], ["temporary"], ["sequences"]):
            raise PgError("42601", "syntax error in DISCARD")
        return Local(" ".join(words).upper())

    def _deallocate(self, words: list[str]) -> Local:
        name = bare(words[-1]) if len(words) > 1 else ""
        self._forget(None if words[-1] == "all" else name)
        return Local("DEALLOCATE ALL" if words[-1] == "all" else "DEALLOCATE")

    def _listen(self, words: list[str]) -> Local:
        if words[0] == "unlisten":
            return Local("UNLISTEN")
        raise PgError(NOT_SUPPORTED, f"{words[0].upper()} is not answered here", hint="Read the events of a table over HTTP.")


def _check_modes(words: list[str], *, is_session: bool = False) -> None:
    """Raise PgError for a kind of transaction that isn't there."""
    text = " ".join(words)
    if "serializable" in text or "repeatable read" in text:
        raise PgError(
            NOT_SUPPORTED,
            "transactions are read committed here: each statement reads one batch, the newest",
            hint="SET millpond.at = 'BATCH' reads the same batch in all statements, where history is kept.",
        )
    if "read write" in text and not is_session:
        raise PgError(
            NOT_SUPPORTED, "cannot set transaction read-write mode during recovery", hint="Tables are written by their jobs alone."
        )


_ANSWERS: dict[str, Callable[[Transactions, list[str]], Local]] = {
    "begin": Transactions._begin,
    "start": Transactions._begin,
    "commit": Transactions._commit,
    "end": Transactions._commit,
    "rollback": Transactions._rollback,
    "abort": Transactions._rollback,
    "savepoint": Transactions._savepoint,
    "release": Transactions._release,
    "set": Transactions._set,
    "reset": Transactions._reset,
    "show": Transactions._show,
    "discard": Transactions._discard,
    "deallocate": Transactions._deallocate,
    "listen": Transactions._listen,
    "notify": Transactions._listen,
    "unlisten": Transactions._listen,
}
