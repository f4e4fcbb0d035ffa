"""`millpond top`: all jobs of some places as a table, with the last minute of each."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from millpond.cli.terminal import visible
from millpond.operate.sample import Sample
from millpond.operate.units import seconds_text, size_text

HISTORY_SECONDS = 60.0
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 30
_BARS_TITLE = "the last minute's batches"
# Left out one after the other where the terminal isn't wide enough.
_MATTERS_LEAST = ("bars", "rate", "skew", "growth", "waits", "behind", "age", "lag", "took")


@dataclass(slots=True)
class JobLine:
    """A job's samples of the last minute, and the error that its newest one met."""

    name: str
    samples: deque[Sample] = field(default_factory=deque)
    error: str | None = None

    def add(self, sample: Sample) -> None:
        """Keep a sample; those of more than a minute before go."""
        self.samples.append(sample)
        while self.samples[0].at_ms < sample.at_ms - HISTORY_SECONDS * 1000:
            self.samples.popleft()

    @property
    def newest(self) -> Sample | None:
        """The last one; None before the first."""
        return self.samples[-1] if self.samples else None

    @property
    def batches_per_minute(self) -> float | None:
        """Over the samples that are kept; None from one sample alone."""
        seconds = self._seconds()
        return sum(sample.batches for sample in list(self.samples)[1:]) * 60 / seconds if seconds else None

    @property
    def growth_per_minute(self) -> float | None:
        """Bytes of state; None if its size isn't known at both ends."""
        sized = {sample.sized_ms: sample.state_bytes for sample in self.samples if sample.sized_ms is not None}
        if len(sized) < 2:
            return None
        first, last = min(sized), max(sized)
        return ((sized[last] or 0) - (sized[first] or 0)) * 60_000 / (last - first)

    @property
    def skew(self) -> float | None:
        """The largest ratio of an operator's largest partition to its median one."""
        newest = self.newest
        return max((each.skew for each in newest.operators), default=None) if newest is not None else None

    def _seconds(self) -> float:
        return (self.samples[-1].at_ms - self.samples[0].at_ms) / 1000 if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, what it is sorted by, and its text."""

    title: str
    value: Callable[[JobLine], float | str | None]
    text: Callable[[JobLine], str]
    is_number: bool = True


def _of(fact: str) -> Callable[[JobLine], float | None]:
    return lambda line: None if line.newest is None else getattr(line.newest, fact)


def _shown(value: Callable[[JobLine], float | None], form: Callable[[float], str]) -> Callable[[JobLine], str]:
    def text(line: JobLine) -> str:
        found = value(line)
        return "" if found is None else form(found)

    return text


def _behind(line: JobLine) -> int | None:
    behind = None if line.newest is None else line.newest.behind
    return None if behind is None else behind[0]


def _behind_text(line: JobLine) -> str:
    return "" if line.newest is None else behind_text(line.newest)


def behind_text(sample: Sample) -> str:
    """What a job has still to read: `4,000` records or `12 files`; empty if that isn't known."""
    if sample.behind is None:
        return ""
    count, what = sample.behind
    if what == "records":
        return f"{count:,}"
    return f"{count:,} {what if count != 1 else what.removesuffix('s')}"


def _state_text(line: JobLine) -> str:
    if line.error is not None:
        return line.error
    newest = line.newest
    if newest is None:
        return ""
    return newest.job_state if newest.problem is None else newest.problem


