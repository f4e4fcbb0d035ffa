"""Arguments of these commands, and a savepoint in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from millpond.cli.complete import complete_place
from millpond.cli.terminal import visible, write_json, write_line
from millpond.operate.units import moment
from millpond.savepoint.manifest import Manifest, Savepoint

_FACTS = (
    *("name", "note", "job", "job_id", "checkpoint", "batch", "offsets", "watermark_ms", "created_ms"),
    *("parent", "shares_with", "origin"),
)
place_argument = click.argument("place", metavar="DIR|URI", shell_complete=complete_place)
name_argument = click.argument("name", metavar="SAVEPOINT")


def show_savepoint(found: Savepoint, *, as_json: bool) -> None:
    """Write what is known of it."""
    manifest = found.manifest
    if as_json:
        partitions = [asdict(partition) for partition in manifest.partitions]
        write_json({**summary(manifest), "conf": manifest.conf, "operators": manifest.operators, "partitions": partitions})
        return
    lines = {
        "savepoint": manifest.name,
        "note": manifest.note,
        "job": f"{manifest.job}, id {manifest.job_id}",
        "checkpoint": manifest.checkpoint,
        "batch": f"{manifest.batch}, begun {moment(manifest.batch_started_ms)}",
        "watermark": "none" if manifest.watermark_ms is None else moment(manifest.watermark_ms),
        "made": f"{moment(manifest.created_ms)}, by Millpond {manifest.millpond}",
        "holds": f"{len(manifest.files)} files, {manifest.size_bytes:,} bytes, {count_words(manifest)} rows",
        "tables": ", ".join(sorted(manifest.tables)) or "none defined",
        "follows": manifest.parent or "",
        "shares": f"files with {manifest.shares_with}" if manifest.shares_with else "",
        "restored": f"from {manifest.origin}" if manifest.origin else "",
        "in": found.storage.uri,
    }
    for word, text in lines.items():
        if text:
            write_line(f"{word:<12}{visible(text)}")


def summary(manifest: Manifest) -> dict[str, Any]:
    """Facts of it, for JSON."""
    facts = {name: getattr(manifest, name) for name in _FACTS}
    return {**facts, "files": len(manifest.files), "size_bytes": manifest.size_bytes, "rows": manifest.rows}


def describe_row(manifest: Manifest) -> list[str]:
    made = moment(manifest.created_ms)
    return [
        manifest.name,
        manifest.job,
        str(manifest.batch),
        made,
        count_words(manifest),
        f"{manifest.size_bytes:,}",
        manifest.note,
    ]


def count_words(manifest: Manifest) -> str:
    """How many rows it has, for people."""
    return "not counted" if manifest.rows is None else f"{manifest.rows:,}"
