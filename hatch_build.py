"""Builds the compiled library, `src/millpond/native/c/*.c`, into the package.  By hand: `python hatch_build.py`.

The compiler is CC, the system's, or the one that `ziglang` brings from PyPI, which is asked for where there is no other.  Where
none works, the package is built without it: everything runs, slower.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path(__file__).parent / "src" / "millpond" / "native"
_FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra"]


def system_compiler() -> list[str] | None:
    """The command that compiles C; None where there is none but ziglang's."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    return [found] if found else None


def build(flags: tuple[str, ...] = (), target: Path = _FOLDER / "libmillpond.so") -> bool:
    """Compile the library; whether that went well."""
    stamp = runpy.run_path(str(_FOLDER / "library.py"))["source_stamp"]()
    compiler = system_compiler() or [sys.executable, "-m", "ziglang", "cc"]
    made = target.with_name(f"{target.name}.{os.getpid()}")
    sources = [str(path) for path in sorted((_FOLDER / "c").glob("*.c"))]
    try:
        subprocess.run([*compiler, *_FLAGS, *flags, f"-DSTAMP={stamp}", "-o", str(made), *sources], check=True)
        made.replace(target)
    except (OSError, subprocess.CalledProcessError) as failed:
        print(f"millpond is built without its compiled library: {failed}", file=sys.stderr)
        made.unlink(missing_ok=True)
        return False
    return True


class NativeHook(BuildHookInterface[Any]):
    """What hatchling calls."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if system_compiler() else ["ziglang"]

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and build():
            build_data["artifacts"].append("src/millpond/native/libmillpond.so")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    sys.exit(not build(tuple(sys.argv[1:])))
