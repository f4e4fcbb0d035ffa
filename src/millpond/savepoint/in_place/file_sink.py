"""The log of Spark's file sink, up to one batch: which files a reader of the sink may see.

    <sink>/_spark_metadata/<batch>            `v1`, then a JSON object for each file of the batch
    <sink>/_spark_metadata/<batch>.compact    the same for all batches up to this one

A compacted entry doesn't say which batch a file is of, and Spark deletes the entries that it stands
for after ten minutes.  So the log of an earlier batch can only be had while these are there, or
from a savepoint that was made with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote, unquote

from millpond.checkpoint.source_files import ENTRY
from millpond.errors import SavepointError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage, uri_of
from millpond.storage.names import hadoop_uri, path_of_hadoop

LOG = "_spark_metadata"
SINK = "_sink/"
"""where a savepoint has the log, below its folder `checkpoint`"""
_BOUNDS = FileBounds()
# What Java leaves as it is in a URI's path.
_PLAIN = "/$&+,;=:@!~*'()"


def log_of(sink: str) -> Storage:
    """The folder of a file sink's log.

    Raises:  SINK_MISMATCH if this isn't the folder of a file sink.
    """
    log = open_storage(sink).folder(LOG)
    if not any(ENTRY.fullmatch(name) for name in log.names()):
        raise mismatch(sink, f"has no {LOG}", "Name the folder that the job's file sink writes to.")
    return log


def entries_upto(names: Iterable[str], batch: int) -> list[str] | None:
    """The entries of a log that tell all files up to a batch, and no others; None if there are no such."""
    found = [(int(m[1]), bool(m[2])) for name in names if (m := ENTRY.fullmatch(name))]
    compact = max((number for number, is_compact in found if is_compact and number <= batch), default=None)
    first = 0 if compact is None else compact + 1
    later = {number for number, is_compact in found if not is_compact}
    if any(number not in later for number in range(first, batch + 1)):
        return None
    return ([] if compact is None else [f"{compact}.compact"]) + [str(number) for number in range(first, batch + 1)]


def check_upto(sink: str, log: Storage, batch: int) -> list[str]:
    """The same.  Raises SINK_MISMATCH if the log can't tell."""
    entries = entries_upto(log.names(), batch)
    if entries is None:
        raise mismatch(
            sink,
            f"can't tell which files are of batches up to {batch}: its log was compacted since, or doesn't begin with batch 0",
            "Roll back to a savepoint that was made with --sink, or to a newer batch.",
        )
    return entries


def read_listed(log: Storage, names: Iterable[str], sink: str) -> list[str]:
    """The paths of the files that these entries name, in order, as paths below the sink where they are.

    Raises:  SINK_MISMATCH if an entry can't be read; FILE_GONE.
    """
    root = hadoop_uri(uri_of(sink))
    found: dict[str, None] = {}
    for name in names:
        for _, data in _records(log, name):
            place = _place(str(data["path"]))
            path = place[len(root) + 1 :] if place.startswith(f"{root}/") else place
            if data.get("action", "add") == "delete":
                found.pop(path, None)
            else:
                found[path] = None
    return list(found)


def newest_entries(log: Storage) -> list[str]:
    """The entries of a log that tell all files now."""
    numbered = sorted((int(m[1]), not m[2], name) for name in log.names() if (m := ENTRY.fullmatch(name)))
    begin = max((place for place, (_, is_plain, _) in enumerate(numbered) if not is_plain), default=0)
    return [name for _, _, name in numbered[begin:]]


def write_anchored(source: Storage, names: Iterable[str], old_sink: str, target: Storage, sink: str) -> None:
    """Write entries into another folder, with the paths of files in the sink's place now.

    Raises:  SINK_MISMATCH if an entry can't be read; FILE_GONE, NOT_WRITABLE.
    """
    before, now = hadoop_uri(uri_of(old_sink)), hadoop_uri(uri_of(sink))
    after = quote(now, safe=_PLAIN)
    for name in names:
        lines = ["v1"]
        for line, data in _records(source, name):
            path = str(data["path"])
            below = _place(path).removeprefix(f"{before}/")
            if before != now and below != _place(path):
                end = "/".join(path.split("/")[-below.count("/") - 1 :])  # as Spark wrote it, with its escapes
                lines.append(json.dumps({**data, "path": f"{after}/{end}"}, separators=(",", ":"), ensure_ascii=False))
            else:
                lines.append(line)
        target.write(name, "\n".join(lines).encode())


def _place(path: str) -> str:
    """The place of a file that a log names, without the escapes that Java gives to its URI."""
    return hadoop_uri(uri_of(path_of_hadoop(unquote(path))))


def mismatch(sink: str, what: str, hint: str) -> SavepointError:
    """A file sink doesn't go with a batch."""
    return SavepointError("SINK_MISMATCH", f"The sink {sink} {what}.", hint=hint, sink=sink)


def _records(log: Storage, name: str) -> list[tuple[str, dict[str, object]]]:
    """The lines of an entry, and their meaning."""
    version, *lines = log.read(name, _BOUNDS.source_log_bytes).decode(errors="replace").split("\n")
    try:
        if version != "v1":
            raise ValueError(f"it has version {version!r:.20}")
        found = [(line, parse_json(line)) for line in lines if line]
        for _, data in found:
            if not isinstance(data["path"], str):
                raise ValueError("it names no file")
    except DAMAGE as broken:
        raise mismatch(f"{log.uri}/{name}", f"can't be read: {broken!r:.200}", "Restore the file from a copy.") from broken
    return found
