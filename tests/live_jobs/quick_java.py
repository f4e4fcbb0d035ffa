"""Settings for a JVM that ends after a few batches, killed or by itself.

It spends most of its time compiling what it will hardly run: here without the second compiler, and with the plain collector.
"""

from __future__ import annotations

_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JAVA = {"spark.driver.extraJavaOptions": _OPTIONS}
"""Of a session's."""
QUICK_JAVA_ENVIRONMENT = {"JDK_JAVA_OPTIONS": _OPTIONS}
"""Of a program whose session isn't made here."""
