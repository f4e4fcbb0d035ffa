"""Draws a random query from a seed.  Spark's analyzer says which parts it refuses before anything runs."""

from __future__ import annotations

import random
import re
from typing import Any

from inputs.spark_manual import computable
from random_queries.build import after_frame, grouped_frame, plain_frame
from random_queries.case import ANSI, CHANGELOG, COMPILED, PROVIDER, ROCKSDB, ZONE, Case, quoted
from random_queries.conditions import of_aggregates, of_columns
from random_queries.data import LEAVES, NESTED, literal
from random_queries.functions import AGGREGATES, ARGUMENTS, KINDS, NAMES, ON_KEYS, ON_VALUES
from random_queries.minimise import without_unused

ZONES = ["UTC", "UTC", "America/New_York", "Asia/Kolkata", "Europe/Berlin", "Pacific/Apia"]
# Examples that depend on the time or the session, and those that are meant to fail.
_OF_NOW = re.compile(r"current_|\bnow\(|\brand|\buuid|raise_error|assert_true", re.IGNORECASE)
_PLACE = re.compile(r"\{(\w)\}")
Columns = dict[str, str]


class Drawn:
    """The draws of one case."""

    def __init__(self, spark: Any, seed: str, conditions: float) -> None:
        self.spark, self.conditions = spark, conditions
        self.rng = random.Random(seed)
        self._plain: Any = None

    def plain(self, case: Case) -> Any:
        """The case's input for the analyzer, cached."""
        if self._plain is None:
            self._plain = after_frame(plain_frame(self.spark, case), case.before)
        return self._plain

    def data(self) -> tuple[Columns, list[list[list[str]]]]:
        """Draw columns and batches: keys with few values, a time for windows, values of all types."""
        rng = self.rng
        types = rng.sample(LEAVES, 5) + rng.sample(NESTED, 2)
        names = [f"k{n}" for n in range(3)] + [f"v{n}" for n in range(4)]
        if rng.random() < 0.2:
            names[rng.randrange(7)] = rng.choice(NAMES)
        columns = dict(zip(names, rng.sample(types, 7), strict=True)) | {"x": "int", "y": rng.choice(["double", "bigint"])}
        columns |= {"s": "string", "t": "timestamp"}
        pools = {name: [literal(rng, type_) for _ in range(3)] for name, type_ in columns.items() if name in names[:3]}
        pools |= {name: [literal(rng, columns[name])] for name in [*names[3:], "y"] if rng.random() < 0.1}  # constant columns
        pools["t"] = [f"TIMESTAMP'2024-01-01 0{hour}:{minute}:00Z'" for hour in range(3) for minute in ("05", "40")]
        batches = [
            [
                [rng.choice(pools[name]) if name in pools else literal(rng, type_) for name, type_ in columns.items()]
                for _ in range(rng.choice([1, 3, 6, 8]))
            ]
            for _ in range(rng.choice([2, 3, 3]))
        ]
        return columns, batches

    def fill(self, template: str, columns: Columns, *, plain: bool = False) -> str | None:
        """A template with columns filled in; None if there is no column of a kind."""
        missing = False

        def place(found: re.Match[str]) -> str:
            nonlocal missing
            kinds = tuple(KINDS[found.group(1)].split())
            fitting = [c for c, t in columns.items() if not kinds or t.startswith(kinds)]
            if not fitting:
                missing = True
                return ""
            column = quoted(self.rng.choice(fitting))
            argument = "{x}" if plain else self.rng.choice(ARGUMENTS)
            if "{b}" in argument:
                argument = argument.replace("{b}", "x > 0" if "x" in columns else "true")
            return argument.replace("{x}", column)

        text = _PLACE.sub(place, template)
        return None if missing else text

    def name(self, taken: list[str], fallback: str) -> str:
        """A new alias, sometimes a hostile one; no other name equals it, even if case is ignored."""
        rng = self.rng
        name = rng.choice(NAMES) if rng.random() < 0.35 else fallback
        return fallback if name.lower() in [t.lower() for t in taken] else name


