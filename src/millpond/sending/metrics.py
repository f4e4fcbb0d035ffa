"""A sender's status in Prometheus' text format, for a file that node_exporter collects."""

from __future__ import annotations

from millpond.savepoint.archive.metrics import add_metric, label
from millpond.sending.sender import SenderStatus

# Name -> type, the fact in the status, its meaning.
_METRICS = {
    "millpond_send_batch": ("gauge", "batch", "All changes up to this batch are at the target."),
    "millpond_send_behind_batches": ("gauge", "behind_batches", "Batches committed and not sent."),
    "millpond_send_behind_seconds": ("gauge", "behind_seconds", "For how long there have been batches to send."),
    "millpond_send_lag_seconds": ("gauge", "lag_seconds", "From commit to sent, of the newest batch that was sent."),
    "millpond_send_changes_total": ("counter", "changes", "Changes sent, and rows of whole reads."),
    "millpond_send_transactions_total": ("counter", "transactions", "Commits at the target."),
    "millpond_send_whole_reads_total": ("counter", "whole_reads", "How often the whole table was sent."),
    "millpond_send_errors_total": ("counter", "errors", "How often a step failed; it is tried again."),
}


def metrics_text(status: SenderStatus) -> str:
    """The text."""
    labels = f'table="{label(status.table)}",target="{label(status.target)}"'
    lines: list[str] = []
    for name, (kind, fact, text) in _METRICS.items():
        if (value := getattr(status, fact)) is not None:
            add_metric(lines, name, kind, text, (labels, value))
    error = [] if status.last_error is None else [(f'{labels},condition="{label(status.last_error.condition)}"', 1)]
    add_metric(lines, "millpond_send_failed", "gauge", "1 while the last step's error lasts.", *error)
    return "\n".join(lines) + "\n"
