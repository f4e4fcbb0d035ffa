"""Results of benchmarks: each is written by its own script, with all rounds, the machine, versions, the day and the load.

The digest shows an edit by hand: tests/benchmarks compares it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from millpond.native.library import library

FOLDER = Path(__file__).parent / "results"
# When the program began: what else ran, before it did.
_LOAD_BEFORE = os.getloadavg()[0]


def machine() -> dict[str, Any]:
    """Cores, memory in GiB, kernel, versions and date."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine()
    )
    kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "date": dt.date.today().isoformat(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(kib / 1024 / 1024, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compiled_library": library() is not None,
        **{name: _version(name) for name in ("millpond", "pyspark", "lmdb", "uvicorn", "granian", "starlette")},
    }


def write_result(name: str, figures: dict[str, Any], rounds: Any) -> Path:
    """Keep a result as benchmarks/results/<name>.json.

    figures:  what is said of it: sizes, medians, ratios
    rounds:   what was measured each time, from which the figures come
    """
    script = Path(sys.argv[0])
    if script.stem != name or not rounds:
        raise ValueError(f"{script.name} writes {script.stem}.json, with its rounds")
    twice = {"machine", "load_average", "rounds", "command", "sha256"} & set(figures)
    if twice:
        raise ValueError(f"{sorted(twice)} are written for every result")
    result = {
        "command": " ".join([f"benchmarks/{script.name}", *sys.argv[1:]]),
        "machine": machine(),
        "load_average": {"before": round(_LOAD_BEFORE, 2), "after": round(os.getloadavg()[0], 2)},
        **figures,
        "rounds": rounds,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({**result, "sha256": digest(result)}, indent=1) + "\n")
    return path


def digest(result: dict[str, Any]) -> str:
    """Of all that a result says."""
    said = {name: value for name, value in result.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
