"""Waiting for a server, for the tests of doors."""

from __future__ import annotations

import time

import httpx


def wait_until_ready(client: httpx.Client) -> None:
    """Return when /readyz says yes; fail after a minute."""
    deadline = time.monotonic() + 60
    while (answer := client.get("/readyz")).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.02)
