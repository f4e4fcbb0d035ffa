"""Helm, as the library that helm-java makes of it, in a Java of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.maven import dependency, fetched_jars

VERSION = "0.0.21"
_JARS = ("helm-java", "lib-api", "linux-amd64")
_JNA = ("net.java.dev.jna:jna-jpms:5.18.1", "net.java.dev.jna:jna-platform-jpms:5.18.1")


class Helm:
    """`helm lint` and `helm template` of a chart."""

    def __init__(self, jvm: Any, chart: Path) -> None:
        self._jvm, self._chart = jvm, chart

    def lint(self) -> tuple[bool, list[str]]:
        """Whether `helm lint --strict` finds no fault, and its messages."""
        said = self._helm().lint().strict().call()
        return not said.isFailed(), list(said.getMessages())

    def template(self, name: str, values: Path | None = None) -> str:
        """The manifest of a release.

        name:    the release's name
        values:  a file of values in place of the chart's own
        """
        command = self._helm().template().withName(name)
        if values is not None:
            command = command.withValuesFile(self._jvm.java.io.File(str(values)).toPath())
        return str(command.call())

    def _helm(self) -> Any:
        return self._jvm.com.marcnuri.helm.Helm(self._jvm.java.io.File(str(self._chart)).toPath())


@contextlib.contextmanager
def helm(chart: Path) -> Iterator[Helm]:
    """Helm for one chart.  Skips the test without Java, py4j or the jars."""
    java_gateway = pytest.importorskip("py4j.java_gateway")
    from millpond.spark.java import require_java

    wanted = [dependency(f"com.marcnuri.helm-java:{jar}:{VERSION}", alone=True) for jar in _JARS]
    jars = fetched_jars(f"helm-java-{VERSION}-1", wanted + [dependency(jar, alone=True) for jar in _JNA])
    classpath = ":".join(str(jar) for jar in jars.glob("*.jar"))
    gateway = java_gateway.JavaGateway.launch_gateway(classpath=classpath, java_path=str(require_java()), die_on_exit=True)
    try:
        yield Helm(gateway.jvm, chart)
    finally:
        gateway.shutdown()
