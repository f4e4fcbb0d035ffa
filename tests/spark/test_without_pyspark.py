"""Without PySpark, programs can publish models and read hot keys; all other functions of the job's side say what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from millpond.catalogue import create_job

BLOCKED = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\nimport millpond\n"
CALLS = [
    "millpond.session('test')",
    "millpond.start(None, table='t', pond='p')",
    "millpond.publish(None, table='t')",
    "millpond.define(None, 'c', table='t')",
    "millpond.salted(None, by=['a'])",
    "millpond.buffered",
    "from millpond import broadcast; broadcast(None, None, print, output='a long', key='a', order='a')",
    "from millpond import serve_models",
    "from millpond import read_models",
]


def run(program: str, *arguments: str) -> str:
    """The output of a program that can't import PySpark."""
    command = [sys.executable, "-c", BLOCKED + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_is_published_and_taken_back(tmp_path: Path) -> None:
    program = """
print(millpond.publish_model(sys.argv[1], b"bytes", name="first").sha256)
millpond.roll_back_model(sys.argv[1], 1)
millpond.remove_model(sys.argv[1])
"""
    digest = run(program, str(tmp_path)).strip()
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [record["action"] for record in records] == ["put", "rollback", "remove"]
    assert records[0]["uri"].endswith(f"/models/{digest}")
    assert (tmp_path / "models" / digest).read_bytes() == b"bytes"


def test_the_hot_keys_of_a_job_are_read(tmp_path: Path) -> None:
    create_job(tmp_path, "views")
    assert run("print(millpond.HotKeys(sys.argv[1], 'views').found())", str(tmp_path)).strip() == "[]"


def test_the_jobs_side_says_what_to_install() -> None:
    program = """
from millpond.errors import MillpondError
for call in sys.argv[1:]:
    try:
        exec(call)
    except MillpondError as refused:
        print(refused.condition, refused.hint)
"""
    assert run(program, *CALLS).splitlines() == ["PYSPARK_MISSING Run: pip install 'millpond[spark]'"] * len(CALLS)