def draw_case(spark: Any, seed: str, conditions: float = 0.1) -> Case:
    """The case of a seed; the same seed gives the same case.

    spark:       a session of its own, whose settings are changed
    conditions:  the share of expressions that are nested conditions
    """
    drawn = Drawn(spark, seed, conditions)
    rng = drawn.rng
    columns, batches = drawn.data()
    conf = {ANSI: rng.choice(["true", "false"]), ZONE: rng.choice(ZONES)}
    if rng.random() < 0.15:
        conf["spark.sql.legacy.statisticalAggregate"] = "true"
    if rng.random() < 0.4:
        conf |= {PROVIDER: ROCKSDB, CHANGELOG: rng.choice(["true", "false"])}
    if rng.random() < 0.1:
        conf |= COMPILED
    for name, value in conf.items():
        spark.conf.set(name, value)
    mode = rng.choice(["update", "update", "complete", "append"])
    watermark = ["t", rng.choice(["0 seconds", "30 minutes", "1 day"])] if mode == "append" or rng.random() < 0.15 else []
    case = Case(
        columns=columns, batches=batches, keys=[], aggregates=[], conf=conf, mode=mode, watermark=watermark,
        door=rng.choice(["start", "start", "publish", "define"]), partitions=rng.choice([1, 2, 2, 3]),
    )  # fmt: skip
    if case.door == "define" and rng.random() < 0.5:
        # The manual asks for the job's other settings, since ANSI mode changes an expression's meaning.
        case = change(case, definer={ZONE: rng.choice(ZONES)})
    if case.door == "define":
        case = change(case, says_zone=rng.random() < 0.7)
    if rng.random() < 0.06:
        wanted = rng.sample([c for c, t in columns.items() if not t.startswith("map")], 2)
        case = change(case, before=[["dropDuplicates", wanted]])
        if rng.random() < 0.4:  # only these columns: the table has nothing but keys
            mode = rng.choice(["append", "update"])
            return without_unused(change(case, before=[*case.before, ["select", [quoted(w) for w in wanted]]], mode=mode))
    if rng.random() < 0.06:
        known = "('a', 1), ('b', 2), ('a', 3), (NULL, 4)"
        step = ["join", f"SELECT * FROM VALUES {known} AS known(s, joined)", ["s"], rng.choice(["inner", "left", "left_semi"])]
        case = change(case, before=[*case.before, step])
    case = _with_keys(drawn, case)
    case = _with_aggregates(drawn, case)
    case = _with_steps(drawn, _chained(drawn, case))
    return _with_restart(drawn, without_unused(case))


def change(case: Case, **members: Any) -> Case:
    """The case with some members replaced."""
    from dataclasses import replace

    return replace(case, **members)


