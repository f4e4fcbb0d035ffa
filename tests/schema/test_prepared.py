"""No two threads let msgspec inspect types at once: that crashes the process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import millpond

CALLS = {
    f"msgspec.{name}": place
    for name, place in (
        ("json.decode", "type"),
        ("msgpack.decode", "type"),
        ("json.Decoder", 0),
        ("msgpack.Decoder", 0),
        ("convert", 1),
    )
}
ATTACK = """
import sys
import threading
import msgspec
from millpond.schema.prepared import ready

sys.setswitchinterval(1e-6)
for turn in range(300):
    names = [f"m{n}" for n in range(30)]
    leaf = msgspec.defstruct("Leaf", [(name, int | None, None) for name in names])
    kinds = [msgspec.defstruct(f"Kind{n}", [(name, list[leaf] | None, None) for name in names]) for n in range(4)]
    begin = threading.Barrier(8)

    def read(kind):
        begin.wait()
        found = msgspec.json.decode(b'{"m1": [{"m2": 5}]}', type=ready(kind))
        assert found.m1[0].m2 == 5

    threads = [threading.Thread(target=read, args=(kinds[n % 4],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("all decoded")
"""


def test_every_decoder_has_a_type_that_is_ready() -> None:
    checked = 0
    for path in sorted(Path(millpond.__file__).parent.rglob("*.py")):
        text = path.read_text()
        if path.parts[-2:] == ("schema", "prepared.py") or "msgspec" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            place = CALLS.get(ast.unparse(call.func)) if isinstance(call, ast.Call) else None
            if place is None or not isinstance(call, ast.Call):
                continue
            named = [word.value for word in call.keywords if word.arg == "type"]
            kinds = named or ([call.args[place]] if isinstance(place, int) and len(call.args) > place else [])
            for kind in kinds:
                assert ast.unparse(kind).startswith("ready("), f"{path}:{call.lineno}"
                checked += 1
    assert checked > 20


@pytest.mark.long
def test_threads_that_decode_new_types_at_once_all_decode() -> None:
    done = subprocess.run([sys.executable, "-c", ATTACK], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "all decoded\n"), done.stderr[-2000:]
