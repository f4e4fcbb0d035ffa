"""What every benchmark writes beside its figures: the machine, the versions, the day."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from millpond.native.library import library

FOLDER = Path(__file__).parent / "results"


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


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Keep a result as benchmarks/results/<name>.json."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


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
