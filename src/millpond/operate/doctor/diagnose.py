"""Diagnose the jobs of a place: which rules are met, and what couldn't be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from millpond.catalogue import find_job, read_catalogue
from millpond.errors import MillpondError, RequestError
from millpond.operate.config import OperateConfig, read_config
from millpond.operate.doctor.advice import Diagnosis
from millpond.operate.doctor.code import diagnose_program
from millpond.operate.doctor.state_advice import diagnose_state
from millpond.storage.places import Places


def diagnose(
    place: str | Path,
    job: str | None = None,
    *,
    config: str | Path | None = None,
    conf: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    allow: Iterable[str | Path] = (),
) -> Diagnosis:
    """What in the state or code of jobs costs more than it should, each with evidence and a change.

    Of state this reads files alone; the jobs may run meanwhile.  A program is run in a process of
    its own, where Spark plans its queries and starts none.

    place:   a pond, the checkpoint of any streaming query, or a program: a file that ends with .py
    job:     only this one
    config:  a TOML file with thresholds and silences, see docs/doctor.md
    conf:    of a program: Spark settings of its deploy
    arguments: of a program
    allow:   places outside of the pond where checkpoints may lie, as for `open`
    Raises:  NO_CHECKPOINT; NO_COMMITTED_BATCH of the only job; FILE_MISSING, INVALID_CONFIG;
             INVALID_REQUEST if an argument is for the other kind of place, and if a program fails
             before its first query, or never ends; PYSPARK_MISSING, JAVA_MISSING;
             what reading a checkpoint's log raises.
    """
    rules = (read_config(Path(config)) if config is not None else OperateConfig()).doctor
    is_program = str(place).endswith(".py")
    if is_program and (job is not None or tuple(allow)):
        raise _unfit(f"{place} is a program, and has no jobs to choose from or places of checkpoints", "Leave job and allow out.")
    if not is_program and (conf or arguments):
        raise _unfit(f"{place} is no program, which settings and arguments are for", "Leave conf and arguments out.")
    if is_program:
        return diagnose_program(Path(place), rules, conf or {}, arguments)
    broken: dict[str, MillpondError] = {}
    if job is None:
        catalogue = read_catalogue(place, Places.of(allow))
        folders, broken = catalogue.jobs, catalogue.broken
        if not folders and len(broken) == 1:
            raise next(iter(broken.values()))
    else:
        folders = [find_job(place, job, allow=allow)]
    found = Diagnosis()
    for folder in folders:
        try:
            found += diagnose_state(folder, rules)
        except MillpondError as error:
            if len(folders) + len(broken) == 1:
                raise
            # A job that hasn't committed anything has no state yet.
            is_missed = error.condition != "NO_COMMITTED_BATCH"
            found += Diagnosis(unseen=(_of(folder.job, error),), is_missed=is_missed)
    for name, why in broken.items():
        found += Diagnosis(unseen=(_of(name, why),), is_missed=True)
    return found


def _of(job: str, error: MillpondError) -> str:
    return f"{job}: [{error.condition}] {error.message}"


def _unfit(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"{found}.", hint=hint)
