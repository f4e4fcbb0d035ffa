"""What followers keep of a pond's tables: the retention and indexes that its opener asked for, or its definitions name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from millpond.catalogue import JobFolder
from millpond.errors import MillpondError
from millpond.logs import EventLog
from millpond.replica.indexes import StoreIndexes
from millpond.replica.record import StoresRecord
from millpond.schema.definition.indexes import Index, Indexes, check_indexes
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import store_id
from millpond.settings import Retention, RetentionWords
from millpond.tables.by_value.entries import store_indexes
from millpond.tables.scan.binding import bind
from millpond.tables.versions.names import NameFiles
from millpond.versions import parse_job

log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the opener of a pond asked for.

    default:       the retention of tables that nobody names
    same_for_all:  whether all tables have that one, whatever their definitions say
    retention:     by table
    indexes:       by table, besides those that definitions name
    names:         the names that mean versions, by which a version's table may be asked for
    """

    default: Retention
    same_for_all: bool
    retention: Mapping[str, Retention | RetentionWords]
    indexes: Mapping[str, Indexes]
    names: NameFiles
    _ignored: set[str] = field(default_factory=set)
    # By job and store, what was compiled last, and of what: followers ask every second.
    _known: dict[tuple[str, str], tuple[TableDefinition, StoresRecord, StoreIndexes]] = field(default_factory=dict)

    def retentions(self, folder: JobFolder, definitions: Iterable[TableDefinition]) -> dict[str, Retention]:
        """By store, the retention that was asked for here, or that the definition names."""
        if self.same_for_all:
            return {}
        out: dict[str, Retention] = {}
        for definition in definitions:
            named = self.retention.get(self._asked_as(folder, definition.table, self.retention))
            if isinstance(named, RetentionWords):
                out[store_id(*definition.store_id)] = named.over(definition.retention or self.default)
            elif (kept := named or definition.retention) is not None:
                out[store_id(*definition.store_id)] = kept
        return out

    def asked_retentions(self, folder: JobFolder, definitions: Iterable[TableDefinition]) -> dict[str, tuple[str, Retention]]:
        """By table, its store and the retention that was asked for here."""
        definitions = list(definitions)
        kept = self.retentions(folder, definitions)
        tables = {definition.table: store_id(*definition.store_id) for definition in definitions}
        named = [t for t in tables if self.same_for_all or self._asked_as(folder, t, self.retention) in self.retention]
        return {table: (tables[table], kept.get(tables[table], self.default)) for table in named}

    def store_indexes(
        self, folder: JobFolder, definitions: Iterable[TableDefinition], stores: StoresRecord
    ) -> dict[str, StoreIndexes]:
        """By store, the indexes that the replica has, that the definition names, and that were asked for here.

        Those that the replica has come first, so that the same ones in another order don't make it
        be built again.  One that the table can't have, for instance since a column is gone, is left
        out and logged once: who declares it gets the error.
        """
        out: dict[str, StoreIndexes] = {}
        for definition in definitions:
            store = store_id(*definition.store_id)
            asked = self.indexes.get(self._asked_as(folder, definition.table, self.indexes), ())
            there = tuple(record.columns for record in stores.indexes.get(store, ()))
            wanted = [index for index in dict.fromkeys((*there, *definition.indexes, *asked)) if self._fits(definition, index)]
            try:
                if wanted:
                    out[store] = self._compiled(folder.job, definition, stores, tuple(wanted))
            except MillpondError as error:
                self._ignore(definition, error)
        return out

    def _compiled(self, job: str, definition: TableDefinition, stores: StoresRecord, wanted: Indexes) -> StoreIndexes:
        key = job, store_id(*definition.store_id)
        known = self._known.get(key)
        if known is not None and known[1] is stores and known[0] == definition and known[2].columns == wanted:
            return known[2]
        found = store_indexes(bind(definition, stores, None), wanted)
        self._known[key] = definition, stores, found
        return found

    def _fits(self, definition: TableDefinition, index: Index) -> bool:
        try:
            check_indexes(definition, (index,))
        except MillpondError as error:
            self._ignore(definition, error)
            return False
        return True

    def _ignore(self, definition: TableDefinition, error: MillpondError) -> None:
        if error.message not in self._ignored:
            self._ignored.add(error.message)
            log.warning("index.ignored", table=definition.table, message=error.message, hint=error.hint)

    def _asked_as(self, folder: JobFolder, table: str, asked: Collection[str]) -> str:
        """The name by which something is asked for here: the table's own, or the one that means its version."""
        parsed = parse_job(table)
        is_version = table == folder.job and table not in asked and parsed is not None
        return parsed[0] if is_version and parsed is not None and parsed[0] in self.names.names() else table
