"""Each rule of a job's state is met where it should be, with what was measured, and in no checkpoint beside it."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import millpond
from millpond.catalogue import create_job, find_job
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.operate.doctor.advice import Unseen
from millpond.operate.doctor.growth import Growth, growth_in_samples
from millpond.operate.doctor.rules.of_bounds import unbounded
from millpond.operate.doctor.rules.rules import BY_ID, RULES
from millpond.operate.doctor.state import read_state
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import SampleLog
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import GOLDEN

HOUR = 3_600_000
TEXT, LONG, BINARY, TIME = (Field("v", atomic(kind)) for kind in ("string", "long", "binary", "timestamp"))
Make = Callable[[Path], WrittenCheckpoint]


def written(
    path: Path,
    batches: list[list[tuple[Any, Any]]],
    *,
    step_ms: int = 60_000,
    key: tuple[Field, ...] = (Field("k", atomic("string")),),
    value: Field = LONG,
    watermark_ms: int = 0,
    **more: Any,
) -> WrittenCheckpoint:
    """A checkpoint with these changes, batch by batch, so many milliseconds apart."""
    made = WrittenCheckpoint(path, key=key, value=(value,), **more)
    made.watermark_ms = watermark_ms
    for changes in batches:
        made.plan(changes, snapshot=False)
        made.commit(made.clock / 1000)
        made.clock += step_ms
    return made


def new_keys(batches: int, rows: int) -> list[list[tuple[str, int]]]:
    return [[(f"{batch}-{row}", row) for row in range(rows)] for batch in range(batches)]


def come_and_go(batches: int, rows: int) -> list[list[tuple[str, Any]]]:
    every = new_keys(batches, rows)
    return [[*new, *((key, None) for key, _ in old)] for old, new in zip([[], *every], every, strict=False)]


def rules(path: Path, config: str = "", **more: Any) -> list[str]:
    file = path.parent / "doctor.toml"
    file.write_text(config)
    return [advice.rule for advice in millpond.diagnose(path, config=file, **more).found]


def kept_list(sizes: list[int], value: Field = TEXT) -> list[list[tuple[str, Any]]]:
    """One key whose value has these bytes, batch after batch, among others that stay as they are."""
    others: list[tuple[str, Any]] = [(f"other-{n}", "x") for n in range(20)]
    return [[*others, ("hot", "x" * size)] for size in sizes]


def with_key_bytes(share: float) -> list[list[tuple[str, Any]]]:
    hot = 4 << 20
    each = int(hot * (1 - share) / share / 400)
    return [[("the hot one", "x" * hot), *((f"{n}", "x" * each) for n in range(400))]]


ONE_KEY = (Field("k", atomic("timestamp")), Field("n", atomic("long")))


def windows(end_ms: int, count: int = 300) -> list[list[tuple[Any, Any]]]:
    return [[((end_ms * 1000 - n, n), n) for n in range(count)]]


# rule -> (a checkpoint that meets it, the thresholds)
MET: dict[str, tuple[Make, str]] = {
    "state-unbounded": (lambda path: written(path, new_keys(8, 300)), ""),
    "watermark-unused": (lambda path: written(path, new_keys(2, 10), watermark_ms=1_000), ""),
    "hot-key": (lambda path: written(path, with_key_bytes(0.3), value=TEXT, partitions=16), ""),
    "growing-list": (lambda path: written(path, kept_list([100_000 * n for n in range(1, 9)]), value=TEXT, partitions=1), ""),
    "text-value": (
        lambda path: written(path, [[(f"k{n}", str(n)) for n in range(1000, 3000)]], value=TEXT),
        "[doctor.thresholds]\ntext-value = 10000",
    ),
    "memory-provider": (lambda path: written(path, new_keys(2, 1000)), "[doctor.thresholds]\nmemory-provider = 40000"),
    "many-partitions": (lambda path: written(path, [[("a", n)] for n in range(6)], step_ms=HOUR, partitions=16), ""),
    "few-partitions": (lambda path: written(path, new_keys(2, 1000)), "[doctor.thresholds]\nfew-partitions = 5000"),
}


def _met_elsewhere() -> set[str]:
    """Of a provider, or of times, that these files don't have: tests below."""
    return {"rocksdb-small", "snapshots-only", "retention-short"}


