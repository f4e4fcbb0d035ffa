"""The formula of Spark's requests, held against a real job over S3A at a server that counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_jobs.counted_requests import VARIANTS, count_requests
from millpond.checkpoint.log import newest_committed, read_batch
from millpond.operate.cost.files import count_files
from millpond.storage import open_storage
from servers.s3 import moto, use

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_formula_says_what_spark_asks(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another number of partitions than those that the formula was made of: within a tenth.

    The job is short, so that not all of its files are deleted in that time.  The files a batch are counted in the checkpoint.
    """
    counted, checkpoint = count_requests(variant, 5, 30, tmp_path / "job.log")
    assert counted.asked.puts == pytest.approx(counted.expected.puts, rel=0.1)
    assert counted.asked.gets == pytest.approx(counted.expected.gets, rel=0.1)

    use(monkeypatch, moto(1000).url)
    storage = open_storage(checkpoint)
    files = count_files(storage, read_batch(storage, newest_committed(storage)))
    written = counted.written
    assert files.partitions == 5
    assert files.is_format_2 == (variant == "rocksdb-format-2")
    assert files.change_files == pytest.approx((written["delta"] + written["changelog"]) / counted.batches, rel=0.02)
    # Few batches have a snapshot: those that are there now stand for all.
    assert abs(files.snapshots - (written["snapshot"] + written["zip"]) / counted.batches) <= 1
