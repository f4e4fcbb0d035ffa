"""Queries of users' files, for commands that let Spark plan them on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.errors import RequestError, importing_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Queries:
    """The new query, and the one that wrote the state.

    new:          the new query
    output_mode:  its own
    old:          None if no file was named
    settings:     what the options and the file set in the session
    rules:        what the file says of state variables, for `evolve`
    """

    new: DataFrame
    output_mode: str
    old: DataFrame | None
    settings: dict[str, str]
    rules: dict[str, Any]


def query_options(command: Command) -> Command:
    """The options of a query in a file."""
    for option in (
        click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A Spark setting of the deploy; may be repeated."),
        click.option(
            "--output-mode",
            type=click.Choice(["update", "complete", "append"]),
            help="Of the new query. [default: the file's, else update]",
        ),
        click.option(
            "--old",
            metavar="FILE[:FUNCTION]",
            help="The code that wrote the state; without it the definitions of its tables count.",
        ),
    ):
        command = option(command)
    return command


def load_queries(command: str, file: str, old: str | None, output_mode: str | None, conf: tuple[str, ...]) -> Queries:
    """Load them in a new session.  Raises what `load_pipeline` raises; INVALID_REQUEST; PYSPARK_MISSING."""
    with importing_pyspark():
        from millpond.spark.session import session
        from millpond.spark.upgrade.pipeline import load_pipeline
    settings = settings_of(conf)
    # Spark's workers import what the files import from beside them.
    folders = [str(Path(spec).resolve().parent) for spec in (file, old) if spec is not None]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    spark = session(f"millpond {command}", **{"spark.master": "local[1]", "spark.ui.enabled": "false", **settings})
    spark.sparkContext.setLogLevel("OFF")
    before = dict(spark.conf.getAll)
    new = load_pipeline(file, spark)
    return Queries(
        new=new.df,
        output_mode=output_mode or new.output_mode or "update",
        old=None if old is None else load_pipeline(old, spark).df,
        settings={name: value for name, value in spark.conf.getAll.items() if name in settings or before.get(name) != value},
        rules=new.rules,
    )


def settings_of(conf: tuple[str, ...]) -> dict[str, str]:
    """The settings that `--conf` names.  Raises INVALID_REQUEST."""
    return dict(map(_setting, conf))


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise RequestError("INVALID_REQUEST", f"--conf {text!r:.200} isn't KEY=VALUE.", hint="Write --conf spark.driver.memory=4g.")
    return key, value
