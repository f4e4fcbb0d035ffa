"""The doctor's rules, each declared once; docs/doctor.md has a section for each.

A rule says something only where there is evidence.  What isn't known, such as growth in a log of two
batches, is no evidence.
"""

from __future__ import annotations

from millpond.operate.doctor.rules import of_bounds, of_code, of_query, of_sizes, of_values
from millpond.operate.doctor.rules.rule import Rule

RULES = (
    Rule(
        id="state-unbounded",
        title="Nothing removes rows from the state, and it grows.",
        threshold=1 << 20,
        unit="bytes",
        of_state=of_bounds.unbounded,
        of_query=of_code.unbounded,
    ),
    Rule(
        id="watermark-unused",
        title="The watermark removes nothing.",
        of_state=of_bounds.watermark_unused,
        of_query=of_code.watermark_unused,
    ),
    Rule(
        id="hot-key",
        title="One key has a large share of the state.",
        threshold=0.1,
        unit="share",
        of_state=of_values.hot_key,
    ),
    Rule(id="drawn-key", title="A key is drawn.", of_query=of_code.drawn_key),
    Rule(
        id="growing-list",
        title="The value of a key becomes ever larger.",
        threshold=256 << 10,
        unit="bytes",
        of_state=of_values.growing_list,
        of_query=of_code.growing_list,
    ),
    Rule(id="events-kept", title="Events are kept where a number would do.", of_query=of_code.events_kept),
    Rule(id="unread-column", title="Columns are kept that nothing reads.", of_query=of_code.unread_column),
    Rule(
        id="text-value",
        title="Numbers or times are kept as texts.",
        threshold=1 << 20,
        unit="bytes",
        of_state=of_values.text_value,
    ),
    Rule(
        id="memory-provider",
        title="A large state is kept on the heap.",
        threshold=1 << 30,
        unit="bytes",
        of_state=of_sizes.memory_provider,
    ),
    Rule(
        id="rocksdb-small",
        title="A small state is kept in RocksDB.",
        threshold=1 << 20,
        unit="bytes",
        of_state=of_sizes.rocksdb_small,
    ),
    Rule(
        id="snapshots-only",
        title="RocksDB writes a snapshot with each batch.",
        of_state=of_bounds.snapshots_only,
        of_query=of_query.snapshots_only,
    ),
    Rule(
        id="many-partitions",
        title="The state has more partitions than it needs.",
        threshold=64 << 10,
        unit="bytes",
        of_state=of_sizes.many_partitions,
    ),
    Rule(
        id="few-partitions",
        title="The state's partitions are large.",
        threshold=512 << 20,
        unit="bytes",
        of_state=of_sizes.few_partitions,
    ),
    Rule(
        id="retention-short",
        title="Spark deletes files before they can be read.",
        of_state=of_bounds.retention_short,
        of_query=of_query.retention_short,
    ),
    Rule(id="checkpoint-missing", title="The query has no checkpoint.", of_query=of_query.checkpoint_missing),
    Rule(id="checkpoint-local", title="The checkpoint is on one machine's disk.", of_query=of_query.checkpoint_local),
    Rule(id="sink-repeats", title="The sink has rows twice after a failure.", of_query=of_query.sink_repeats),
    Rule(id="trigger-short", title="Batches take longer than the trigger's interval.", of_query=of_query.trigger_short),
)
BY_ID = {rule.id: rule for rule in RULES}
