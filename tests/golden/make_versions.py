"""Writes golden checkpoints with older versions of Spark, each in an environment of its own outside the checkout.

    python tests/golden/make_versions.py [--environments FOLDER] [VERSION …]

It runs make_operators.py in each environment, for fewer cells than of our own version. The oracle of a checkpoint of 4.x is the
reader of that version. 3.5 has no reader: the Spark that runs this script reads its checkpoints. VERSIONS.md lists the
differences between versions.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from packing import packed

HERE = Path(__file__).parent
RELEASES = {"3.5": "3.5.9", "4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1"}
# transformWithState in Python needs a matching protobuf, and fails without naming it.
NEEDS = {
    "3.5": ["numpy<2", "pandas<3", "pyarrow<18"],
    "4.0": ["numpy<3", "pandas<3", "protobuf>=5.28.3,<6"],
    "4.1": ["numpy<3", "pandas<3", "protobuf>=6.33,<7"],
    "4.2": ["numpy<3", "pandas<3", "protobuf>=6.33.5,<7"],
}
EVERYWHERE = [
    "counts-hdfs",
    "counts-rocksdb-changelog",
    "counts-rocksdb-snapshots",
    "windows-rocksdb-changelog",
    "dedupe-hdfs",
    "dedupe-rocksdb-changelog",
    "join-inner-hdfs",
    "join-left-rocksdb-changelog",
    "apply-hdfs",
    "apply-event-timeout-rocksdb-changelog",
]
SINCE_4_0 = [
    "sessions-rocksdb-changelog",
    "transform-state-rocksdb-changelog",
    "transform-append-rocksdb-snapshots",
    "transform-event-timers-rocksdb-changelog",
    "transform-ttl-rocksdb-changelog",
    "transform-state-avro-rocksdb-changelog",
]
# Between 4.0 and 4.3 only transformWithState and joins changed much.
SOME = [
    "counts-hdfs",
    "counts-rocksdb-changelog",
    "windows-rocksdb-changelog",
    "dedupe-rocksdb-changelog",
    "join-left-rocksdb-changelog",
    "apply-hdfs",
]
NEWER = ["transform-state-rows-rocksdb-changelog", "join-inner-format3-rocksdb-changelog"]
CELLS = {
    "3.5": [*EVERYWHERE, "dedupe-within-watermark-hdfs", "join-semi-hdfs", "limit-hdfs", "windows-hdfs"],
    "4.0": [*SINCE_4_0, *EVERYWHERE, "windows-hdfs"],
    "4.1": [*NEWER, *SINCE_4_0, *SOME],
    "4.2": [*NEWER, *SINCE_4_0, *SOME],
}


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this Spark; makes the environment if needed."""
    python = folder / RELEASES[version] / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        needed = [f"pyspark=={RELEASES[version]}", "pyarrow", *NEEDS[version]]
        subprocess.run([python, "-m", "pip", "install", "-q", *needed], check=True)
    return python


def main() -> None:
    """Write all cells of the named versions, or of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "spark-versions")
    parser.add_argument("--missing", action="store_true", help="leave out the cells that are there")
    parser.add_argument("versions", nargs="*")
    asked = parser.parse_args()
    for version in asked.versions or CELLS:
        into = f"spark-{version}"
        names = [name for name in CELLS[version] if not (asked.missing and packed(f"{into}/{name}").exists())]
        script = [HERE / "make_operators.py", "--into", into]
        python = environment(asked.environments, version)
        if version == "3.5":
            subprocess.run([python, *script, "--only", "write", *names], check=True)
            subprocess.run([sys.executable, *script, "--only", "read", *names], check=True)
        else:
            subprocess.run([python, *script, *names], check=True)


if __name__ == "__main__":
    main()