def _accepts(make: Any) -> Any:
    """The result of the call; None if Spark refuses it, or fails at it with an error of its own."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        frame = make()
        frame.schema  # noqa: B018 asks for it
    except (PySparkException, Py4JJavaError):
        return None
    return frame


def _with_keys(drawn: Drawn, case: Case) -> Case:
    rng, keys, names = drawn.rng, [], []
    append = case.mode == "append"
    if append or rng.random() < 0.3:
        length = rng.choice(["'1 hour'", "'1 hour'", "'1 hour', '30 minutes'", "'40 minutes', '40 minutes', '5 minutes'"])
        text = "session_window(t, '20 minutes')" if rng.random() < 0.25 else f"window(t, {length})"
        if rng.random() < 0.4:
            names.append(drawn.name(names, "w"))
            text += f" AS {quoted(names[-1])}"
        else:
            names.append(text.split("(")[0])
        keys.append(text)
    for number in range(rng.choice([0, 1, 1, 1, 2, 2, 3] if keys else [0, 1, 1, 1, 1, 2, 2, 3])):
        for _ in range(9):
            if rng.random() < 0.5:
                column = rng.choice(list(case.columns))
                text, name = quoted(column), column
                if rng.random() < 0.3:
                    name = drawn.name(names, f"key{number}")
                    text += f" AS {quoted(name)}"
            else:
                filled = drawn.fill(rng.choice(ON_KEYS).split("|", 1)[1], case.columns, plain=True)
                if filled is None:
                    continue
                name = drawn.name(names, f"key{number}")
                text = f"{filled} AS {quoted(name)}"
            if name.lower() in [n.lower() for n in names]:
                continue
            # Spark's state takes no keys of which different bytes are equal.
            collated = "ollate" in text or any("collate" in t and quoted(n) in text for n, t in case.columns.items())
            if collated and rng.random() < 0.95:
                continue
            tried = change(case, keys=[*keys, text], aggregates=["count(*) AS c"])
            if _accepts(lambda tried=tried: grouped_frame(drawn.plain(tried), tried)) is not None:
                keys.append(text)
                names.append(name)
                break
    if len(keys) == 1 and keys[0].startswith("session_window"):  # Spark requires another key
        keys.append("s AS beside")
    rng.shuffle(keys)
    return change(case, keys=keys)


def _with_aggregates(drawn: Drawn, case: Case) -> Case:
    rng = drawn.rng
    frame = grouped_frame(drawn.plain(case), change(case, aggregates=["count(*) AS count_me"]))
    names = [n for n in frame.columns if n != "count_me"]
    aggregates: list[str] = []
    wanted = rng.choice([1, 2, 3, 4, 5])
    for _ in range(40):
        if len(aggregates) >= wanted:
            break
        template = rng.choice(AGGREGATES)
        if rng.random() < drawn.conditions:
            template = rng.choice(["{c}", "IF({c}, 'yes', 'no')", "IF({c}, sum({n}), NULL)"]).replace("{c}", of_aggregates(rng))
        text = drawn.fill(template, case.columns, plain=rng.random() < 0.75)
        # A buffer doesn't copy a collated text: first(k) may emit the bytes of a later row.
        if text is None or any("collate" in t and quoted(n) in text for n, t in case.columns.items()):
            continue
        if rng.random() < 0.1:
            text += (
                drawn.fill(rng.choice([" FILTER (WHERE {b})", " FILTER (WHERE x > 0)", " FILTER (WHERE s = 'a')"]), case.columns)
                or ""
            )
        name = drawn.name(names, f"a{len(aggregates)}")
        if rng.random() < 0.1:
            text = f"{text} + {drawn.fill('sum({n})', case.columns, plain=True)}"
        alias = f"{text} AS {quoted(name)}" if rng.random() < 0.85 else text
        tried = change(case, aggregates=[*aggregates, alias])
        frame = _accepts(lambda tried=tried: grouped_frame(drawn.plain(tried), tried))
        if frame is not None and len({c.lower() for c in frame.columns}) == len(frame.columns):
            aggregates.append(alias)
            names.append(name)
    if not aggregates:
        aggregates = ["count(*) AS only"]
    return change(case, aggregates=aggregates)


def _chained(drawn: Drawn, case: Case) -> Case:
    """Sometimes add a second aggregation over the windows of the first."""
    windows = [re.sub(r".* AS ", "", k) if " AS " in k else quoted("window") for k in case.keys if k.startswith("window(t")]
    if case.mode != "append" or not windows or drawn.rng.random() > 0.2:
        return case
    frame = grouped_frame(drawn.plain(case), case)
    texts = [
        drawn.fill(t, dict(frame.dtypes)) for t in drawn.rng.sample(["count(*)", "sum({n})", "max({o})", "min({o})", "avg({n})"], 2)
    ]
    aggregates = [f"{text} AS c{n}" for n, text in enumerate(texts) if text is not None] or ["count(*) AS c0"]
    step = ["groupBy", [f"window({windows[0]}, '2 hours') AS both"], aggregates]
    return case if _accepts(lambda: after_frame(frame, [step])) is None else change(case, after=[step])


def _with_steps(drawn: Drawn, case: Case) -> Case:
    rng = drawn.rng
    steps = list(case.after)
    volatile: list[str] = []
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        for _ in range(6):
            frame = after_frame(grouped_frame(drawn.plain(case), case), steps)
            step, now = _step(drawn, case, dict(frame.dtypes))
            if step is None:
                continue
            frame = _accepts(lambda step=step: after_frame(frame, [step]))  # noqa: B023 asked at once
            if frame is not None and len({c.lower() for c in frame.columns}) == len(frame.columns) > 0:
                steps.append(step)
                volatile = [*volatile, *now]
                break
    if case.mode == "complete" and rng.random() < 0.15:
        frame = after_frame(grouped_frame(drawn.plain(case), case), steps)
        sortable = [n for n, t in frame.dtypes if not t.startswith(("map", "interval", "struct<", "array<map"))]
        if sortable:
            ordered = [["orderBy", quoted(rng.choice(sortable)) + rng.choice(["", " DESC"])]]
            if rng.random() < 0.3:
                ordered.append(["limit", rng.choice([1, 2, 100])])
            if _accepts(lambda: after_frame(frame, ordered)) is not None:
                steps += ordered
    return change(case, after=steps, volatile=volatile)


def _step(drawn: Drawn, case: Case, columns: Columns) -> tuple[list[Any] | None, list[str]]:
    rng, names = drawn.rng, list(columns)
    kind = rng.choice(["withColumn", "withColumn", "select", "where", "drop", "rename", "overwrite", "now"])
    if kind in ("withColumn", "overwrite"):
        expression = _expression(drawn, columns)
        if expression is None:
            return None, []
        name = rng.choice(names) if kind == "overwrite" else drawn.name(names, f"e{len(names)}")
        return ["withColumn", name, expression], []
    if kind == "now":
        name = drawn.name(names, "updated")
        return ["withColumn", name, rng.choice(["current_timestamp()", "current_date()"])], [name]
    if kind == "select":
        chosen = rng.sample(names, rng.randint(max(1, len(names) - 2), len(names)))
        texts = [quoted(name) for name in chosen]
        for number in range(rng.choice([0, 1, 2])):
            expression = _expression(drawn, columns)
            if expression is not None:
                texts.append(f"{expression} AS {quoted(drawn.name(chosen, f'p{number}'))}")
        return ["select", texts], []
    if kind == "where":
        simple = ["{n} > 0", "{n} IS NOT NULL", "{s} = 'a'", "{a} IS NOT NULL", "{n} >= 1 OR {a} IS NULL", "{o} < {o}"]
        condition = drawn.fill(of_columns(rng) if rng.random() < 0.2 else rng.choice(simple), columns)
        return (None if condition is None else ["where", condition]), []
    name = rng.choice(names)
    if kind == "drop":
        return (["drop", name] if len(names) > 1 else None), []
    return ["withColumnRenamed", name, drawn.name(names, "renamed")], []


def _expression(drawn: Drawn, columns: Columns) -> str | None:
    rng = drawn.rng
    if rng.random() < drawn.conditions:
        return drawn.fill(of_columns(rng), columns)
    if rng.random() < 0.4:
        return _example(drawn, columns)
    texts = [t.split("|", 1) for t in ON_VALUES]
    fitting = [text for kind, text in texts if any(t.startswith(tuple(KINDS[kind].split()) or "") for t in columns.values())]
    text = rng.choice(fitting)
    if "count_me" in text:
        whole = [c for c, t in columns.items() if t == "bigint"]
        if not whole:
            return None
        text = text.replace("count_me", quoted(rng.choice(whole)))
    return drawn.fill(text, columns)


def _example(drawn: Drawn, columns: Columns) -> str | None:
    """An example of Spark's manual with a column instead of one literal; None if no column has the literal's type."""
    rng = drawn.rng
    function = rng.choice(computable(drawn.spark))
    variant = rng.choice(function.variants)
    word = variant.type.lower().partition("(")[0].split()[0]
    fitting = [c for c, t in columns.items() if t.startswith(tuple(KINDS["w"].split()) if word == "int" else word)]
    if not fitting or _OF_NOW.search(variant.over("")):
        return None
    column = quoted(rng.choice(fitting))
    # Keep it small: such a number is often the length of a text or an array.
    return variant.over(f"CAST(pmod({column}, 12) AS int)" if word == "int" else column)


def _with_restart(drawn: Drawn, case: Case) -> Case:
    """Sometimes add a second run over the same checkpoint, with a renamed column or another HAVING."""
    rng = drawn.rng
    if rng.random() > 0.12 or len(case.batches) < 2 or case.mode == "append" or case.definer:
        return case
    frame = after_frame(grouped_frame(drawn.plain(case), case), case.after)
    name = rng.choice(frame.columns)
    step = rng.choice([["withColumnRenamed", name, "another_name"], ["where", f"{quoted(name)} IS NOT NULL"], ["drop", name], []])
    if step[:1] == ["drop"] and len(frame.columns) == 1:
        return case
    return change(case, restart={"after": [*case.after, *([step] if step else [])]})
