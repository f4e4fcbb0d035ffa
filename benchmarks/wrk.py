"""Requests from wrk: random keys of one table over many connections, as fast as they are answered."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile

CONNECTIONS = 32
_LUA = """
math.randomseed(os.time())
request = function()
  return wrk.format("GET", "{path}" .. math.random(0, {rows} - 1))
end
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), summary.errors.status, summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
"""


def require_wrk() -> None:
    """End the program where there is no wrk."""
    if shutil.which("wrk") is None:
        raise SystemExit("This needs wrk: apt-get install wrk")


def load(address: str, path: str, rows: int, seconds: int, connections: int = CONNECTIONS) -> dict[str, float]:
    """One round: requests, requests/s, p50 and p99 in ms.  Ends the program where any request failed.

    path:  a number below `rows` is written behind it
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA.format(path=path, rows=rows))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", script.name, address]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", out)
    if found is None:
        raise SystemExit(f"wrk said: {out}")
    requests, micros, p50, p99, wrong, broken = map(int, found.groups())
    if wrong or broken:
        raise SystemExit(f"{address}: {wrong} answers were errors, {broken} connections broke")
    return {
        "requests": requests,
        "requests_per_second": round(requests / micros * 1e6),
        "p50_ms": p50 / 1000,
        "p99_ms": p99 / 1000,
    }
