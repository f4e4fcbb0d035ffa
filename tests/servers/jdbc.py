"""JDBC drivers in a Java of their own, for tests that ask a server as Java programs do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from servers.maven import dependency, fetched_jars


class Driver(NamedTuple):
    """A driver: where it comes from, its class, and what its Java needs."""

    coordinates: str
    name: str
    options: tuple[str, ...] = ()


POSTGRES = Driver("org.postgresql:postgresql:42.7.4", "org.postgresql.Driver")
FLIGHT_SQL = Driver(
    "org.apache.arrow:flight-sql-jdbc-driver:18.3.0",
    "org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver",
    ("--add-opens=java.base/java.nio=ALL-UNNAMED",),
)


@contextlib.contextmanager
def jdbc(driver: Driver = POSTGRES) -> Iterator[Any]:
    """A function from URL and properties to a java.sql.Connection.  Skips the test without Java, py4j or the jar."""
    java_gateway = pytest.importorskip("py4j.java_gateway")
    from millpond.spark.java import require_java

    _, artifact, version = driver.coordinates.split(":")
    jars = fetched_jars(f"{artifact}-{version}-1", [dependency(driver.coordinates, alone=True)])
    gateway = java_gateway.JavaGateway.launch_gateway(
        classpath=":".join(str(jar) for jar in jars.glob("*.jar")),
        java_path=str(require_java()),
        javaopts=list(driver.options),
        die_on_exit=True,
    )
    made = java_gateway.JavaClass(driver.name, gateway._gateway_client)()

    def connect(url: str, **properties: str) -> Any:
        given = gateway.jvm.java.util.Properties()
        for name, value in properties.items():
            given.setProperty(name, value)
        return made.connect(url, given)

    try:
        yield connect
    finally:
        gateway.shutdown()


def rows(result: Any) -> list[list[str | None]]:
    """All rows of a java.sql.ResultSet, as texts.  It is closed then: Arrow's driver counts memory that isn't given back."""
    count, found = result.getMetaData().getColumnCount(), []
    while result.next():
        found.append([result.getString(n) for n in range(1, count + 1)])
    result.close()
    return found
