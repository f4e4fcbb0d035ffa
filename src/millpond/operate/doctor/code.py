"""Looks at a program in a process of its own, and judges its queries and the checkpoints that they name.

1. The program runs in another process, where nothing is started (`spark.review`), for a few minutes
   at most.
2. Rules of queries are applied to each one; those of state to each checkpoint that is there.  What
   both say is said once, by the state.
3. A comment `# millpond: ignore[rule] reason` anywhere in the file suppresses a rule in it.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from millpond.catalogue import find_job
from millpond.errors import MillpondError, RequestError, SetupError
from millpond.operate.config import RuleConfig
from millpond.operate.doctor.advice import Advice, Diagnosis, Unseen
from millpond.operate.doctor.rules.rule import CodeFacts, Found, Rule
from millpond.operate.doctor.rules.rules import BY_ID, RULES
from millpond.operate.doctor.state import StateFacts, read_state
from millpond.operate.doctor.state_advice import advice_of_state, silenced
from millpond.schema.prepared import ready
from millpond.settings import DoctorSettings
from millpond.storage.names import path_of_hadoop

if TYPE_CHECKING:
    from millpond.spark.review.facts import Query, Review

_SECONDS = DoctorSettings().program_seconds
_COMMENT = re.compile(r"#\s*millpond:\s*ignore\[([^\]]*)\]\s*(.*)")
_LAST_BYTES = 2000


def diagnose_program(path: Path, config: RuleConfig, conf: Mapping[str, str], words: Sequence[str] = ()) -> Diagnosis:
    """The rules that the queries of a program meet, and the checkpoints that they name.

    conf:    settings of the deploy, by Spark's name
    words:   the program's arguments
    Raises:  FILE_MISSING; INVALID_REQUEST if the program fails before it has a query, or never ends;
             PYSPARK_MISSING, JAVA_MISSING.
    """
    return judge(path, _review(path, conf, words), config)


def judge(path: Path, review: Review, config: RuleConfig) -> Diagnosis:
    """The same of a program that has been looked at."""
    if review.error is not None and not review.queries:
        raise _wrong(" ".join([*review.notes, review.error]).rstrip("."))
    unseen = Unseen()
    for note in review.notes:
        unseen.note(f"{path.name}: {note}")
    if review.error is not None:
        unseen.miss(f"The program ended early, after {len(review.queries)} queries: {review.error}")
    if review.ended is not None:
        unseen.miss(review.ended)
    ignored = _ignored(path, unseen)
    advice: list[Advice] = []
    for query in review.queries:
        advice += _of_query(path, query, review, config, unseen)
    if not review.queries and not review.declared:
        unseen.note(f"{path.name}: the program starts no query.")
    return unseen.diagnosis(
        replace(each, ignored=ignored[each.rule], ignored_in_code=True) if each.rule in ignored else each for each in advice
    )


def _of_query(path: Path, query: Query, review: Review, config: RuleConfig, unseen: Unseen) -> list[Advice]:  # 2
    state = _state(query, unseen)
    found = [] if state is None else advice_of_state(state, config)
    known = {advice.rule for advice in found}
    facts = CodeFacts(query=query, review=review, state=state)
    for rule in RULES:
        if rule.of_query is not None and rule.id not in known:
            found += [silenced(_advice(path, query, rule, each), config) for each in rule.of_query(facts)]
    return found


def _state(query: Query, unseen: Unseen) -> StateFacts | None:
    """The state of a query's checkpoint; None if there is none, or it is in storage that can't be read here."""
    if query.checkpoint is None:
        return None
    try:
        return read_state(find_job(path_of_hadoop(query.checkpoint), None), unseen)
    except MillpondError as error:
        if error.condition not in ("NO_CHECKPOINT", "NO_COMMITTED_BATCH"):
            unseen.note(f"The checkpoint {query.checkpoint} can't be read: [{error.condition}] {error.message}")
        return None


def _advice(path: Path, query: Query, rule: Rule, found: Found) -> Advice:
    return Advice(
        job=query.name,
        rule=rule.id,
        title=rule.title,
        place=found.place,
        evidence=found.evidence,
        cost=found.cost,
        cost_bytes=found.cost_bytes,
        cost_ms=found.cost_ms,
        change=found.change,
        file=str(path),
        line=found.line or query.line,
    )


def _ignored(path: Path, unseen: Unseen) -> dict[str, str]:  # 3
    """Rule -> the reason why it is suppressed in a file."""
    found: dict[str, str] = {}
    for token in tokenize.tokenize(io.BytesIO(path.read_bytes()).readline):
        comment = _COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        if comment is None:
            continue
        for rule in (word.strip() for word in comment[1].split(",")):
            if rule not in BY_ID:
                unseen.note(f"{path.name}, line {token.start[0]}: there is no rule {rule!r:.80}.")
            elif not comment[2].strip():
                unseen.note(f"{path.name}, line {token.start[0]}: {rule} isn't ignored without a reason.")
            else:
                found[rule] = comment[2].strip()
    return found


def _review(path: Path, conf: Mapping[str, str], words: Sequence[str]) -> Review:  # 1
    if not path.is_file():
        raise SetupError("FILE_MISSING", f"There is no file {path}.", hint="Name a Python file, a pond or a checkpoint.")
    from millpond.spark.review.facts import Review

    with tempfile.TemporaryDirectory(prefix="millpond-", ignore_cleanup_errors=True) as scratch:
        answer, output = Path(scratch) / "review.json", Path(scratch) / "output"
        command = [sys.executable, "-m", "millpond.spark.review.run", str(answer), msgspec.json.encode(dict(conf)).decode()]
        reading, writing = os.pipe()
        try:
            with output.open("wb") as written:
                process = subprocess.Popen(  # noqa: S603 - the user's own program
                    [*command, str(path), *words],
                    env=_environment(scratch, reading),
                    pass_fds=[reading],
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    start_new_session=True,
                )
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                if not answer.exists():
                    raise _wrong(f"{path.name} didn't end within {_SECONDS:.0f} seconds") from None
            finally:
                _end(process)
        finally:
            os.close(reading)
            os.close(writing)
        if not answer.exists():
            raise _wrong(f"{path.name} ended its process: {_last_line(output)}")
        return msgspec.json.decode(answer.read_bytes(), type=ready(Review))


def _environment(scratch: str, watched: int) -> dict[str, str]:
    """The process's: temporary files of the program and of Spark go into a folder that is deleted.

    watched:  the end of a pipe that says when this process ends
    """
    from millpond.spark.supervised import WATCHED

    folder = Path(scratch) / "temporary"
    folder.mkdir()
    options = f'-Djava.io.tmpdir="{folder}" {os.environ.get("SPARK_SUBMIT_OPTS", "")}'.strip()
    where = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "SPARK_SUBMIT_OPTS": options}
    return {**os.environ, **where, WATCHED: str(watched)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and Spark's JVM with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _last_line(output: Path) -> str:
    lines = output.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing"


def _wrong(what: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"{what}.", hint="Give what it needs: its arguments after --, settings by --conf.")