COLUMNS = {
    "job": Column("job", lambda line: line.name, lambda line: line.name, is_number=False),
    "state": Column("state", _state_text, _state_text, is_number=False),
    "batch": Column("batch", _of("batch"), _shown(_of("batch"), lambda batch: f"{batch:.0f}")),
    "rate": Column(
        "per min", lambda line: line.batches_per_minute, _shown(lambda line: line.batches_per_minute, lambda n: f"{n:.0f}")
    ),
    "took": Column("took", _of("batch_seconds"), _shown(_of("batch_seconds"), seconds_text)),
    "waits": Column("waits", _of("waiting_seconds"), _shown(_of("waiting_seconds"), seconds_text)),
    "age": Column("age", _of("age_seconds"), _shown(_of("age_seconds"), seconds_text)),
    "behind": Column("behind", _behind, _behind_text),
    "lag": Column("event lag", _of("event_lag_seconds"), _shown(_of("event_lag_seconds"), seconds_text)),
    "size": Column("state size", _of("state_bytes"), _shown(_of("state_bytes"), size_text)),
    "growth": Column(
        "a min", lambda line: line.growth_per_minute, _shown(lambda line: line.growth_per_minute, lambda n: f"{size_text(n)}")
    ),
    "skew": Column("skew", lambda line: line.skew, _shown(lambda line: line.skew, lambda n: f"{n:.1f}x")),
}
"""What `--sort` takes -> the column."""


def sorted_lines(lines: list[JobLine], by: str, *, reverse: bool) -> list[JobLine]:
    """The jobs in order: numbers from the largest, names from the first; those without a value last."""
    column = COLUMNS[by]
    valued = [(value, line) for line in lines if (value := column.value(line)) is not None]
    valued.sort(key=lambda pair: (pair[0], pair[1].name), reverse=column.is_number != reverse)
    unvalued = sorted((line for line in lines if column.value(line) is None), key=lambda line: line.name)
    return [line for _, line in valued] + unvalued


def sparks(line: JobLine) -> str:
    """How long batches took in the last minute, as bars; a batch that runs counts as long as it has taken."""
    values = [sample.longest_batch_seconds or sample.batch_seconds for sample in line.samples]
    found = [value for value in values if value is not None][-_SPARKS:]
    most = max(found, default=0.0)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / most * len(_BARS)))] if most else _BARS[0] for value in found)


def grid(lines: list[JobLine], by: str, *, reverse: bool, width: int | None = None) -> Table:
    """The jobs as a table in the order of a column, whose heading is marked.

    width:  of the terminal in characters: the columns that matter least are left out until the rest
            fits; None: all columns
    """
    shown = sorted_lines(lines, by, reverse=reverse)
    texts = {name: [visible(column.text(line)) for line in shown] for name, column in COLUMNS.items()}
    bars = [sparks(line) for line in shown]
    left_out = _left_out({**texts, "bars": bars}, by, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (name for name in texts if name not in left_out):
        column = COLUMNS[name]
        title = Text(column.title, style="bold reverse" if name == by else "bold")
        table.add_column(title, justify="right" if column.is_number else "left", no_wrap=True)
    if "bars" not in left_out:
        table.add_column(Text(_BARS_TITLE, style="bold"), no_wrap=True)
    for row in range(len(shown)):
        cells = [Text(found[row]) for name, found in texts.items() if name not in left_out]
        table.add_row(*cells, *([] if "bars" in left_out else [Text(bars[row])]))
    return table


def _left_out(texts: dict[str, list[str]], by: str, width: int | None) -> set[str]:
    titles = {**{name: column.title for name, column in COLUMNS.items()}, "bars": _BARS_TITLE}
    widths = {name: 2 + max(map(cell_len, [titles[name], *found])) for name, found in texts.items()}
    left_out: set[str] = set()
    for name in _MATTERS_LEAST:
        if width is None or sum(found for column, found in widths.items() if column not in left_out) <= width:
            break
        if name != by:
            left_out.add(name)
    return left_out


def screen(lines: list[JobLine], by: str, *, reverse: bool, width: int, height: int) -> Group:
    """The view: a head, as many jobs as fit, and which keys do what."""
    running = sum(line.newest is not None and line.newest.job_state == "running" for line in lines)
    head = f"millpond top   {time.strftime('%H:%M:%S')}   {len(lines)} jobs, {running} running"
    shown = sorted_lines(lines, by, reverse=reverse)[: max(1, height - 6)]
    more = len(lines) - len(shown)
    foot = "s, S: sort by the next, the previous column   r: reverse   q: quit" + (f"   {more} more jobs" if more else "")
    return Group(Text(head), grid(shown, by, reverse=reverse, width=width), Text(foot, style="dim"))


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key, and gives it, or an empty text."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
