"""Settings for a JVM of tests, which ends after some minutes of small batches.

Such a JVM spends most of its time compiling code that hardly runs.  These settings turn off its second compiler, and choose the
simplest collector.  Its space for compiled code is large enough that no code must be thrown out, and it starts other programs
without a helper in between.
"""

from __future__ import annotations

_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK -XX:ReservedCodeCacheSize=256m"
QUICK_JAVA = {"spark.driver.extraJavaOptions": _OPTIONS}
"""Settings of a session."""
QUICK_JAVA_ENVIRONMENT = {"JDK_JAVA_OPTIONS": _OPTIONS}
"""Variables for a program that makes its own session."""
RENAMES_WITHOUT_PROCESSES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Settings of a session that writes the same files with less work.

Without Hadoop's native library, Spark's default starts `chmod` and `readlink` as programs for each file that a batch writes.
"""
