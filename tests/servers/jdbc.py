"""PostgreSQL's JDBC driver in a Java of its own, for tests that ask a server as Java programs do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from servers.maven import dependency, fetched_jars

DRIVER = "42.7.4"


@contextlib.contextmanager
def jdbc() -> Iterator[Any]:
    """A function from URL and properties to a java.sql.Connection.  Skips the test without Java, py4j or the jar."""
    java_gateway = pytest.importorskip("py4j.java_gateway")
    from millpond.spark.java import require_java

    jars = fetched_jars(f"postgresql-{DRIVER}-1", [dependency(f"org.postgresql:postgresql:{DRIVER}", alone=True)])
    classpath = ":".join(str(jar) for jar in jars.glob("*.jar"))
    gateway = java_gateway.JavaGateway.launch_gateway(classpath=classpath, java_path=str(require_java()), die_on_exit=True)

    def connect(url: str, **properties: str) -> Any:
        given = gateway.jvm.java.util.Properties()
        for name, value in properties.items():
            given.setProperty(name, value)
        return gateway.jvm.org.postgresql.Driver().connect(url, given)

    try:
        yield connect
    finally:
        gateway.shutdown()


def rows(result: Any) -> list[list[str | None]]:
    """All rows of a java.sql.ResultSet, as texts."""
    count, found = result.getMetaData().getColumnCount(), []
    while result.next():
        found.append([result.getString(n) for n in range(1, count + 1)])
    return found