@pytest.mark.parametrize("rule", MET)
def test_a_rule_is_met(tmp_path: Path, rule: str) -> None:
    make, config = MET[rule]
    make(tmp_path / "views")
    file = tmp_path / "doctor.toml"
    file.write_text(config)
    found = millpond.diagnose(tmp_path / "views", config=file)
    assert {advice.rule for advice in found.found} == {rule}
    advice = found.found[0]
    assert advice.job == "views"
    assert advice.title == BY_ID[rule].title
    assert advice.cost_bytes or advice.cost_ms is not None
    assert advice.evidence
    assert advice.change


NOT_MET: dict[str, tuple[Make, str]] = {
    "few new keys": (lambda path: written(path, new_keys(8, 30)), ""),
    "keys that come and go": (lambda path: written(path, come_and_go(8, 300)), ""),
    "a state that is full": (lambda path: written(path, [*new_keys(3, 500), *[[("0-0", n)] for n in range(8)]]), ""),
    "two batches": (lambda path: written(path, new_keys(2, 1000)), ""),
    "a watermark in the key": (
        lambda path: written(path, windows(5_000_000), key=ONE_KEY, watermarked=True, watermark_ms=1_000),
        "",
    ),
    "a key with its even share": (lambda path: written(path, with_key_bytes(0.05), value=TEXT, partitions=16), ""),
    "a value that is full": (lambda path: written(path, kept_list([100_000] + [500_000] * 7), value=TEXT, partitions=1), ""),
    "a value that shrinks": (
        lambda path: written(path, kept_list([n * 100_000 for n in (7, 6, 5, 4, 3)]), value=TEXT, partitions=1),
        "",
    ),
    "a value that goes up and down": (
        lambda path: written(path, kept_list([n * 100_000 for n in (1, 1, 3, 3, 2, 2, 4, 5)]), value=TEXT, partitions=1),
        "",
    ),
    "a list that its window ends": (
        lambda path: written(
            path,
            [[((10**12, 1), "x" * 100_000 * n)] for n in range(1, 9)],
            key=ONE_KEY, value=TEXT, watermarked=True, watermark_ms=1, partitions=1,
        ),
        "",
    ),
    "a text that is no number": (
        lambda path: written(path, [[(f"k{n}", str(n) if n != 1500 else "0x1") for n in range(1000, 3000)]], value=TEXT),
        "[doctor.thresholds]\ntext-value = 10000",
    ),
    "numbers with leading zeros": (
        lambda path: written(path, [[(f"k{n}", f"{n:06}") for n in range(1000, 3000)]], value=TEXT),
        "[doctor.thresholds]\ntext-value = 10000",
    ),
    "few texts": (
        lambda path: written(path, [[(f"k{n}", str(n)) for n in range(1000, 1099)]], value=TEXT),
        "[doctor.thresholds]\ntext-value = 0",
    ),
    "many partitions of a state that grows": (lambda path: written(path, new_keys(6, 50), step_ms=HOUR, partitions=16), ""),
    "few partitions": (lambda path: written(path, [[("a", n)] for n in range(6)], step_ms=HOUR, partitions=2), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_MET)
def test_no_rule_is_met(tmp_path: Path, name: str) -> None:
    make, config = NOT_MET[name]
    make(tmp_path / "views")
    assert rules(tmp_path / "views", config) == []


def test_every_rule_is_tried_and_in_the_manual() -> None:
    of_state = {rule.id for rule in RULES if rule.of_state is not None}
    assert MET.keys() | _met_elsewhere() == of_state
    page = (Path(__file__).parents[3] / "docs/doctor.md").read_text()
    assert set(re.findall(r"^### (\S+)$", page, re.MULTILINE)) == BY_ID.keys()


def golden() -> list[Path]:
    return sorted(path.parent for path in GOLDEN.rglob("checkpoint/commits"))


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_golden_checkpoints_meet_what_their_names_say_and_nothing_else(every: int) -> None:
    """All operators, providers and versions of Spark: short jobs without a fault but, some, without a change log."""
    found = {path: rules_of(path) for path in golden()[::every]}
    assert len(found) > 100 // every
    for path, met in found.items():
        without = path.parent.name.endswith("rocksdb-snapshots")
        assert met == (["snapshots-only"] if without else []), path


def rules_of(path: Path) -> list[str]:
    try:
        found = millpond.diagnose(path)
    except MillpondError as error:
        assert error.condition in ("NO_COMMITTED_BATCH", "UNSUPPORTED"), path
        return []
    return [advice.rule for advice in found.advice]


def with_hours(source: Path, target: Path) -> Path:
    """A copy whose batches began an hour apart."""
    shutil.copytree(source, target)
    for file in (target / "offsets").iterdir():
        if file.name.isdigit():
            version, planned, *rest = file.read_text().split("\n")
            plan = json.loads(planned) | {"batchTimestampMs": 1_700_000_000_000 + int(file.name) * HOUR}
            file.write_text("\n".join([version, json.dumps(plan), *rest]))
            (target / "offsets" / f".{file.name}.crc").unlink(missing_ok=True)
    return target


def test_a_small_state_in_rocksdb(tmp_path: Path) -> None:
    still = with_hours(GOLDEN / "spark-4.3/apply-rocksdb-changelog/checkpoint", tmp_path / "still")
    assert rules(still) == ["rocksdb-small"]
    assert rules(still, "[doctor.thresholds]\nrocksdb-small = 100") == []
    grows = with_hours(GOLDEN / "counts-rocksdb-changelog/checkpoint", tmp_path / "grows")
    needs = with_hours(GOLDEN / "spark-4.3/transform-state-rocksdb-changelog/checkpoint", tmp_path / "needs")
    assert rules(grows) == rules(needs) == []


def test_a_log_that_is_shorter_than_a_read(tmp_path: Path) -> None:
    short = written(tmp_path / "short", [*new_keys(1, 5000), *[[("0-0", n)] for n in range(9)]], step_ms=0)
    assert rules(short.path) == []  # nothing has been cleaned up yet
    short.plan([("0-1", 1)], snapshot=True)
    short.commit()
    short.plan([("0-1", 2)], snapshot=False)
    short.commit()
    short.clean(2)
    assert rules(short.path) == ["retention-short"]
    (advice,) = millpond.diagnose(short.path).found
    assert advice.cost_ms is not None
    assert advice.cost_ms > 0
    long = written(tmp_path / "long", [*new_keys(1, 5000), *[[("0-0", n)] for n in range(3)]], step_ms=HOUR)
    long.plan([("0-1", 1)], snapshot=True)
    long.commit()
    long.clock += HOUR
    long.plan([("0-1", 2)], snapshot=False)
    long.commit()
    long.clean(2)
    assert rules(long.path) == []


def test_rows_that_a_watermark_should_have_removed(tmp_path: Path) -> None:
    """As in the output mode complete; rows above the watermark are no fault, and few may be of a last batch."""
    watermark_ms = 1_000_000_000

    def aggregation(name: str, end_ms: int, count: int) -> list[str]:
        made = written(
            tmp_path / name, windows(end_ms, count), key=ONE_KEY, watermarked=True, watermark_ms=watermark_ms
        )  # fmt: skip
        return rules(made.path)

    assert aggregation("ended", watermark_ms, 300) == ["watermark-unused"]
    assert aggregation("not yet", watermark_ms + 1, 300) == []
    assert aggregation("few", watermark_ms, 50) == []


def test_growth_by_samples(tmp_path: Path) -> None:
    """A job's samples of hours say more of growth than the minutes of a log."""
    folder = create_job(tmp_path / "pond", "views")
    made = written(Path(folder.checkpoint.removeprefix("file://")), new_keys(5, 10))
    log, begin = SampleLog(folder), made.clock - 12 * HOUR
    for hour in range(12):
        size = OperatorSize(
            operator=0, name="stateStoreSave", partitions=2, state_bytes=1_000_000 * (hour + 1), changed_bytes=0,
            largest_partition=0, largest_bytes=1, median_bytes=1,
        )  # fmt: skip
        log.add(Sample(at_ms=begin + hour * HOUR, job_state="running", batch=hour, operators=(size,), sized_ms=begin))
    (advice,) = millpond.diagnose(tmp_path / "pond").found
    assert advice.rule == "state-unbounded"
    assert advice.cost_bytes == 24_000_000
    assert "samples" in advice.evidence


def samples_of_size(seed: int, hours: int, per_day: int) -> list[Sample]:
    """A state whose change files come and go with each snapshot, a sample a minute, which grows by so many bytes a day."""
    draw = random.Random(seed)
    batch, batches, file = draw.randrange(1000), draw.choice([1, 2, 5, 10, 50]), draw.randrange(1 << 24)
    found = []
    for minute in range(hours * 60):
        batch += draw.choice([5, 6, 7])
        size = (64 << 20) + batch % batches * file + draw.randrange(1 << 16) + per_day * minute // 1440
        operator = OperatorSize(
            operator=0, name="stateStoreSave", partitions=2, state_bytes=size, changed_bytes=file,
            largest_partition=0, largest_bytes=1, median_bytes=1,
        )  # fmt: skip
        at_ms = minute * 60_000
        found.append(Sample(at_ms=at_ms, job_state="running", batch=batch, operators=(operator,), sized_ms=at_ms))
    return found


def test_a_state_of_a_constant_size_grows_by_no_samples() -> None:
    """Whatever its files do between two snapshots; and what grows is measured."""
    for seed in range(60):
        still = growth_in_samples(samples_of_size(seed, 6 + seed % 20, 0), 0)
        assert still is None or still.least == 0, seed
    large = [growth_in_samples(samples_of_size(seed, 24, 5 << 30), 0) for seed in range(20)]
    for growth in large:
        assert growth is not None
        assert 0 < growth.least <= growth.a_day
        assert abs(growth.a_day - (5 << 30)) < 0.05 * (5 << 30)


def test_a_state_without_new_rows_isnt_unbounded(tmp_path: Path) -> None:
    """Its files may grow, as those of a store do that is compacted now and then."""
    folder = create_job(tmp_path / "pond", "views")
    written(Path(folder.checkpoint.removeprefix("file://")), [[(f"{n}", n) for n in range(50)]] * 5)
    log, now = SampleLog(folder), int(time.time() * 1000)
    for sample in samples_of_size(1, 12, 5 << 30)[::10]:
        log.add(msgspec.structs.replace(sample, at_ms=sample.at_ms + now - 12 * HOUR))
    assert millpond.diagnose(tmp_path / "pond").found == ()


def test_the_growth_of_a_join_is_that_of_all_its_stores(tmp_path: Path) -> None:
    """Each store has a part, with rows of its own."""
    shutil.copytree(GOLDEN / "spark-4.3/join-inner-hdfs/checkpoint", tmp_path / "join")
    facts = read_state(find_job(tmp_path / "join", None), Unseen())
    assert len(facts.stores) == 2
    draw = random.Random(3)
    for _ in range(20):
        expected, stores = 0.0, []
        for each in facts.stores:
            grows, size, read = draw.random() < 0.7, draw.randrange(1 << 20, 1 << 30), draw.choice([1, 2])
            growth = Growth(
                first=1, batches=9, seconds=8640.0, partitions=read, added=2000 if grows else 3, added_late=1000 if grows else 0,
                removed=0, added_bytes=size, heaviest=None,
            )  # fmt: skip
            assert each.rows is not None
            expected += size * each.rows.partitions / read * 10 if grows else 0
            stores.append(replace(each, growth=growth))
        operator = stores[0].store.operator
        found = list(unbounded(replace(facts, stores=tuple(stores), delays={operator: set()}), 0.0))
        assert [advice.cost_bytes for advice in found] == ([pytest.approx(expected, abs=1)] if expected else [])


def test_the_heaviest_key_is_named_and_exact(tmp_path: Path) -> None:
    """Against a recomputation, over random rows: with one column, and with several of which texts are some."""
    draw = random.Random(5)
    key = (Field("a", atomic("string")), Field("b", atomic("long")))
    rows = {(f"k{draw.randrange(10**6)}", draw.randrange(50)): "x" * draw.randrange(2000) for _ in range(500)}
    rows["the hot one", 7] = "x" * (2 << 20)
    made = written(tmp_path / "views", [list(rows.items())], key=key, value=TEXT, partitions=16)
    (advice,) = millpond.diagnose(made.path).found
    assert '{"a":"the hot one","b":7}' in advice.evidence
    sizes = {k: 24 + -(-len(k[0]) // 8) * 8 + 16 + -(-len(v) // 8) * 8 for k, v in rows.items()}
    total, hot = sum(sizes.values()), sizes["the hot one", 7]
    assert f"{hot / total:.0%} of the bytes" in advice.evidence
    assert advice.cost_bytes == int(hot - total / 16)


def test_saved_bytes_are_those_of_the_rows(tmp_path: Path) -> None:
    """Dates and times too; a number keeps its slot, and loses what the slot points to."""
    forms = {
        "bigint": [str(n * 7919) for n in range(3000)],
        "date": [(dt.date(2020, 1, 1) + dt.timedelta(days=n)).isoformat() for n in range(3000)],
        "timestamp": [(dt.datetime(2020, 1, 1) + dt.timedelta(minutes=n)).isoformat(" ") for n in range(3000)],
    }
    for form, texts in forms.items():
        made = written(tmp_path / form, [[(f"k{n}", text) for n, text in enumerate(texts)]], value=TEXT)
        file = tmp_path / "doctor.toml"
        file.write_text("[doctor.thresholds]\ntext-value = 0")
        (advice,) = millpond.diagnose(made.path, config=file).found
        exact = sum(-(-len(text) // 8) * 8 for text in texts)
        assert advice.cost_bytes is not None
        # Some of 1,500 rows of each partition are tried, and all rows counted.
        assert abs(advice.cost_bytes - exact) <= exact * 0.02
        assert f"Cast it to {form} " in advice.change


def test_silences(tmp_path: Path) -> None:
    made = written(tmp_path / "views", new_keys(8, 300))
    silence = '[[doctor.silences]]\nrule = "state-unbounded"\nreason = "a week\'s test"\n'
    file = tmp_path / "doctor.toml"
    file.write_text(silence)
    found = millpond.diagnose(made.path, config=file)
    assert found.found == ()
    assert found.exit_code == 0
    assert [advice.ignored for advice in found.advice] == ["a week's test"]
    assert rules(made.path, silence + "until = 2020-01-01T00:00:00Z\n") == ["state-unbounded"]
    assert rules(made.path, silence + 'job = "other"\n') == ["state-unbounded"]
    assert rules(made.path, "[doctor.jobs.views.thresholds]\nstate-unbounded = 1e12") == []
    assert rules(made.path, "[doctor.jobs.other.thresholds]\nstate-unbounded = 1e12") == ["state-unbounded"]


@pytest.mark.parametrize(
    "text",
    [
        "doctor = 3", "[doctor.thresholds]\nstate-large = 3", "[thresholds]\ntext-value = 3",
        "[doctor.thresholds]\nsnapshots-only = 1",
        "[[doctor.silences]]\nrule = 'hot-key'", "[[doctor.silences]]\nreason = 'r'\nrule = 'state-large'", "[doctor]\nmore = 1",
    ],
)  # fmt: skip
def test_a_wrong_file(tmp_path: Path, text: str) -> None:
    made = written(tmp_path / "views", new_keys(1, 3))
    with pytest.raises(MillpondError) as raised:
        rules(made.path, text)
    assert raised.value.condition == "INVALID_CONFIG"


def test_what_cant_be_read_is_named_and_the_rest_is_judged(tmp_path: Path) -> None:
    made = written(tmp_path / "views", new_keys(8, 300))
    (tmp_path / "views/state/0/1/8.delta").write_bytes(b"noise")
    found = millpond.diagnose(made.path)
    assert any("CORRUPT_FILE" in sentence or "INCOMPLETE_FILE" in sentence for sentence in found.unseen)
    (tmp_path / "views/state/0/_metadata/metadata").write_bytes(b"v1\n{}")
    found = millpond.diagnose(made.path)
    assert any("operator 0" in sentence for sentence in found.unseen)
    assert found.found == ()
    assert found.exit_code == 2
    assert run(made.path, "--job", "views")[0] == 2


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["doctor", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_the_command(tmp_path: Path) -> None:
    """Exit codes 0, 1 and 2; text, JSON, and what is ignored on stderr."""
    made = written(tmp_path / "views", new_keys(8, 300))
    code, out, err = run(made.path)
    assert (code, err) == (1, "")
    lines = [line[:12] for line in out.splitlines()]
    assert lines == ["views: state", "  where     ", "  evidence  ", "  costs     ", "  change    "]
    code, out, _ = run(made.path, "--json")
    (line,) = out.splitlines()
    assert code == 1
    assert json.loads(line)["rule"] == "state-unbounded"
    file = tmp_path / "doctor.toml"
    file.write_text('[[doctor.silences]]\nreason = "known"\n')
    code, out, err = run(made.path, "--config", file)
    assert (code, out) == (0, "")
    assert "Ignored: views, state-unbounded" in err
    code, out, err = run(tmp_path / "nothing", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["error"]["condition"] == "NO_CHECKPOINT"
    assert run(made.path, "--job", "no")[0] == 2
    assert run(made.path, "--config", tmp_path / "no.toml")[0] == 2


def test_a_key_with_control_characters_is_shown_as_escapes(tmp_path: Path) -> None:
    rows = [[("\x1b[31m\nred", "x" * (4 << 20)), *((f"{n}", "x") for n in range(40))]]
    made = written(tmp_path / "views", rows, value=TEXT, partitions=16)
    _, out, _ = run(made.path)
    assert "hot-key" in out
    assert "red" in out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 5


def test_a_pond_is_judged_job_by_job(tmp_path: Path) -> None:
    """A job that can't be read, or has no batch yet, hides no other."""
    for name in ("a", "b", "c"):
        folder = create_job(tmp_path / "pond", name)
        written(Path(folder.checkpoint.removeprefix("file://")), new_keys(8, 300) if name != "b" else [])
    found = millpond.diagnose(tmp_path / "pond")
    assert [(advice.job, advice.rule) for advice in found.found] == [("a", "state-unbounded"), ("c", "state-unbounded")]
    assert [sentence.split(":")[0] for sentence in found.unseen] == ["b"]
    assert found.exit_code == 1  # no state yet
    (tmp_path / "pond/jobs/a/job.json").write_text("noise")
    found = millpond.diagnose(tmp_path / "pond")
    assert [advice.job for advice in found.found] == ["c"]
    assert [sentence.split(":")[0] for sentence in found.unseen] == ["b", "a"]
    assert found.exit_code == 2
    for name in ("b", "c"):
        (tmp_path / f"pond/jobs/{name}/job.json").write_text("noise")
    found = millpond.diagnose(tmp_path / "pond")
    assert (found.found, len(found.unseen), found.exit_code) == ((), 3, 2)
