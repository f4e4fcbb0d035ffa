"""A sender in a process of its own, to be killed: `python -m sending.killed CHECKPOINT HOME TARGET OPTIONS`."""

from __future__ import annotations

import json
import sys
import time

import millpond
from millpond.sending import sender as sender_module
from millpond.sending.sender import Sender

if __name__ == "__main__":
    checkpoint, home, to, options = sys.argv[1:]
    sender_module.PAGE_ROWS = 50
    # The replica is followed elsewhere, so that only the sender is killed.
    with millpond.open(checkpoint, replica_dir=home, follow=False) as pond:
        table = pond["ck.aggregate_0"]
        print("ready", flush=True)
        with Sender(table, to, options=json.loads(options)).start() as sender:
            until = time.monotonic() + 600
            while time.monotonic() < until:
                time.sleep(0.1)
                if sender.status().state == "ended":
                    sys.exit(f"the sender has ended: {sender.last_error}")
