"""An archiver's status in Prometheus' text format, for a file that node_exporter collects."""

from __future__ import annotations

from millpond.savepoint.archive.archiver import ArchiverStatus

# Name -> type, the fact in the status, its meaning.
_METRICS = {
    "millpond_archive_batch": ("gauge", "batch", "The newest archived batch."),
    "millpond_archive_behind_batches": ("gauge", "behind_batches", "Batches committed and not archived."),
    "millpond_archive_behind_seconds": ("gauge", "behind_seconds", "Age of the oldest commit that isn't archived."),
    "millpond_archive_lag_seconds": ("gauge", "lag_seconds", "From commit to archived, of the newest archived batch."),
    "millpond_archive_batches_total": ("counter", "batches", "Batches archived."),
    "millpond_archive_files_total": ("counter", "files", "Files written."),
    "millpond_archive_bytes_total": ("counter", "size_bytes", "Bytes written."),
    "millpond_archive_expired_batches_total": ("counter", "expired", "Batches deleted since they were too old."),
    "millpond_archive_errors_total": ("counter", "errors", "How often a step failed; it is tried again."),
}


def metrics_text(status: ArchiverStatus) -> str:
    """The text."""
    job = f'job="{label(status.job)}"'
    lines: list[str] = []
    for name, (kind, fact, text) in _METRICS.items():
        if (value := getattr(status, fact)) is not None:
            add_metric(lines, name, kind, text, (job, value))
    lost = sum(last - first + 1 for first, last in status.lost)
    add_metric(lines, "millpond_archive_lost_batches", "gauge", "Batches that committed and aren't archived.", (job, lost))
    kinds = [(f'{job},kind="{label(kind)}"', count) for kind, count in sorted(status.requests.items())]
    add_metric(lines, "millpond_archive_requests_total", "counter", "Requests to object stores.", *kinds)
    error = [] if status.last_error is None else [(f'{job},condition="{label(status.last_error.condition)}"', 1)]
    add_metric(lines, "millpond_archive_failed", "gauge", "1 while the last step's error lasts.", *error)
    return "\n".join(lines) + "\n"


def add_metric(lines: list[str], name: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
    """Add one metric to a text: what it means, and a line for each sample, of labels and value."""
    lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
    lines.extend(f"{name}{{{labels}}} {value}" for labels, value in samples)


def label(text: str) -> str:
    """The value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
