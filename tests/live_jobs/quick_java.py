"""Settings for a JVM of tests, which ends after some minutes of small batches.

Such a JVM spends most of its time compiling code that hardly runs.  These settings turn off its second compiler, and choose the
simplest collector.
"""

from __future__ import annotations

_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JAVA = {"spark.driver.extraJavaOptions": _OPTIONS}
"""Settings of a session."""
QUICK_JAVA_ENVIRONMENT = {"JDK_JAVA_OPTIONS": _OPTIONS}
"""Variables for a program that makes its own session."""
