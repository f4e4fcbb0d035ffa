"""The process of a program that is looked at: it ends with whoever looks, and its answer counts however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.operate.config import RuleConfig
from millpond.operate.doctor.code import judge
from millpond.spark.review.batch_function import read_batch_function
from millpond.spark.review.facts import Review
from spark_files.golden import GOLDEN
from suite.waiting import wait_until

pytestmark = pytest.mark.spark


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_the_program_ends_with_the_doctor(tmp_path: Path, sent: int) -> None:
    path, pids = tmp_path / "loop.py", tmp_path / "pids"
    path.write_text(
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "other = subprocess.Popen(['sleep', '3600'])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        f"os.replace({str(pids)!r} + '.new', {str(pids)!r})\n"
        "while True:\n    time.sleep(1)\n"
    )
    doctor = subprocess.Popen(
        [f"{Path(sys.executable).parent}/millpond", "doctor", str(path)], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        wait_until(pids.exists, "the program's start", unless=lambda: doctor.poll() is not None)
        started = [int(pid) for pid in pids.read_text().split()]
        assert all(map(is_running, started))
    finally:
        doctor.send_signal(sent)
        doctor.wait()
    wait_until(lambda: not any(map(is_running, started)), "the end of the program and of what it started")


def test_threads_that_go_on_dont_keep_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "threads.py"
    path.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\n")
    found = millpond.diagnose(path)
    assert found.unseen == ("threads.py: the program starts no query.",)


LATIN = '# -*- coding: latin-1 -*-\n"\xe9"  # millpond: ignore[no-rule] caf\xe9\ndef f(rows, i):\n    rows.write.insertInto("t")\n'


@pytest.mark.parametrize("data", [LATIN.encode("latin-1"), b"\xef\xbb\xbf" + LATIN.partition("\n")[2].encode()])
def test_a_program_in_another_encoding(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "job.py"
    path.write_bytes(data)
    found = judge(path, Review(), RuleConfig())
    assert any("there is no rule 'no-rule'" in sentence for sentence in found.unseen)
    names: dict[str, object] = {}
    exec(compile(data, str(path), "exec"), names)
    function = read_batch_function(names["f"], str(path))  # type: ignore[arg-type]
    assert function is not None
    assert function.appends == "write.insertInto(…)"


def test_options_for_the_other_kind_of_place(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("")
    golden = GOLDEN / "counts-hdfs" / "checkpoint"
    for words in ([path, "--job", "x"], [path, "--allow", tmp_path], [golden, "--conf", "a=b"], [golden, "--", "--topic", "x"]):
        done = CliRunner().invoke(main, ["doctor", *map(str, words)])
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert "INVALID_REQUEST" in done.stderr, (words, done.stderr)
    with pytest.raises(MillpondError) as raised:
        millpond.diagnose(golden, conf={"spark.master": "yarn"})
    assert raised.value.condition == "INVALID_REQUEST"
