"""The guard of a fenced job: a thread in the JVM that ends the JVM when the lease isn't renewed.

It is in the JVM that writes, and not in Python: a program that is stopped or hangs can't stop a JVM
that goes on.  Spark's own compiler of generated code, Janino, compiles it, so that no file of ours
is needed on the class path.

1. `begin` notes the time before the lease is renewed; `renewed` counts from then on.
2. Every 50 ms a thread compares the clocks.  The monotonic one doesn't count while a machine
   sleeps, and the other one can be set, so the larger difference counts.
3. When the lease is over, `halt` ends the JVM without any hook, so that nothing more is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from millpond.errors import SetupError

_CLASS = "MillpondLeaseGuard"
EXIT_CODE = 86
"""of a JVM that its guard has ended"""
_SOURCE = f"""
public class {_CLASS} implements Runnable {{
    private final long lengthMillis;
    private final String what;
    private long nanos, millis, nextNanos, nextMillis;
    private boolean released;

    public {_CLASS}(String what, long lengthMillis) {{
        this.what = what;
        this.lengthMillis = lengthMillis;
        this.begin();
        this.nanos = this.nextNanos;
        this.millis = this.nextMillis;
    }}

    public synchronized void begin() {{
        this.nextNanos = System.nanoTime();
        this.nextMillis = System.currentTimeMillis();
    }}

    public synchronized void renewed() {{
        this.endIfOver();
        this.nanos = this.nextNanos;
        this.millis = this.nextMillis;
    }}

    public synchronized void release() {{
        this.released = true;
    }}

    private synchronized boolean endIfOver() {{
        if (this.released) {{
            return true;
        }}
        long since = Math.max((System.nanoTime() - this.nanos) / 1000000L, System.currentTimeMillis() - this.millis);
        if (since > this.lengthMillis) {{
            System.err.println("millpond: " + this.what + " couldn't renew the lease of its checkpoint for " + since
                + " ms: its JVM ends now, since another job may have it");
            Runtime.getRuntime().halt({EXIT_CODE});
        }}
        return false;
    }}

    public void run() {{
        while (!this.endIfOver()) {{
            try {{
                Thread.sleep(50L);
            }} catch (InterruptedException ignored) {{
            }}
        }}
    }}
}}
"""


class JvmGuard:
    """The guard of one job's JVM."""

    def __init__(self, gateway: Any, what: str, length_seconds: float) -> None:
        """This starts the thread; the lease must be renewed next, before the job writes."""
        self._what = what
        jvm = gateway.jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(_SOURCE)
        kinds = jvm.java.lang.Class.forName(_CLASS, True, compiler.getClassLoader()).getConstructors()
        arguments = gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = what, int(length_seconds * 1000)
        self._guard = kinds[0].newInstance(arguments)
        thread = jvm.java.lang.Thread(self._guard, f"millpond lease of {what}")
        thread.setDaemon(True)
        thread.start()

    def begin(self) -> None:
        """A renewal begins now."""
        with self._calling():
            self._guard.begin()

    def renewed(self) -> None:
        """That renewal has succeeded."""
        with self._calling():
            self._guard.renewed()

    def release(self) -> None:
        """The job has ended: nothing ends the JVM from now on."""
        with suppress(Exception):  # the JVM has ended
            self._guard.release()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except Exception as gone:
            raise SetupError(
                "JOB_FAILED",
                f"The JVM of {self._what} doesn't answer: {type(gone).__name__}.",
                hint="Look at what it wrote last, and start the job again.",
            ) from gone
