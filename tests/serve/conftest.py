"""Servers for the tests of the HTTP door: `millpond serve`, each a process of its own on a free port."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_files.golden import GOLDEN


@pytest.fixture
def odd_names(tmp_path: Path) -> Path:
    """The pond of types with misleading column names: table long has the key `_limit`, string has `k__isnull`."""
    pond = tmp_path / "odd"
    shutil.copytree(GOLDEN / "types", pond)
    for table, name in (("long", "_limit"), ("string", "k__isnull"), ("date", "a b&c=ü/%41")):
        _rename_key(pond / "jobs" / table / "tables" / f"{table}.json", name)
    return pond


def _rename_key(path: Path, name: str) -> None:
    definition: dict[str, Any] = json.loads(path.read_text())
    definition["key"][0]["name"] = name
    path.write_text(json.dumps(definition))
