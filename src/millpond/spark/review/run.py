"""Reviews programs in a process of its own: `python -m millpond.spark.review.run ANSWER CONF PROGRAM [WORD…]`.

ANSWER gets the review as JSON.  What the program writes goes where this process's output goes.  The
process, its JVM and whatever else it has started end with the process that began it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from millpond.schema.prepared import ready
from millpond.spark.java import require_java
from millpond.spark.review.intercept import review_program
from millpond.spark.supervised import watch_parent


def main(answer: str, conf: str, program: str, *words: str) -> None:
    """See the module.

    conf:  settings of the deploy, a JSON object
    """
    watch_parent(lambda: os.killpg(0, signal.SIGKILL))
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    review = review_program(Path(program), msgspec.json.decode(conf, type=ready(dict[str, str])), list(words))
    target = Path(answer)
    new = target.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(review))
    new.replace(target)
    sys.stdout.flush()
    # Threads of the program, and what it does at the end of its process, mustn't keep the answer waiting.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
