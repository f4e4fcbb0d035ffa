"""Wait for what a live job says of itself."""

from __future__ import annotations

from millpond.catalogue import JobFolder
from millpond.operate.measure import JobMeter
from millpond.operate.sample import Sample
from suite.waiting import wait_until


def sampled(folder: JobFolder, input_rows: int) -> Sample:
    """A sample, once the job's heartbeat has so many rows."""

    def look() -> Sample | None:
        sample = JobMeter(folder).look()
        return sample if sample.input_rows == input_rows else None

    found = wait_until(look, f"a heartbeat with {input_rows} rows")
    assert found is not None
    return found
